"""Results of a run: a row for each model, a row for all models together, and the results of tenants."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NEVER_NS, NS_PER_MS, Setup
from tidegate.observation import ChangeProgressed
from tidegate.sim.chart_data import RequestArrays, RunDetail, detail_of
from tidegate.sim.record import ANSWERED, FAILED, FIRST_DROP, LATE, WAITING, RunRecord
from tidegate.workload import RequestSequence
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.tenants import RATE_LIMITED

TENANT_COLUMNS = (
    "policy",
    "seed",
    "tenant",
    "priority",
    "weight",
    "offered /s",
    "requests",
    "on time",
    "rate limited",
    "worker time",
)


@dataclass(frozen=True)
class TenantResult:
    """Results of one tenant. Counts cover requests that arrived in the window."""

    tenant: str
    priority: int
    weight: float
    requests: int
    offered_rps: float
    """Requests that arrived, per second of the window."""
    on_time: int
    rate_limited: int
    """Number of requests above its rate limit; the others were admitted."""
    attainment: float
    """Fraction of the admitted requests that was answered on time; 1 if there were none."""
    worker_s: float | None
    """Worker time in seconds, from the start of the warm-up on, each batch divided by rows. None: unknown."""
    worker_fraction: float | None
    """Fraction of the time of all workers in that period, until the end of the window."""


def tenant_results(
    record: RunRecord, requests: RequestSequence, start_ns: int, end_ns: int, workers: float
) -> list[TenantResult]:
    """Return the results of each tenant, in the order of the scenario; empty without tenants.

    `start_ns`, `end_ns`: the measured window. `workers`: mean number of workers.
    """
    tenancy = requests.tenancy
    if tenancy is None:
        return []
    tenant = np.array(tenancy.tenant, dtype=np.int64)
    outcome = np.frombuffer(record.outcome, dtype=np.uint8)
    measured = np.array(requests.at_ns, dtype=np.int64) >= start_ns
    limited = FIRST_DROP + record.reasons.index(RATE_LIMITED) if RATE_LIMITED in record.reasons else -1
    results, window_s = [], (end_ns - start_ns) / NS_PER_S
    for index, spec in enumerate(tenancy.specs):
        mine = outcome[measured & (tenant == index)]
        on_time, rejected = int((mine == ANSWERED).sum()), int((mine == limited).sum())
        admitted = len(mine) - rejected
        worker_s = record.tenant_ns[index] / 1e9
        results.append(
            TenantResult(
                spec.name,
                spec.priority,
                spec.weight,
                len(mine),
                round(len(mine) / window_s, FIGURE_DECIMALS),
                on_time,
                rejected,
                round(on_time / admitted, 6) if admitted else 1.0,
                round(worker_s, 6),
                round(worker_s / (end_ns / 1e9 * workers), 6),
            )
        )
    return results


def tenant_lines(results: "Sequence[RunResult]") -> list[list[str]]:
    """Return the cells of `TENANT_COLUMNS` for each run and tenant."""
    return [
        [
            result.total.policy,
            str(result.total.seed),
            each.tenant,
            str(each.priority),
            f"{each.weight:g}",
            f"{each.offered_rps:,.1f}",
            f"{each.requests:,}",
            f"{each.attainment:.2%}",
            f"{each.rate_limited:,}",
            "-" if each.worker_fraction is None else f"{each.worker_fraction:.1%}",
        ]
        for result in results
        for each in result.tenants
    ]


ALL_MODELS = "*"
"""Value of `model` in the row for all models."""
FIGURE_DECIMALS = 6
"""Decimals of figures: 1 ns in ms."""


@dataclass(frozen=True)
class ResultRow:
    """Results of one (policy, seed, model). Counts cover requests that arrived in the window, whenever they ended."""

    policy: str
    seed: int
    model: str
    """Name of the model; `*`: all models together."""
    rate_rps: float
    """Mean arrivals per second that the scenario specifies for all models together."""
    accepted: int
    answered: int
    """Number of answered requests, on time or late."""
    late: int
    dropped: dict[str, int]
    """Number of dropped requests, by reason."""
    failed: int
    stranded: int
    """Number of requests that were neither answered nor dropped when no event was left: the policy forgot them."""
    bad_rate: float
    """(late + dropped + failed + stranded) / accepted; 0 if nothing arrived."""
    worst_bad_rate: float
    """Miss rate of the worst model, which determines goodput; in the row of a model its own."""
    attainment: float
    """1 - bad_rate."""
    offered_rps: float
    """Requests that arrived, per second of the window."""
    goodput_rps: float
    """Requests answered on time, per second of the window."""
    p50_ms: float | None
    """Median latency of answered requests in ms; None if there are none."""
    p95_ms: float | None
    p99_ms: float | None
    mean_waiting_ms: float | None
    """Mean queueing time of answered requests in ms: latency without execution. None: unknown."""
    mean_executing_ms: float | None
    """Mean execution time of their batches in ms."""
    batches: int
    """Number of stages that started in the window; equal to batches if no model is split."""
    batch_rows: dict[str, int]
    """Number of these stages, by rows."""
    median_batch_rows: float | None
    mean_batch_rows: float | None
    busy_shares: dict[str, float]
    """Fraction of the window for which each worker ran this model, by worker name."""
    busy_share: float
    """Fraction of the workers' time for which they ran this model."""
    touched_workers: int | None
    """Number of workers that ran this model in the window. None: run live on a server that does not report it."""
    advice: dict[str, float] | None
    """`*` only: number of recommendations in the window, and the least, the most and the last number of workers."""
    lateness_p50_ms: float | None = None
    """Median delay of the load generator's requests in ms: sent minus scheduled. None: simulated."""
    lateness_p99_ms: float | None = None
    mean_workers: float | None = None
    """`*` only: mean number of workers (of `slots: auto`: slots) in the window. None: run live without an event log."""
    mean_gpus: float | None = None
    """`*` only: mean number of GPUs of the layout in the window, with fractions."""
    gap_p50_ms: float | None = None
    """Median over streams of the mean time between their responses (inter-token latency), in ms; None: no streams."""
    gap_p99_ms: float | None = None
    gap_attainment: float | None = None
    """Fraction of the streams whose mean gap is at most the SLO `slo_gap_ms`; None: no such SLO."""


