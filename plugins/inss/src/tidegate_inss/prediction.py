"""Latency model of a problem: latency of batches beside their neighbors (InSS, section 4.1)."""

from collections.abc import Sequence

from tidegate_inss.assignment import AssignedShare
from tidegate_inss.problem import ShareProblem
from tidegate_inss.tables import LatencyTables, tables_of


class Predictor:
    """Latency model of one problem, as tables."""

    def __init__(self, problem: ShareProblem) -> None:
        """Create the latency model of a problem. Raises PlanningError as `ShareProblem.check` does."""
        problem.check()
        self.problem = problem
        self.tables: LatencyTables = tables_of(problem)
        self._minds = self.tables.minds.tolist()

    def batch_ms(self, shares: Sequence[AssignedShare]) -> list[float]:
        """Return the latency in ms of a full batch of each share, all on one GPU and always busy.

        Models that share a process are serialized and are no neighbors; of another process the most disturbing model
        counts.
        """
        tables = self.tables
        cache = [tables.cache_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        dram = [tables.dram_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        most: dict[int, tuple[float, float]] = {}
        for at, share in enumerate(shares):
            process = share.process or -1 - at
            before = most.get(process, (0.0, 0.0))
            most[process] = max(before[0], cache[at]), max(before[1], dram[at])
        all_cache, all_dram = sum(each[0] for each in most.values()), sum(each[1] for each in most.values())
        others = len(most) - 1
        taken = []
        for at, (model, _, units, batch, process) in enumerate(shares):
            own = most[process or -1 - at]
            by_cache, by_dram, by_any = self._minds[model]
            added = by_cache * (all_cache - own[0]) + by_dram * (all_dram - own[1]) + by_any * others
            taken.append(tables.transfer_ms.item(model, batch) + tables.gpu_ms.item(model, units, batch) * (1 + added))
        return taken

    def takes_mib(self, share: AssignedShare) -> float:
        """Return the device memory of a share's process in MiB."""
        return self.problem.models[share.model].takes_mib(share.batch)
