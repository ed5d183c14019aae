"""The simulator: the proxy's engine and policies under virtual time, with simulated workers. It may fake workers, never
scheduling.

simulation   the loop: events in a total order
cluster      simulated workers: truth says how long they take, links what travels between them
build        from a scenario to a cluster; run: one run of it; record, result: what it measured
goodput      the highest rate that is carried; sweep: a grid of changes; parallel: many runs at once
document     the results as JSON; report, charts: as a page

What is exported here needs nothing beyond the core; `result` and all that uses it need the extra `sim`.
"""

from tidegate.sim.cluster import Cluster
from tidegate.sim.links import Links
from tidegate.sim.simulation import Simulation, exact_service
from tidegate.sim.truth import SimulatedWorker, Truth

__all__ = ["Cluster", "Links", "SimulatedWorker", "Simulation", "Truth", "exact_service"]
