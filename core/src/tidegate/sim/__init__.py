"""The simulator: the proxy's engine and policies under virtual time, with simulated workers.

Only workers are simulated, never scheduling.

simulation        the main loop: takes events from the event_queue and wake-ups of the engine, in a total order
workers           the interface between simulation and workers, and exact workers for tests
cluster           workers as a scenario describes them: execution times from true_latency, transfers over links
control           carries out the actions of a controller: workers join after a start-up time and leave by draining
graphs            requests of graphs, which become requests of their stages
slot_limits       adaptive concurrency limits: slots of streams come and go as their throughput and latency say
build             makes a simulation of a scenario; run: runs it once, or for a grid of changes; record, result: what it
                  measured
goodput           searches the highest rate that meets the SLOs; parallel: many runs at once, in processes or on Ray
                  (ray_cluster, which rejects machines with other versions)
chart_data        data of charts beyond the figures of a run
document          the results as JSON; report, sweep_report: as HTML pages, made of
verdicts          the sentences at the top; charts: the charts; tables: the tables
interval          means and gains with 95 % confidence intervals
what_if           simulates recorded requests again with one thing changed; recent_traffic: the latest of an engine;
                  policy_frames: where in its own files a policy failed; tuning: replaces the policy by a better one
shadow            what a policy would have done with requests that bypassed scheduling; shadow_process: in a process of
                  its own, which the proxy talks to in shadow_messages; observed_profiles: batches by
                  Triton's statistics, and profiles made of them; shadow_replay: the requests again, under a
                  policy or under shadow_batcher, a model of Triton's batcher
background_priority  lowers the priority of a process that simulates beside a proxy, and ends it with the proxy
replay            runs a recorded event log again: the same events give the same commands

The names exported here need only the core; `result` and its users need the extra `sim`.
"""

from tidegate.sim.cluster import Cluster
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.links import NetworkLinks
from tidegate.sim.simulation import Listener, Simulation
from tidegate.sim.true_latency import ConstantSlowdown, SimulatedWorker, TrueLatency
from tidegate.sim.workers import ExactWorkers, Workers

__all__ = [
    "Cluster",
    "ConstantSlowdown",
    "EventQueue",
    "ExactWorkers",
    "Listener",
    "NetworkLinks",
    "SimulatedWorker",
    "Simulation",
    "TrueLatency",
    "Workers",
]
