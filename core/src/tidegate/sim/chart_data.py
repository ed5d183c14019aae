"""Chart data beyond the figures of a run: latency distributions, arrivals and misses over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NEVER_NS, NS_PER_MS
from tidegate.sim.record import ANSWERED, FIRST_DROP, LATE
from tidegate.workload.arrivals import NS_PER_S

CURVE_POINTS = 200
"""Number of points of a latency curve."""
TIME_SPANS = 40
"""Number of equal spans into which charts cut the window."""
ON_TIME, ANSWERED_LATE, DROPPED, FAILED_OUTRIGHT = "on time", "late", "dropped", "failed"


@dataclass(frozen=True)
class ModelDetail:
    """Chart data of one model; counts cover requests that arrived in the window."""

    model: str
    slo_ms: float | None
    accepted: int
    answered: int
    latencies_ms: list[float]
    """Quantiles of the latency of answered requests in ms, evenly spaced from minimum to maximum."""
    accepted_over_time: list[int]
    """Number of requests that arrived in each span of the window."""
    on_time_over_time: list[int]
    """Number of requests of each span that were answered on time."""


@dataclass(frozen=True)
class ArrivalMark:
    """Request of the first moments of the window; times in ns since the start of the window."""

    model: str
    at_ns: int
    due_ns: int | None
    """Deadline in ns; None: the model has no SLO."""
    ended_ns: int
    outcome: str
    """`on time`, `late`, `dropped` or `failed`."""


@dataclass(frozen=True)
class RunDetail:
    """Chart data of one run."""

    span_s: float
    """Length of a span of the window, in seconds."""
    workers: list[str]
    """Names of all workers, including those that ran nothing."""
    models: list[ModelDetail]
    arrivals: list[ArrivalMark]
    """Requests of the first moments, by arrival."""


@dataclass(frozen=True)
class RequestArrays:
    """Requests that arrived in the window, as arrays; times in ns since the start of the window."""

    models: Sequence[str]
    slos_ns: Sequence[int]
    model: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    at_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]


def detail_of(requests: RequestArrays, workers: Sequence[str], *, window_ns: int, until_ns: int) -> RunDetail:
    """Return the chart data of a run; arrivals of the window's first `until_ns` are kept individually.

    `workers`: names of all workers; `window_ns`: length of the window in ns.
    """
    span_ns = window_ns / TIME_SPANS
    models = [_model(requests, position, span_ns) for position in range(len(requests.models))]
    return RunDetail(span_ns / NS_PER_S, list(workers), models, _arrivals(requests, until_ns))


def _model(requests: RequestArrays, position: int, span_ns: float) -> ModelDetail:
    mine = requests.model == position
    outcome, at_ns = requests.outcome[mine], requests.at_ns[mine]
    answered_ns = requests.latency_ns[mine][(outcome == ANSWERED) | (outcome == LATE)]
    quantiles = np.quantile(answered_ns, np.linspace(0, 1, CURVE_POINTS + 1)) / NS_PER_MS if len(answered_ns) else []
    spans = np.minimum((at_ns / span_ns).astype(np.int64), TIME_SPANS - 1)
    slo_ns = requests.slos_ns[position]
    return ModelDetail(
        model=requests.models[position],
        slo_ms=None if slo_ns == NEVER_NS else slo_ns / NS_PER_MS,
        accepted=len(outcome),
        answered=len(answered_ns),
        latencies_ms=[round(float(value), 4) for value in quantiles],
        accepted_over_time=np.bincount(spans, minlength=TIME_SPANS).tolist(),
        on_time_over_time=np.bincount(spans[outcome == ANSWERED], minlength=TIME_SPANS).tolist(),
    )


def _arrivals(requests: RequestArrays, until_ns: int) -> list[ArrivalMark]:
    first = int(np.searchsorted(requests.at_ns, until_ns))
    columns = (requests.model, requests.outcome, requests.at_ns, requests.latency_ns)
    arrivals = []
    for model, outcome, at_ns, latency_ns in zip(*(column[:first].tolist() for column in columns), strict=True):
        slo_ns = requests.slos_ns[model]
        due_ns = None if slo_ns == NEVER_NS else at_ns + slo_ns
        arrivals.append(ArrivalMark(requests.models[model], at_ns, due_ns, at_ns + latency_ns, _in_words(outcome)))
    return arrivals


def _in_words(outcome: int) -> str:
    if outcome >= FIRST_DROP:
        return DROPPED
    return {ANSWERED: ON_TIME, LATE: ANSWERED_LATE}.get(outcome, FAILED_OUTRIGHT)