@dataclass(frozen=True)
class StageBar:
    """A stage for a Gantt chart; times in seconds of the measured window."""

    worker: str
    model: str
    rows: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class WorkerAdvice:
    """Recommendation of a policy on the number of its workers, at one time."""

    at_s: float
    """Time in seconds since the start of the window."""
    workers: int
    """Number of additional workers; negative: number of workers to release."""
    reason: str


@dataclass(frozen=True)
class SimulatedLayoutChange:
    """State that a layout change reached (`ChangeProgressed`), with its time."""

    at_s: float
    """Time in seconds since the start of the window; negative in the warm-up."""
    change: int
    state: str
    starts: tuple[str, ...]
    stops: tuple[str, ...]
    gpus: float
    reason: str


@dataclass(frozen=True)
class RunResult:
    """Results of one run of one policy."""

    rows: list[ResultRow]
    """Row for all models together, then one for each model."""
    gantt: list[StageBar] = field(default_factory=list)
    """Stages of the first moments of the window."""
    advice: list[WorkerAdvice] = field(default_factory=list)
    """Recommendations on the number of workers in the window, in order."""
    changes: list[SimulatedLayoutChange] = field(default_factory=list)
    """Changes of the layout from the warm-up on, in order."""
    detail: RunDetail | None = None
    """Chart data, if requested."""
    tenants: list[TenantResult] = field(default_factory=list)
    """Results by tenant, in the order of the scenario; empty without tenants."""
    stopped_early: bool = False
    """Whether the run ended early because too many requests were bad: the counts are incomplete."""

    @property
    def total(self) -> ResultRow:
        """Results of all models together."""
        return self.rows[0]


