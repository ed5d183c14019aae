"""Workloads: the scenario file and the requests drawn from it, shared by simulator and load test.

scenario       the document that users write; scenario_file reads and checks it
workers, partitions  its short forms of a layout's sections, and the latency of batches; layout: that layout
requests       draws the requests of a scenario from a seed; the distribution of rows per request, for planners
arrivals       arrival processes; traces: recorded arrivals
from_profiles  a scenario with measured profiles
graphs         graphs of models (ensembles) with one SLO
distributions  distributions of rows and the like; one random stream for each purpose
tenants        whose each request is, how urgent it is, and what rate limits reject; the proxy has the same limits
simulated      its section `simulation`: how simulated workers differ from what policies expect
"""

from tidegate.workload.arrivals import Arrivals, Gamma, Poisson, Uniform, VaryingRate
from tidegate.workload.distributions import stream
from tidegate.workload.layout import layout_of
from tidegate.workload.requests import RequestSequence, draw_requests, mean_rate_rps, sizes_of
from tidegate.workload.scenario import PolicyChoice, Scenario
from tidegate.workload.scenario_file import ScenarioError, read_scenario
from tidegate.workload.traces import Trace, TraceError, TraceFormat, read_trace

__all__ = [
    "Arrivals",
    "Gamma",
    "Poisson",
    "PolicyChoice",
    "RequestSequence",
    "Scenario",
    "ScenarioError",
    "Trace",
    "TraceError",
    "TraceFormat",
    "Uniform",
    "VaryingRate",
    "draw_requests",
    "layout_of",
    "mean_rate_rps",
    "read_scenario",
    "read_trace",
    "sizes_of",
    "stream",
]
