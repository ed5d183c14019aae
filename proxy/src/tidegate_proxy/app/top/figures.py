"""What happened at a Tidegate between two readings of its page."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidegate_proxy.app.top.page import ModelCounts, Page, WorkerCounts

NOT_COUNTED: Final = "cancelled"
"""How requests end for which nobody is to blame."""


@dataclass(frozen=True)
class ModelFigures:
    """One model; None: nothing happened from which it could be told."""

    name: str
    rate_rps: float
    """Requests that ended, each second."""
    in_time: float | None
    """The share that was answered in time, of those that were not cancelled."""
    late: float | None
    dropped: float | None
    """The share that the policy gave up, or that found the queues full."""
    failed: float | None
    waiting: int
    p50_ms: float | None
    p99_ms: float | None
    """The 99th percentile; both are of the answered, interpolated within the histogram's buckets."""
    mean_rows: float | None
    """The mean number of rows of a batch."""


@dataclass(frozen=True)
class WorkerFigures:
    """One worker."""

    name: str
    is_up: bool
    busy: float
    """The share of the time in which it ran batches; those that have not ended count when they do."""


@dataclass(frozen=True)
class Figures:
    """All of it."""

    policy: str
    version: str
    seconds: float
    """Between the readings."""
    connections: int
    advised: Mapping[str, float]
    models: tuple[ModelFigures, ...]
    workers: tuple[WorkerFigures, ...]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def figures_between(before: Page, after: Page) -> Figures:
    """What happened from one reading to the next; counts that fell, as after a restart, are counted from 0."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    return Figures(
        policy=after.policy,
        version=after.version,
        seconds=seconds,
        connections=round(after.connections),
        advised=after.advised,
        models=tuple(
            _model(name, before.models.get(name, ModelCounts()), counts, seconds)
            for name, counts in sorted(after.models.items())
        ),
        workers=tuple(
            WorkerFigures(
                name,
                counts.is_up,
                min(1.0, _more(before.workers.get(name, WorkerCounts()).busy_s, counts.busy_s) / seconds),
            )
            for name, counts in sorted(after.workers.items())
        ),
    )


def _model(name: str, before: ModelCounts, after: ModelCounts, seconds: float) -> ModelFigures:
    ended = {outcome: _more(before.outcomes.get(outcome, 0.0), count) for outcome, count in after.outcomes.items()}
    counted = sum(ended.values()) - ended.get(NOT_COUNTED, 0.0)

    def share(*outcomes: str) -> float | None:
        return sum(ended.get(outcome, 0.0) for outcome in outcomes) / counted if counted else None

    within = {bound: _more(before.latency.get(bound, 0.0), count) for bound, count in after.latency.items()}
    batches = _more(before.batches, after.batches)
    return ModelFigures(
        name=name,
        rate_rps=sum(ended.values()) / seconds,
        in_time=share("in_time"),
        late=share("late"),
        dropped=share("dropped", "refused"),
        failed=share("failed"),
        waiting=round(after.waiting),
        p50_ms=quantile_ms(within, 0.5),
        p99_ms=quantile_ms(within, 0.99),
        mean_rows=_more(before.rows, after.rows) / batches if batches else None,
    )


def quantile_ms(within: Mapping[float, float], q: float) -> float | None:
    """A quantile of a histogram, as Prometheus' histogram_quantile has it, in ms; None: nothing was counted.

    Args:
        within: how many were counted up to each upper bound, in seconds; the last one is infinite.
        q: from 0 to 1.
    """
    bounds = sorted(within)
    if not bounds or not (total := within[bounds[-1]]):
        return None
    rank, low_s, below = q * total, 0.0, 0.0
    for bound_s in bounds[:-1]:
        if within[bound_s] >= rank:
            inside = within[bound_s] - below
            return 1000 * (low_s + (bound_s - low_s) * ((rank - below) / inside if inside else 1.0))
        low_s, below = bound_s, within[bound_s]
    return 1000 * low_s


def _more(before: float, after: float) -> float:
    return after - before if after >= before else after
