"""Squishy bin packing: the models that a worker serves, with their batch sizes (Shen et al., *Nexus*, section 6.1).

A batch may take as long as its requests may wait for it. A model that fills workers by itself gets whole ones, at the
largest batch with `2*l(b) <= SLO`. The remaining rates share workers: a worker serves each of its models once per *duty
cycle*, short enough that `cycle + l(b) <= SLO` for each, and runs the rows that arrived in one cycle.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from tidegate.api import Model, Profile, Worker

Profiles = Mapping[tuple[str, str], Profile]
"""Profiles by (model, device class)."""
BISECTION_STEPS = 20
"""Number of bisection steps for the load that fits: precision of a millionth."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Share of a worker that serves one model."""

    rows: int
    """Maximum rows of its batches."""
    rows_per_ns: float
    """Part of the model's expected rate that the worker gets, in rows per ns."""


Plan = dict[int, dict[str, WorkerShare]]
"""Shares of models in a worker, by worker id and model."""


@dataclass(slots=True)
class _Node:
    """A worker that several models share."""

    worker: Worker
    duty_ns: float
    shares: dict[str, WorkerShare]
    busy_ns: int | None = None
    """How long it is busy in a duty cycle; None: batches are not what arrives in one, as a single model has it."""


class PlanSearch:
    """Search for the plan with the largest multiple of the expected rates (rows per ns) that fits on these workers.

    Nexus rents as many workers as the load needs; here the workers are given, and all are used. If even a tiny rate of
    every model does not fit within the SLOs, every worker serves all models that it hosts.
    """

    def __init__(
        self, models: Iterable[Model], workers: Iterable[Worker], profiles: Profiles, rates: Mapping[str, float]
    ) -> None:
        """Create a search.

        `profiles`: of all models on the device classes that host them. `rates`: expected rate of each model in rows per
        ns.
        """
        self._workers = list(workers)
        self._hosts = {worker.id: frozenset(worker.hosts) for worker in self._workers}
        everywhere = frozenset().union(*self._hosts.values())
        self._models = {model.name: model for model in models if model.name in everywhere}
        self._profiles = profiles
        kinds = {
            (name, worker.device_class)
            for worker in self._workers
            for name in self._hosts[worker.id] & self._models.keys()
        }
        self._whole = {
            (name, device_class): _whole(self._models[name], profiles[name, device_class])
            for name, device_class in kinds
        }
        least = min((rate for rate in rates.values() if rate > 0), default=1e-9)
        # A model of which nothing was seen yet needs a place, too.
        self._wanted = {name: max(rates.get(name, 0.0), least / 1000) for name in self._models}
        capacity = sum(
            max((share.rows_per_ns for share in self._whole_each(worker).values()), default=0.0)
            for worker in self._workers
        )
        self._low, self._high = 0.0, 1 + capacity / sum(self._wanted.values()) if self._models else 0.0
        self._steps = BISECTION_STEPS if self._models else 0
        self._best: Plan | None = None

    @property
    def pairs(self) -> int:
        """Number of models times workers; the cost of a step grows with it."""
        return len(self._models) * len(self._workers)

    def run(self, steps: int = BISECTION_STEPS) -> bool:
        """Halve the range of multiples `steps` times; return True once the plan is found."""
        for _ in range(min(steps, self._steps)):
            middle = (self._low + self._high) / 2
            if plan := self._pack(middle):
                self._low, self._best = middle, plan
            else:
                self._high = middle
            self._steps -= 1
        return not self._steps

    @property
    def plan(self) -> Plan:
        """Best plan so far; without one every worker serves all that it hosts."""
        if self._best is None:
            return {worker.id: self._whole_each(worker) for worker in self._workers} if self._models else {}
        plan = dict(self._best)
        for worker in self._workers:
            # Held back by others: they get a part of whatever they host that is asked most.
            if worker.id not in plan and (own := self._whole_each(worker)):
                name = max(own, key=lambda name: (self._wanted[name], name))
                plan[worker.id] = {name: own[name]}
        return plan

    def _whole_each(self, worker: Worker) -> dict[str, WorkerShare]:
        """Return the rate that a worker could serve for each model that it hosts, with that model alone."""
        hosts = self._hosts[worker.id]
        return {name: self._whole[name, worker.device_class] for name in self._models if name in hosts}

    def _pack(self, multiple: float) -> Plan | None:
        """A plan for that multiple of the rates; None where they do not fit."""
        plan: Plan = {}
        # Workers that host little are taken first, so that those that could serve anyone stay.
        free = sorted(self._workers, key=lambda worker: (len(worker.hosts), worker.id))
        residual: dict[str, float] = {}
        for name in self._models:
            rate = self._wanted[name] * multiple
            for worker in [worker for worker in free if name in self._hosts[worker.id]]:
                share = self._whole[name, worker.device_class]
                if rate < share.rows_per_ns:
                    break
                plan[worker.id] = {name: share}
                free.remove(worker)
                rate -= share.rows_per_ns
            if rate > 0:
                residual[name] = rate
        nodes: list[_Node] = []
        for name, rate in sorted(residual.items(), key=lambda entry: (-entry[1], entry[0])):
            if self._merge(nodes, name, rate):
                continue
            own = next((worker for worker in free if name in self._hosts[worker.id]), None)
            if own is None:
                return None
            # Alone it never waits for others, so that its batches may be as large.
            duty_ns = _duty_ns(self._models[name], self._profiles[name, own.device_class], rate)
            nodes.append(_Node(own, duty_ns, {name: WorkerShare(self._whole[name, own.device_class].rows, rate)}))
            free.remove(own)
        plan.update({node.worker.id: node.shares for node in nodes})
        return plan

    def _merge(self, nodes: list[_Node], name: str, rate: float) -> bool:
        """Let a model share the worker on which it leaves the least (best fit); False where it fits on none."""
        duties_ns: dict[str, float] = {}
        best, least, best_busy_ns, best_duty_ns = None, -1.0, 0, 0.0
        for node in nodes:
            device_class = node.worker.device_class
            if name not in self._hosts[node.worker.id]:
                continue
            own_ns = duties_ns.get(device_class)
            if own_ns is None:
                own_ns = duties_ns[device_class] = _duty_ns(
                    self._models[name], self._profiles[name, device_class], rate
                )
            duty_ns = min(node.duty_ns, own_ns)
            busy_ns = self._busy_ns(node, duty_ns, name, rate)
            if busy_ns is not None and busy_ns / duty_ns > least:
                best, least, best_busy_ns, best_duty_ns = node, busy_ns / duty_ns, busy_ns, duty_ns
        if best is None:
            return False
        if best.busy_ns is None or best_duty_ns < best.duty_ns:
            best.shares = {
                each: WorkerShare(_rows_in(best_duty_ns, share.rows_per_ns), share.rows_per_ns)
                for each, share in best.shares.items()
            }
        best.shares[name] = WorkerShare(_rows_in(best_duty_ns, rate), rate)
        best.duty_ns, best.busy_ns = best_duty_ns, best_busy_ns
        return True

    def _busy_ns(self, node: _Node, duty_ns: float, name: str, rate: float) -> int | None:
        """How long a worker is busy in such a cycle with one more model; None where that is too long."""
        device_class, busy_ns = node.worker.device_class, 0
        parts = [(name, rate)]
        if node.busy_ns is not None and duty_ns == node.duty_ns:
            busy_ns = node.busy_ns  # what was there takes what it did
        else:
            parts += [(each, share.rows_per_ns) for each, share in node.shares.items()]
        for each, part in parts:
            rows, profile = _rows_in(duty_ns, part), self._profiles[each, device_class]
            if rows > profile.max_rows:
                return None
            busy_ns += profile.upper_ns(rows)
            if busy_ns > duty_ns:
                return None
        return busy_ns


