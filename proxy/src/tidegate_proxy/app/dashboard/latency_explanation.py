"""Explanation of a request's latency, in sentences and as parts: why it was late, dropped or barely on time."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tidegate.api import NEVER_NS, NS_PER_MS, Request
from tidegate_proxy.app.dashboard.request_facts import RanStage, RequestFacts
from tidegate_proxy.app.dashboard.snapshot import cut

MAX_BATCH_COMPANIONS: Final = 50
"""Number of requests of its batch that are listed."""
MIN_PREDICTION_ERROR: Final = 0.1
"""Relative error of a predicted latency above which the explanation mentions it."""


OVERSLEPT_NS: Final = 10 * NS_PER_MS
"""Delay of a timer from which it is mentioned."""


class LatencyPart(msgspec.Struct, frozen=True):
    """Part of a request's latency."""

    what: str
    """Name: `batch`: until its batch was formed; `worker`: until it ran; `ran`: as predicted; `longer`: beyond that."""
    ms: float


class BatchCompanion(msgspec.Struct, frozen=True):
    """Request of the same batch."""

    id: int
    rows: int
    waited_ms: float
    """Time from its arrival to the start of the batch."""


class StageFigures(msgspec.Struct, frozen=True):
    """A stage of the request's batch, as predicted and as measured; instants in ms since the arrival of the request."""

    partition: str
    worker: str
    rows: int
    planned_start_ms: float
    start_ms: float
    upper_ms: float
    took_ms: float


class StepLine(msgspec.Struct, frozen=True):
    """Step of the request's timeline; instants since its arrival."""

    at_ms: float
    what: str
    text: str


class LatencyExplanation(msgspec.Struct, frozen=True):
    """Timeline of one request, with the explanation of its latency."""

    id: int
    model: str
    shape: str
    app: str
    rows: int
    arrived_ms: float
    """Arrival in milliseconds since the source's beginning."""
    outcome: str
    """Outcome by its name in timelines; empty while the request has not ended."""
    latency_ms: float | None
    due_ms: float | None
    """Deadline since its arrival; None: it has none."""
    verdict: str
    """Two or three sentences that explain the outcome."""
    wrong: str
    """The prediction that was wrong, and by how much; empty: none."""
    parts: list[LatencyPart]
    batch: int | None
    batch_rows: int
    companions: list[BatchCompanion]
    more_companions: int
    stages: list[StageFigures]
    meanwhile: list[tuple[str, int, float]]
    """Work of its workers while it was queued: model, batches, milliseconds; the longest first."""
    steps: list[StepLine]


def explain(facts: RequestFacts, names: Mapping[int, str], ms: Callable[[int], float]) -> LatencyExplanation | None:
    """Explain a request whose arrival is among the facts; return None for others.

    `names`: of workers, by id; `ms`: converts instants to dashboard time.
    """
    request = facts.request
    if request is None:
        return None

    def since(at_ns: int) -> float:
        return round((at_ns - request.arrival_ns) / NS_PER_MS, 3)

    timeline = facts.timeline
    began_ns = facts.sent_ns
    companions = [
        BatchCompanion(
            each.id,
            each.rows,
            round(((facts.now_ns if began_ns is None else began_ns) - each.arrival_ns) / NS_PER_MS, 3),
        )
        for each in facts.companions
        if each.id != request.id
    ]
    meanwhile = [(cut(model), batches, round(ns / NS_PER_MS, 3)) for model, (batches, ns) in facts.meanwhile.items()]
    return LatencyExplanation(
        id=request.id,
        model=cut(request.model),
        shape=cut(request.shape),
        app=cut(request.app),
        rows=request.rows,
        arrived_ms=ms(request.arrival_ns),
        outcome=facts.outcome,
        latency_ms=None if facts.ended_ns is None else since(facts.ended_ns),
        due_ms=None if request.deadline_ns == NEVER_NS else since(request.deadline_ns),
        verdict=_verdict(facts, request, names),
        wrong=_wrong(facts, names),
        parts=_parts(facts, request),
        batch=facts.batch.id if facts.batch else None,
        batch_rows=facts.rows,
        companions=companions[:MAX_BATCH_COMPANIONS],
        more_companions=max(0, len(companions) - MAX_BATCH_COMPANIONS),
        stages=[
            StageFigures(
                cut(stage.partition),
                cut(names.get(stage.worker_id, str(stage.worker_id))),
                stage.rows,
                since(stage.planned_start_ns),
                since(stage.started_ns),
                round(stage.upper_ns / NS_PER_MS, 3),
                round(stage.took_ns / NS_PER_MS, 3),
            )
            for stage in facts.stages
        ],
        meanwhile=sorted(meanwhile, key=lambda each: -each[2]),
        steps=[StepLine(since(step.at_ns), step.what, cut(step.text)) for step in timeline.steps] if timeline else [],
    )


def _parts(facts: RequestFacts, request: Request) -> list[LatencyPart]:
    """They add up to the latency so far."""
    end_ns = facts.end_ns
    formed_ns = end_ns if facts.dispatched_ns is None else min(facts.dispatched_ns, end_ns)
    ran_ns = sum(stage.took_ns for stage in facts.stages)
    longer_ns = sum(max(0, stage.overran_ns) for stage in facts.stages)
    parts_ns = {
        "batch": formed_ns - request.arrival_ns,
        "worker": max(0, end_ns - formed_ns - ran_ns),
        "ran": ran_ns - longer_ns,
        "longer": longer_ns,
    }
    return [LatencyPart(what, round(ns / NS_PER_MS, 3)) for what, ns in parts_ns.items() if ns > 0]


