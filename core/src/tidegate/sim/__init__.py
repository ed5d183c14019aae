"""The simulator: the proxy's engine and policies under virtual time, with simulated workers. It may fake workers, never
scheduling.

simulation   the loop: an agenda's events and the engine's wake-ups, in a total order
workers      what it asks of workers, and exact ones, for tests
cluster      workers as a scenario describes them: truth says how long they take, links what travels between them
control      brings about what a controller wants: workers join after a start-up time, and leave by draining
build        from a scenario to a simulation; run: one run of it; record, result: what it measured
goodput      the highest rate that is carried; sweep: a grid of changes; parallel: many runs at once,
             by a backend: processes, or a cluster (on_dask, on_ray by ray_cluster) whose machines are in
             agreement with this one
detail       what charts need of a run beyond its figures
document     the results as JSON; report, goodput_report, sweep_report: as pages, made of
verdicts     the sentences at the top; charts, gantt_charts, over_load: what is drawn; tables: what is listed
interval     means with their 95 % intervals
what_if      requests that came, once more, with something otherwise
shadow       what a policy would have done with what passed a Tidegate untouched; shadow_process: beside a live one,
             with which it exchanges shadow_messages; shadow_told: what Tritons tell of themselves; shadow_replay: the
             requests once more, under a policy or under shadow_batcher, Triton's own
aside        how a process that simulates beside a live one gives way to all, and ends with it
replay       a recorded run again, simulated or live: the same events give the same commands

What is exported here needs nothing beyond the core; `result` and all that uses it need the extra `sim`.
"""

from tidegate.sim.agenda import Agenda
from tidegate.sim.cluster import Cluster
from tidegate.sim.links import Links
from tidegate.sim.simulation import Listener, Simulation
from tidegate.sim.truth import ConstantSlowdown, SimulatedWorker, Truth
from tidegate.sim.workers import ExactWorkers, Workers

__all__ = [
    "Agenda",
    "Cluster",
    "ConstantSlowdown",
    "ExactWorkers",
    "Links",
    "Listener",
    "SimulatedWorker",
    "Simulation",
    "Truth",
    "Workers",
]