def summarize(
    record: RunRecord,
    requests: RequestSequence,
    setup: Setup,
    *,
    policy: str,
    seed: int,
    rate_rps: float,
    warmup_s: float,
    duration_s: float,
    gantt_s: float = 0.0,
    gpus: float | None = None,
) -> RunResult:
    """Return the results of a run; with `gantt_s` also chart data and the stages of that many seconds.

    `policy`: label of the policy; `rate_rps`: rate of the scenario; `warmup_s`, `duration_s`: length of warm-up and
    window in seconds. `gpus`: number of GPUs of the initial layout; None: unknown.
    """
    books = _Books(record, requests, setup, round(warmup_s * NS_PER_S), round((warmup_s + duration_s) * NS_PER_S))
    names = (ALL_MODELS, *requests.models)
    advice = books.advice()
    figures = [books.figures(None if name == ALL_MODELS else position - 1) for position, name in enumerate(names)]
    worst = max(figure["bad_rate"] for figure in figures[1:])
    rows = [
        ResultRow(
            policy=policy,
            seed=seed,
            model=name,
            rate_rps=round(rate_rps, FIGURE_DECIMALS),
            worst_bad_rate=worst if name == ALL_MODELS else figure["bad_rate"],
            advice=_advice_in_short(advice) if name == ALL_MODELS else None,
            mean_workers=None if name != ALL_MODELS or gpus is None else _rounded(books.mean_workers),
            mean_gpus=None if name != ALL_MODELS or gpus is None else _rounded(books.mean_gpus(gpus)),
            **figure,
        )
        for name, figure in zip(names, figures, strict=True)
    ]
    detail = books.detail(gantt_s, requests.slos_ns) if gantt_s else None
    end_ns = round((warmup_s + duration_s) * NS_PER_S)
    tenants = tenant_results(record, requests, round(warmup_s * NS_PER_S), end_ns, books.mean_workers)
    return RunResult(
        rows, books.gantt(gantt_s), advice, books.changes(), detail, tenants, stopped_early=record.hopeless
    )


