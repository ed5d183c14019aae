"""SLO evaluation of a live run, in the columns of a simulated one and summarized by the same code."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from tidegate.api import NS_PER_MS, Advise, Batch, Request
from tidegate.control.capacity import gpus_of
from tidegate.observation import ChangeProgressed, OutcomeListener, Reducer, StartStage, TopologyChanged, read_log
from tidegate.sim import result as figures
from tidegate.sim.build import setup_of
from tidegate.sim.record import ANSWERED, LATE, RunRecord
from tidegate.sim.result import ALL_MODELS, FIGURE_DECIMALS, ResultRow
from tidegate.workload import RequestSequence, Scenario, layout_of, mean_rate_rps
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.scenario_file import SERVERS_OWN
from tidegate_loadtest.live import LiveObservations
from tidegate_loadtest.result import CLIENT_TIMEOUT, DROP_STATUSES, OK_STATUS
from tidegate_loadtest.server_stats import ServerUsage


def judge(
    scenario: Scenario,
    requests: RequestSequence,
    seen: LiveObservations,
    *,
    policy: str,
    seed: int,
    event_log: Path | None,
    gantt_s: float = 0.0,
    load: float = 1.0,
) -> figures.RunResult:
    """Return the rows of a run. A request is on time by the client's clock, from its scheduled arrival.

    Batches come from the proxy's event log; without one, from the server's statistics, which have their sizes but not
    the worker of each. A request that the client abandoned is `stranded`. `load`: factor on the scenario's rate.
    `seen`: observations of the clients; `event_log`: that of the proxy, or None; `gantt_s`: see `LiveRun`. `policy`:
    its label in results.
    """
    warmup_ns = round(scenario.warmup_s * NS_PER_S)
    if requests.responses is not None:
        counts = array("q", requests.responses)
        for request_id, (_, count) in seen.run.streams.items():
            counts[request_id] = count
        requests = replace(requests, responses=counts)
    if requests.tenancy is not None:  # the server decides what exceeds a rate limit
        requests = replace(requests, tenancy=replace(requests.tenancy, rejected=frozenset()))
    record = RunRecord(requests, measured_from_ns=warmup_ns)
    origin_ns = seen.run.began_ns - warmup_ns
    _note_ends(record, requests, seen, warmup_ns)
    if event_log is not None:
        _note_stages(record, requests, event_log, origin_ns)
    result = figures.summarize(
        record,
        requests,
        setup_of(scenario, seed),
        policy=policy,
        seed=seed,
        rate_rps=mean_rate_rps(scenario, load),
        warmup_s=scenario.warmup_s,
        duration_s=scenario.duration_s,
        gantt_s=gantt_s,
        gpus=gpus_of(layout_of(scenario)) if event_log is not None else None,
    )
    rows = [_with_lateness(row, requests, seen) for row in result.rows]
    if event_log is None:
        is_known = all(pool.gpu != SERVERS_OWN for pool in scenario.workers)
        workers = len(layout_of(scenario).workers) if is_known else None
        rows = [_with_usage(row, requests, seen, workers, scenario.duration_s) for row in rows]
        result = replace(
            result, tenants=[replace(each, worker_s=None, worker_fraction=None) for each in result.tenants]
        )
    return replace(result, rows=rows)


def _note_ends(record: RunRecord, requests: RequestSequence, seen: LiveObservations, warmup_ns: int) -> None:
    """How each request of the window ended; the ones before it count for nothing."""
    run = seen.run
    rows = zip(run.status.tolist(), run.finished_ns.tolist(), run.latency_ns.tolist(), strict=True)
    for request_id, (status, finished_ns, latency_ns) in enumerate(rows, seen.first):
        ended_ns = finished_ns + warmup_ns
        if status == OK_STATUS:
            on_time = latency_ns <= requests.slos_ns[requests.model[request_id]]
            record.ended_ns[request_id] = ended_ns
            record.outcome[request_id] = ANSWERED if on_time else LATE
            if record.last_ns is not None:
                last_ns, _ = run.streams.get(request_id, (finished_ns, 1))
                record.last_ns[request_id] = last_ns + warmup_ns
        elif status in DROP_STATUSES.values():
            record.drop(request_id, ended_ns, status)
        elif status != CLIENT_TIMEOUT:
            record.fail(request_id, ended_ns)


def _note_stages(record: RunRecord, requests: RequestSequence, event_log: Path, origin_ns: int) -> None:
    """Add stages, worker recommendations and layout changes to the results."""
    tenants = [spec.name for spec in requests.tenancy.specs] if requests.tenancy else []
    reducer = Reducer()
    reducer.add_listener(_Stages(record, origin_ns, reducer.open, tenants))
    with event_log.open("rb") as lines:
        _header, entries = read_log(lines)
        for entry in entries:
            reducer.handled(entry.event, entry.effects)
            if isinstance(entry.event, TopologyChanged):
                record.joined_workers |= {worker.id: worker.name for worker in entry.event.workers}


class _Stages(OutcomeListener):
    """Enters in a record what an event log tells of stages, advice and changes; how requests end is the clients' to
    say.

    The log's instants are of the clock that `origin_ns` is of.
    """

    def __init__(
        self, record: RunRecord, origin_ns: int, open_requests: Mapping[int, Request], tenants: Sequence[str]
    ) -> None:
        self._record = record
        self._origin_ns = origin_ns
        self._open = open_requests
        self._tenants = {name: index for index, name in enumerate(tenants)}

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        started_ns, ended_ns = started_ns - self._origin_ns, ended_ns - self._origin_ns
        self._record.note_stage(effect, started_ns, ended_ns)
        if self._tenants:
            requests = [self._open[each] for each in effect.batch.request_ids if each in self._open]
            shares = [(self._tenants.get(request.tenant, -1), request.rows) for request in requests]
            self._record.divide_stage(effect, started_ns, ended_ns, shares)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        arrivals_ns = [request.arrival_ns - self._origin_ns for request in requests]
        self._record.note_waits(batch, arrivals_ns, ended_ns - self._origin_ns)

    def advised(self, now_ns: int, advice: Advise) -> None:
        self._record.advised(now_ns - self._origin_ns, advice)

    def change_progressed(self, event: ChangeProgressed) -> None:
        self._record.change_progressed(msgspec.structs.replace(event, now_ns=event.now_ns - self._origin_ns))


def _with_lateness(row: ResultRow, requests: RequestSequence, seen: LiveObservations) -> ResultRow:
    lateness_ns = seen.run.lateness_ns
    if row.model != ALL_MODELS:
        of_model = np.array(requests.model[seen.first :]) == requests.models.index(row.model)
        lateness_ns = lateness_ns[of_model]
    if not len(lateness_ns):
        return row
    p50_ms, p99_ms = (round(float(ns) / NS_PER_MS, FIGURE_DECIMALS) for ns in np.percentile(lateness_ns, [50, 99]))
    return replace(row, lateness_p50_ms=p50_ms, lateness_p99_ms=p99_ms)


def _with_usage(
    row: ResultRow, requests: RequestSequence, seen: LiveObservations, workers: int | None, window_s: float
) -> ResultRow:
    """Return the row with the batches as the server counted them, and the busy share of all workers together.

    `workers`: their number; None: the instances of the models.

    What its requests did not execute they waited, or were on their way.
    """
    usages = [usage for model, usage in seen.usage.items() if row.model in (ALL_MODELS, model)]
    sizes = _sizes(usages)
    waiting_ms, executing_ms = _waits(row, requests, seen)
    if not len(sizes):
        return replace(row, busy_shares={}, touched_workers=None)
    busy_ns = sum(usage.busy_ns for usage in usages)
    instances = workers or sum(usage.instances for usage in usages)
    share = min(1.0, round(busy_ns / NS_PER_S / window_s / instances, FIGURE_DECIMALS))
    found, counts = (x.tolist() for x in np.unique(sizes, return_counts=True))
    return replace(
        row,
        batches=len(sizes),
        batch_rows=dict(zip(map(str, found), counts, strict=True)),
        median_batch_rows=float(np.median(sizes)),
        mean_batch_rows=round(float(np.mean(sizes)), FIGURE_DECIMALS),
        busy_shares={"all workers": share},
        busy_share=share,
        touched_workers=None,
        mean_waiting_ms=waiting_ms,
        mean_executing_ms=executing_ms,
    )


def _waits(row: ResultRow, requests: RequestSequence, seen: LiveObservations) -> tuple[float | None, float | None]:
    """The time of the answered in two parts: the rest of what clients saw, and executing by the server's word."""
    of_model = np.array(requests.model[seen.first :])
    latency_ms = executing_ms = 0.0
    answered = 0
    for model, usage in seen.usage.items():
        if row.model in (ALL_MODELS, model) and usage.mean_executing_ms is not None:
            mine = seen.run.ok & (of_model == requests.models.index(model))
            count = int(np.count_nonzero(mine))
            answered += count
            latency_ms += float(np.sum(seen.run.latency_ns[mine])) / NS_PER_MS
            executing_ms += usage.mean_executing_ms * count
    if not answered:
        return None, None
    waiting_ms = max(0.0, latency_ms - executing_ms)
    return round(waiting_ms / answered, FIGURE_DECIMALS), round(executing_ms / answered, FIGURE_DECIMALS)


def _sizes(usages: Iterable[ServerUsage]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The rows of every batch."""
    return np.array(
        [rows for usage in usages for rows, count in usage.executions_of.items() for _ in range(count)], np.int64
    )