def largest_batch(model: Model, profile: Profile) -> int:
    """Return the largest batch that can run while the next one waits: `2*l(b) <= SLO`; at least 1."""
    if model.slo_ns is None:
        return model.merged_rows
    return max(1, min(model.merged_rows, profile.largest_rows_within(model.slo_ns // 2)))


def _rows_in(duty_ns: float, rate: float) -> int:
    """The rows that arrive in a duty cycle; at least 1."""
    return max(1, ceil(duty_ns * rate - 1e-6))


def _duty_ns(model: Model, profile: Profile, rate: float) -> float:
    """The longest duty cycle in which a model of this rate meets its SLO: the largest b with `l(b) + b/rate <= SLO`."""
    slo_ns = model.slo_ns
    if slo_ns is None:
        return model.merged_rows / rate

    def too_large(rows: int) -> bool:
        return profile.upper_ns(rows) + rows / rate > slo_ns

    rows = bisect_left(range(2, model.merged_rows + 1), True, key=too_large) + 1
    # Requests that come less often than that are not waited for: the worker looks often enough.
    return min(rows / rate, max(1, slo_ns - profile.upper_ns(rows)))


def _whole(model: Model, profile: Profile) -> WorkerShare:
    """A worker for a model alone."""
    rows = largest_batch(model, profile)
    return WorkerShare(rows, rows / profile.expected_ns(rows))
