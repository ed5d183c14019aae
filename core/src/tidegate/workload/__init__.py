"""The load that models are asked to carry, and the scenario that describes it: shared by simulator and load test.

scenario       the document that a person writes; scenario_file reads and checks it
workers, partitions  parts of it that are short for a layout's; layout: that layout
requests       the requests that it asks for, drawn from a seed
sizes          how many of them have how many rows, for planners
arrivals       processes; traces: recorded arrivals
from_layout    a scenario whose workers, models and network are those of a planner's layout
from_profiles  a scenario whose models take as long as was measured
shapes         of a model's requests, each with its share and its times
distributions  rows per request and the like; streams: one random stream per purpose
profiles       how a scenario says how long a batch takes
section        what its sections are made of
simulated      its section `simulation`: how simulated workers differ from what policies expect
"""

from tidegate.workload.arrivals import Arrivals, Gamma, Poisson, RateStep, Uniform, Varying
from tidegate.workload.layout import layout_of
from tidegate.workload.requests import RequestSequence, draw_requests, mean_rate_rps
from tidegate.workload.scenario import PolicyChoice, Scenario
from tidegate.workload.scenario_file import ScenarioError, read_scenario
from tidegate.workload.sizes import sizes_of
from tidegate.workload.streams import stream
from tidegate.workload.traces import Trace, TraceError, TraceFormat, read_trace

__all__ = [
    "Arrivals",
    "Gamma",
    "Poisson",
    "PolicyChoice",
    "RateStep",
    "RequestSequence",
    "Scenario",
    "ScenarioError",
    "Trace",
    "TraceError",
    "TraceFormat",
    "Uniform",
    "Varying",
    "draw_requests",
    "layout_of",
    "mean_rate_rps",
    "read_scenario",
    "read_trace",
    "sizes_of",
    "stream",
]
