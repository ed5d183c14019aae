"""Reactive data plane, the baseline of PPipe: each pool decides separately (section 7.4)."""

from tidegate.api import Pipeline, Profile, Setup
from tidegate_ppipe.policy import Ppipe, PpipeOptions
from tidegate_ppipe.routes import RouteStop
from tidegate_ppipe.sizing import SizedBatch, SizedPipeline


class Reactive(Ppipe):
    """Reactive: batches are sized for the first pool by its part of the SLO; each later pool uses its first free
    worker.

    It ignores the links and the load of later pools. A pool's part of the SLO is its part of the pipeline's latency at
    the planned batch size, transfers included. Departures from the paper: batches stay together from pool to pool, and
    a batch that is late at a later pool is answered late instead of dropped.
    """

    best_effort = True
    knows_network = False

    def __init__(self, setup: Setup, options: PpipeOptions) -> None:
        self._profiles: dict[str, Profile] = {}
        for profile in setup.profiles:
            known = self._profiles.get(profile.partition)
            if not profile.shape and (known is None or profile.upper_ns(1) < known.upper_ns(1)):
                self._profiles[profile.partition] = profile
        super().__init__(setup, options)

    def route(self, pipeline: Pipeline) -> SizedPipeline:
        """Return the pipeline, planned for its first partition only."""
        route = super().route(pipeline)
        network, rows = self.setup.network, pipeline.max_rows
        runs_ns = [self._profiles[name].upper_ns(rows) for name in pipeline.partitions]
        whole_ns = sum(runs_ns)
        if network:
            whole_ns += sum(network.transfer_ns(name, rows) + network.latency_ns for name in pipeline.partitions[:-1])
        route.planned = pipeline.partitions[:1]
        route.budget = runs_ns[0] / whole_ns
        return route

    def stops_of(self, now_ns: int, found: SizedBatch) -> list[RouteStop]:
        """Return the first free worker of each later pool; `Ppipe` chooses again when the batch arrives there."""
        first = found.path.stops[0]
        later = found.route.partitions[1:]
        if not later:
            return [first]
        path = self.resources.probe(later, found.rows, found.shape, now_ns, first, first.end_ns)
        assert path is not None, "each of its partitions is hosted"
        return [first, *path.stops]