def _verdict(facts: RequestFacts, request: Request, names: Mapping[int, str]) -> str:
    waited_ns = (facts.end_ns if facts.dispatched_ns is None else facts.dispatched_ns) - request.arrival_ns
    so_far_ns = facts.end_ns - request.arrival_ns
    if facts.outcome == "on time":
        return _on_time(facts, request, waited_ns)
    if facts.outcome == "late":
        return _late(facts, request, waited_ns, names) + _woke_late(facts)
    if facts.outcome == "dropped":
        return _dropped(facts, request, waited_ns) + _woke_late(facts)
    if facts.outcome == "failed":
        sentence = f"It failed after {_duration(so_far_ns)}: {facts.reason}."
    elif facts.outcome == "cancelled":
        sentence = f"Its client left after {_duration(so_far_ns)}."
    elif facts.dispatched_ns is None:
        sentence = f"It has not ended: it has waited for {_duration(so_far_ns)}."
    else:
        sentence = f"It has not ended: its batch was formed after {_duration(waited_ns)}, and has not been answered."
    return sentence


def _on_time(facts: RequestFacts, request: Request, waited_ns: int) -> str:
    spare = (
        "it had no deadline"
        if request.deadline_ns == NEVER_NS
        else f"{_duration(request.deadline_ns - facts.end_ns)} to spare"
    )
    return f"In time, with {spare}. It waited {_duration(waited_ns)} until its batch was formed{_company(facts)}."


def _late(facts: RequestFacts, request: Request, waited_ns: int, names: Mapping[int, str]) -> str:
    head = f"Late by {_duration(facts.end_ns - request.deadline_ns)}."
    if facts.planned_end_ns is None:
        return head
    spare_ns = request.deadline_ns - facts.planned_end_ns
    if spare_ns < 0:
        already = (
            f"It could not be on time any more when its batch was formed, {_duration(waited_ns)} after its arrival"
        )
        return f"{head} {already}: the batch was expected to end {_duration(-spare_ns)} too late.{_busy(facts)}"
    promise = (
        f"When its batch was formed, after {_duration(waited_ns)}, it was expected to end {_duration(spare_ns)} early"
    )
    causes = []
    overran_ns = sum(stage.overran_ns for stage in facts.stages)
    if overran_ns > 0:
        causes.append(f"it ran {_duration(overran_ns)} longer than planned")
    if facts.stages and (delay_ns := facts.stages[0].started_ns - facts.stages[0].planned_start_ns) > 0:
        causes.append(f"it began {_duration(delay_ns)} later than planned{_in_the_way(facts, names)}")
    if len(facts.stages) > 1:
        causes.append("it passed through several workers")
    return f"{head} {promise}: {', and '.join(causes) or 'its answer came back later'}."


def _dropped(facts: RequestFacts, request: Request, waited_ns: int) -> str:
    head = f"Given up after {_duration(waited_ns)} ({facts.reason})"
    if request.deadline_ns == NEVER_NS:
        return f"{head}.{_busy(facts)}"
    left_ns = request.deadline_ns - facts.end_ns
    left = f"{_duration(left_ns)} were left until its deadline, in which it could not be answered"
    return f"{head}: {left if left_ns > 0 else 'its deadline had passed'}.{_busy(facts)}"


def _busy(facts: RequestFacts) -> str:
    """Return what its workers ran while it waited."""
    if not facts.meanwhile or facts.request is None:
        return ""
    batches = sum(count for count, _ in facts.meanwhile.values())
    others = sum(count for model, (count, _) in facts.meanwhile.items() if model != facts.request.model)
    of_others = "" if not others else " of other models" if others == batches else f", {others} of them of other models"
    return f" While it waited its workers ran {batches} batch{'es' * (batches > 1)}{of_others}."


def _woke_late(facts: RequestFacts) -> str:
    if facts.woke_late_ns < OVERSLEPT_NS:
        return ""
    return f" Meanwhile Tidegate woke up {_duration(facts.woke_late_ns)} late: its machine was busy, or stood still."


def _company(facts: RequestFacts) -> str:
    others = len(facts.companions) - 1
    return f" with {others} other{'s' * (others > 1)}" if others > 0 else ", and ran alone"


def _in_the_way(facts: RequestFacts, names: Mapping[int, str]) -> str:
    before = facts.before
    if before is None or before.overran_ns <= 0:
        return ""
    where = cut(names.get(before.worker_id, str(before.worker_id)))
    return (
        f", as batch {facts.before_batch} before it on {where} ran {_duration(before.overran_ns)} longer than planned"
    )


def _wrong(facts: RequestFacts, names: Mapping[int, str]) -> str:
    """The expectation that was furthest from the truth, of its own batch or of that which ran before it."""
    stages = [(stage, "its batch") for stage in facts.stages]
    if facts.before is not None and facts.stages and facts.stages[0].started_ns > facts.stages[0].planned_start_ns:
        stages.append((facts.before, f"batch {facts.before_batch} before it"))
    worst: tuple[RanStage, str] | None = max(stages, key=lambda each: each[0].overran_ns, default=None)
    if worst is None or worst[0].overran_ns < MIN_PREDICTION_ERROR * worst[0].upper_ns:
        return ""
    stage, whose = worst
    rows = f"{stage.rows} row{'s' * (stage.rows > 1)}"
    where = cut(names.get(stage.worker_id, str(stage.worker_id)))
    more = stage.overran_ns / stage.upper_ns
    return (
        f"{cut(stage.partition)} with {rows} on {where} ({whose}): planned {_duration(stage.upper_ns)}, took "
        f"{_duration(stage.took_ns)}, {more:.0%} more"
    )


def _duration(ns: int) -> str:
    """A duration, for people."""
    milliseconds = abs(ns) / NS_PER_MS
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.1f} ms" if milliseconds >= 1 else f"{milliseconds:.2f} ms"