class _Books:
    """A record as arrays, cut to the measured window."""

    def __init__(self, record: RunRecord, requests: RequestSequence, setup: Setup, start_ns: int, end_ns: int) -> None:
        self._record = record
        self._models = requests.models
        first = {worker.id: worker.name for worker in setup.workers}
        self._workers = first | dict(sorted(record.joined_workers.items()))
        self._start_ns, self._end_ns = start_ns, end_ns
        self.mean_workers = self._mean_of(
            len(first),
            [(change.now_ns, len(change.starts) - len(change.stops)) for change in self._switches()]
            + record.slot_changes,
        )
        """How many workers there were in the window: of `slots: auto`, the mean limit."""
        at_ns = _numbers(requests.at_ns)
        measured = at_ns >= start_ns
        self._model = _numbers(requests.model)[measured]
        self._outcome = np.frombuffer(record.outcome, dtype=np.uint8)[measured]
        self._at_ns = at_ns[measured] - start_ns
        self._latency_ns = (_numbers(record.ended_ns) - at_ns)[measured]
        self._gap_ns: NDArray[np.float64] | None = None
        """Mean gap of each stream, in ns; below 0: it has one response, or none."""
        if record.last_ns is not None and requests.responses is not None:
            more = _numbers(requests.responses)[measured] - 1
            rest_ns = (_numbers(record.last_ns) - _numbers(record.ended_ns))[measured]
            self._gap_ns = np.where(more > 0, rest_ns / np.maximum(more, 1), -1.0)
            self._slo_gap_ns = np.array(requests.slos_gap_ns, dtype=np.int64)[self._model]
        self._stage_worker, self._stage_model = _numbers(record.stage_worker), _numbers(record.stage_model)
        self._stage_rows = _numbers(record.stage_rows)
        self._stage_start, self._stage_end = _numbers(record.stage_started_ns), _numbers(record.stage_ended_ns)

    def figures(self, model: int | None) -> dict[str, Any]:
        """Every field of a row that concerns requests and stages."""
        mine = slice(None) if model is None else self._model == model
        outcome = self._outcome[mine]
        ended = Counter(dict(zip(*(x.tolist() for x in np.unique(outcome, return_counts=True)), strict=True)))
        window_s = (self._end_ns - self._start_ns) / NS_PER_S
        on_time, accepted = ended[ANSWERED], len(outcome)
        bad = accepted - on_time
        latencies_ns = self._latency_ns[mine][(outcome == ANSWERED) | (outcome == LATE)]
        quantiles = (
            (np.percentile(latencies_ns, [50, 95, 99]) / NS_PER_MS).tolist() if len(latencies_ns) else [None] * 3
        )
        return {
            "accepted": accepted,
            "answered": on_time + ended[LATE],
            "late": ended[LATE],
            "dropped": {
                reason: ended[code] for code, reason in enumerate(self._record.reasons, FIRST_DROP) if ended[code]
            },
            "failed": ended[FAILED],
            "stranded": ended[WAITING],
            "bad_rate": round(bad / accepted, FIGURE_DECIMALS) if accepted else 0.0,
            "attainment": round(on_time / accepted, FIGURE_DECIMALS) if accepted else 1.0,
            "offered_rps": round(accepted / window_s, FIGURE_DECIMALS),
            "goodput_rps": round(on_time / window_s, FIGURE_DECIMALS),
            **dict(zip(("p50_ms", "p95_ms", "p99_ms"), map(_rounded, quantiles), strict=True)),
            **self._gaps(mine, outcome),
            **self._waits(model),
            **self._stages(model, window_s),
        }

    def _gaps(self, mine: Any, outcome: NDArray[np.uint8]) -> dict[str, float | None]:  # noqa: ANN401 - an index
        """The gaps between the responses of streams that were answered."""
        if self._gap_ns is None:
            return {}
        streams = ((outcome == ANSWERED) | (outcome == LATE)) & (self._gap_ns[mine] >= 0)
        gaps_ns, slos_ns = self._gap_ns[mine][streams], self._slo_gap_ns[mine][streams]
        if not len(gaps_ns):
            return {}
        p50_ms, p99_ms = (np.percentile(gaps_ns, [50, 99]) / NS_PER_MS).tolist()
        limited = slos_ns < NEVER_NS
        met = float(np.mean(gaps_ns[limited] <= slos_ns[limited])) if limited.any() else None
        return {"gap_p50_ms": _rounded(p50_ms), "gap_p99_ms": _rounded(p99_ms), "gap_attainment": _rounded(met)}

    def _waits(self, model: int | None) -> dict[str, float | None]:
        """The time of the answered, in two parts."""
        mine = self._record.waited if model is None else [self._record.waited[model]]
        count = sum(each.count for each in mine) or None
        waiting_ns, executing_ns = sum(each.waiting_ns for each in mine), sum(each.executing_ns for each in mine)
        return {
            "mean_waiting_ms": count and _rounded(waiting_ns / NS_PER_MS / count),
            "mean_executing_ms": count and _rounded(executing_ns / NS_PER_MS / count),
        }

    def _stages(self, model: int | None, window_s: float) -> dict[str, Any]:
        mine = (self._stage_end > self._start_ns) & (self._stage_start < self._end_ns)
        if model is not None:
            mine &= self._stage_model == model
        started = mine & (self._stage_start >= self._start_ns)
        rows = self._stage_rows[started]
        sizes, counts = (x.tolist() for x in np.unique(rows, return_counts=True))
        ran_ns = np.minimum(self._stage_end, self._end_ns) - np.maximum(self._stage_start, self._start_ns)
        ids = np.array(list(self._workers), dtype=np.int64)
        busy_ns = np.bincount(
            np.searchsorted(ids, self._stage_worker[mine]), weights=ran_ns[mine], minlength=len(ids)
        ).tolist()
        shares = {
            name: min(1.0, round(busy / NS_PER_S / window_s, FIGURE_DECIMALS))
            for name, busy in zip(self._workers.values(), busy_ns, strict=True)
        }
        return {
            "batches": len(rows),
            "batch_rows": dict(zip(map(str, sizes), counts, strict=True)),
            "median_batch_rows": float(np.median(rows)) if len(rows) else None,
            "mean_batch_rows": _rounded(float(np.mean(rows))) if len(rows) else None,
            "busy_shares": shares,
            "busy_share": min(1.0, round(sum(busy_ns) / NS_PER_S / window_s / self.mean_workers, FIGURE_DECIMALS)),
            "touched_workers": len(np.unique(self._stage_worker[mine])),
        }

    def advice(self) -> list[WorkerAdvice]:
        """Return the recommendations on the number of workers in the window."""
        return [
            WorkerAdvice((at_ns - self._start_ns) / NS_PER_S, advice.workers, advice.reason)
            for at_ns, advice in self._record.advice
            if self._start_ns <= at_ns < self._end_ns
        ]

    def changes(self) -> list[SimulatedLayoutChange]:
        """Return the changes of the layout."""
        return [
            SimulatedLayoutChange(
                (its.now_ns - self._start_ns) / NS_PER_S,
                its.change,
                its.state,
                its.starts,
                its.stops,
                round(its.gpus, FIGURE_DECIMALS),
                its.reason,
            )
            for its in self._record.changes
        ]

    def mean_gpus(self, first: float) -> float:
        """Return the mean number of GPUs of the layout in the window; `first`: at the start."""
        gpus, steps = first, []
        for change in self._switches():
            steps.append((change.now_ns, change.gpus - gpus))
            gpus = change.gpus
        return self._mean_of(first, steps)

    def _switches(self) -> list[ChangeProgressed]:
        return [change for change in self._record.changes if change.state == "switched"]

    def _mean_of(self, first: float, steps: Sequence[tuple[int, float]]) -> float:
        """The mean over the window of what began with `first` and grew at instants by so much."""
        window_ns = self._end_ns - self._start_ns
        return first + sum(more * min(window_ns, max(0, self._end_ns - at_ns)) / window_ns for at_ns, more in steps)

    def detail(self, seconds: float, slos_ns: Sequence[int]) -> RunDetail:
        """The distributions, and the requests of the first seconds of the window."""
        requests = RequestArrays(self._models, slos_ns, self._model, self._outcome, self._at_ns, self._latency_ns)
        window_ns = self._end_ns - self._start_ns
        return detail_of(
            requests, list(self._workers.values()), window_ns=window_ns, until_ns=round(seconds * NS_PER_S)
        )

    def gantt(self, seconds: float) -> list[StageBar]:
        """The stages that ran in the first seconds of the window, in the order of their end."""
        until_ns = self._start_ns + seconds * NS_PER_S
        seen = np.flatnonzero((self._stage_end > self._start_ns) & (self._stage_start < until_ns))
        return [
            StageBar(
                worker=self._workers[int(self._stage_worker[stage])],
                model=self._models[int(self._stage_model[stage])],
                rows=int(self._stage_rows[stage]),
                start_s=(int(self._stage_start[stage]) - self._start_ns) / NS_PER_S,
                end_s=(int(self._stage_end[stage]) - self._start_ns) / NS_PER_S,
            )
            for stage in (seen if seconds else [])
        ]


def _advice_in_short(advice: list[WorkerAdvice]) -> dict[str, float]:
    workers = [each.workers for each in advice]
    if not workers:
        return {"count": 0}
    return {"count": len(workers), "least": min(workers), "most": max(workers), "last": workers[-1]}


def _numbers(values: "Any") -> NDArray[np.int64]:  # noqa: ANN401 - an array.array of any integer type
    return np.array(values, dtype=np.int64)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, FIGURE_DECIMALS)
