"""Squishy bin packing: which models a worker serves, in batches of which size (Shen et al., *Nexus*, section 6.1).

A batch may take as long as its requests may wait for it: a model that fills workers by itself gets whole ones, at the
largest batch with `2*l(b) <= SLO`. What is left of each model shares workers: a worker goes round its models once per
*duty cycle*, short enough that `cycle + l(b) <= SLO` for each, and takes per cycle what arrived in one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from tidegate.api import Model, Profile, Worker

Profiles = Mapping[tuple[str, str], Profile]
"""Profiles by (model, kind of worker)."""
STEPS = 20
"""How many steps the bisection of the load that fits has: to a millionth."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker is to do for one model."""

    rows: int
    """The most rows of its batches."""
    rows_per_ns: float
    """The part of the model's expected rate that goes there."""


Plan = dict[int, dict[str, Share]]
"""The shares that models have of a worker, by its id, then by model."""


@dataclass(slots=True)
class _Node:
    """A worker that several models share."""

    worker: Worker
    duty_ns: float
    shares: dict[str, Share] = field(default_factory=dict)
    occupancy: float = 0.0
    """The part of its duty cycle in which it is busy."""


def static_plan(
    models: Iterable[Model], workers: Iterable[Worker], profiles: Profiles, rates: Mapping[str, float]
) -> Plan:
    """The plan for the largest multiple of the expected rates (rows per ns) that fits on these workers.

    Nexus rents as many workers as the load needs; here they are given, and all of them are used. Where not even a
    trickle of every model fits within the SLOs, every worker serves all that it hosts.
    """
    models, workers = list(models), list(workers)
    hosted = [model for model in models if any(model.name in worker.hosts for worker in workers)]
    if not hosted:
        return {}
    least = min((rate for rate in rates.values() if rate > 0), default=1e-9)
    # A model of which nothing was seen yet needs a place, too.
    wanted = {model.name: max(rates.get(model.name, 0.0), least / 1000) for model in hosted}

    def fits(multiple: float) -> Plan | None:
        return _pack(hosted, workers, profiles, {name: rate * multiple for name, rate in wanted.items()})

    capacity = sum(_throughput(hosted, worker, profiles) for worker in workers)
    low, high = 0.0, 1 + capacity / sum(wanted.values())
    best: Plan | None = None
    for _ in range(STEPS):
        middle = (low + high) / 2
        plan = fits(middle)
        low, high, best = (middle, high, plan) if plan else (low, middle, best)
    if best is None:
        return {worker.id: _whole_each(hosted, worker, profiles) for worker in workers}
    for worker in workers:
        # Held back by others: they get a part of whatever they host that is asked most.
        if worker.id not in best and (own := _whole_each(hosted, worker, profiles)):
            name = max(own, key=lambda name: (wanted[name], name))
            best[worker.id] = {name: own[name]}
    return best


def largest_batch(model: Model, profile: Profile) -> int:
    """The largest batch of which one can run while the next one waits: `2*l(b) <= SLO`; at least 1."""
    if model.slo_ns is None:
        return model.merged_rows
    return max(1, min(model.merged_rows, profile.largest_rows_within(model.slo_ns // 2)))


def _pack(models: list[Model], workers: list[Worker], profiles: Profiles, rates: Mapping[str, float]) -> Plan | None:
    """A plan for these rates; None where they do not fit."""
    plan: Plan = {}
    # Workers that host little are taken first, so that those that could serve anyone stay.
    free = sorted(workers, key=lambda worker: (len(worker.hosts), worker.id))
    residual: dict[str, float] = {}
    for model in models:
        rate = rates[model.name]
        for worker in [worker for worker in free if model.name in worker.hosts]:
            share = _whole(model, profiles[model.name, worker.kind])
            if rate < share.rows_per_ns:
                break
            plan[worker.id] = {model.name: share}
            free.remove(worker)
            rate -= share.rows_per_ns
        if rate > 0:
            residual[model.name] = rate
    nodes: list[_Node] = []
    by_name = {model.name: model for model in models}
    for name, rate in sorted(residual.items(), key=lambda entry: (-entry[1], entry[0])):
        model = by_name[name]
        merged = [
            (index, grown)
            for index, node in enumerate(nodes)
            if name in node.worker.hosts and (grown := _merge(node, model, rate, profiles))
        ]
        if merged:  # best fit: where it leaves the least
            index, node = max(merged, key=lambda entry: entry[1].occupancy)
            nodes[index] = node
            continue
        own = next((worker for worker in free if name in worker.hosts), None)
        if own is None:
            return None
        nodes.append(_open(own, model, profiles[name, own.kind], rate))
        free.remove(own)
    plan.update({node.worker.id: node.shares for node in nodes})
    return plan


def _open(worker: Worker, model: Model, profile: Profile, rate: float) -> _Node:
    """A worker for what is left of a model: alone it never waits for others, so that its batches may be as large."""
    rows = largest_batch(model, profile)
    duty_ns = _duty_ns(model, profile, rate)
    return _Node(worker, duty_ns, {model.name: Share(rows, rate)}, rate * profile.expected_ns(rows) / rows)


def _merge(node: _Node, model: Model, rate: float, profiles: Profiles) -> _Node | None:
    """The node with one more model; None where its batches do not fit into the duty cycle."""
    duty_ns = min(node.duty_ns, _duty_ns(model, profiles[model.name, node.worker.kind], rate))
    rates = {name: share.rows_per_ns for name, share in node.shares.items()} | {model.name: rate}
    shares = {name: Share(max(1, ceil(duty_ns * part - 1e-6)), part) for name, part in rates.items()}
    busy_ns = 0
    for name, share in shares.items():
        profile = profiles[name, node.worker.kind]
        if share.rows > profile.max_rows:
            return None
        busy_ns += profile.planned_ns(share.rows)
    return replace(node, duty_ns=duty_ns, shares=shares, occupancy=busy_ns / duty_ns) if busy_ns <= duty_ns else None


def _duty_ns(model: Model, profile: Profile, rate: float) -> float:
    """The longest duty cycle in which a model of this rate meets its SLO: the largest b with `l(b) + b/rate <= SLO`."""
    if model.slo_ns is None:
        return model.merged_rows / rate
    rows = 1
    while rows < model.merged_rows and profile.planned_ns(rows + 1) + (rows + 1) / rate <= model.slo_ns:
        rows += 1
    # Requests that come less often than that are not waited for: the worker looks often enough.
    return min(rows / rate, max(1, model.slo_ns - profile.planned_ns(rows)))


def _whole(model: Model, profile: Profile) -> Share:
    """A worker for a model alone."""
    rows = largest_batch(model, profile)
    return Share(rows, rows / profile.expected_ns(rows))


def _whole_each(models: list[Model], worker: Worker, profiles: Profiles) -> dict[str, Share]:
    """What a worker could do for each model that it hosts, for that alone."""
    return {
        model.name: _whole(model, profiles[model.name, worker.kind]) for model in models if model.name in worker.hosts
    }


def _throughput(models: list[Model], worker: Worker, profiles: Profiles) -> float:
    """The most rows per ns that a worker could do of any model."""
    return max((share.rows_per_ns for share in _whole_each(models, worker, profiles).values()), default=0.0)
