"""Accounts: the worker time of models and tenants, and what it costs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tidegate.api import Request, Worker
from tidegate.observation import StartStage

MAX_OPEN_BATCHES = 10_000
"""Number of batches whose tenants are remembered, because a batch that fails may never be heard of again."""
GpuTime = Mapping[tuple[str, str, str], int]
"""Worker time in ns by model, tenant and device class."""
_NS_PER_HOUR = 3_600_000_000_000


class TenantAccounts:
    """Worker time of batches, divided among the tenants of their requests by rows."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.gpu_ns: Counter[tuple[str, str, str]] = Counter()
        """Worker time in ns by model, tenant and device class; the tenant is empty without tenants."""
        self._device_classes = {worker.id: worker.device_class for worker in workers}
        self._rows_of: dict[int, Counter[str]] = {}
        """Rows of the tenants in batches that run, by batch id."""

    def add_worker(self, worker: Worker) -> None:
        """Add a worker, or note that it has changed."""
        self._device_classes[worker.id] = worker.device_class

    def joined(self, batch_id: int, requests: Sequence[Request]) -> None:
        """Note the tenants of a batch that starts."""
        if len(self._rows_of) >= MAX_OPEN_BATCHES:
            self._rows_of.clear()
        rows = self._rows_of[batch_id] = Counter[str]()
        for request in requests:
            rows[request.tenant] += request.rows

    def ran(self, effect: StartStage, duration_ns: int) -> None:
        """Add the worker time of a stage, in ns."""
        batch = effect.batch
        device_class = self._device_classes.get(batch.stages[effect.stage].worker_id, "")
        rows = self._rows_of.get(batch.id)
        if rows is None:
            self.gpu_ns[batch.model, "", device_class] += duration_ns
            return
        total = rows.total()
        for tenant, count in rows.items():
            self.gpu_ns[batch.model, tenant, device_class] += duration_ns * count // total
        if effect.stage + 1 == len(batch.stages):
            del self._rows_of[batch.id]


def costs_of(gpu_ns: GpuTime, prices: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the cost of worker time by model and tenant. `prices`: price of a worker's hour by device class."""
    costs: dict[tuple[str, str], float] = {}
    for (model, tenant, device_class), duration_ns in gpu_ns.items():
        if device_class in prices:
            key = model, tenant
            costs[key] = costs.get(key, 0.0) + duration_ns / _NS_PER_HOUR * prices[device_class]
    return costs
