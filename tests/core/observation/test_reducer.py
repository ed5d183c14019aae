"""The fold of the stream: what is told of requests and stages, whatever came between."""

import io
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.engine.worlds import Ledger, run, with_other_plans, world
from tests.examples import examples
from tidegate.api import (
    Advise,
    Batch,
    BatchFailed,
    Drop,
    PolicySpec,
    Request,
    RequestArrived,
    RequestCancelled,
    Stage,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, AnyStimulus, ClockAdvanced, EngineRestarted, Fail, StartStage, TopologyChanged
from tidegate.host import Plugins
from tidegate.observation import OutcomeCounts, OutcomeListener, Recorder, Reducer, read_log

PLUGINS = Plugins.installed()


class Told(OutcomeListener):
    """Keeps what it is told, in short."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        self.said.append(("joined", effect.batch.id, [request.id for request in requests], now_ns))

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        self.said.append(("ran", effect.batch.id, effect.stage, started_ns, ended_ns))

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        self.said.append(("answered", batch.id, [request.id for request in requests], ended_ns))

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        self.said.append(("dropped", request.id, reason))

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        self.said.append(("failed", request.id, reason))

    def cancelled(self, now_ns: int, request: Request) -> None:
        self.said.append(("cancelled", request.id))

    def advised(self, now_ns: int, advice: Advise) -> None:
        self.said.append(("advised", advice.workers))


def arrived(request_id: int, now_ns: int = 0, due_ns: int = 100) -> RequestArrived:
    return RequestArrived(now_ns, Request(request_id, "m", 1, now_ns, due_ns))


def start(batch_id: int, *request_ids: int, workers: tuple[int, ...] = (0,), stage: int = 0) -> StartStage:
    stages = tuple(Stage(worker, "m", 0, 10) for worker in workers)
    return StartStage(Batch(batch_id, "m", request_ids, stages), stage, len(request_ids))


def finished(batch_id: int, started_ns: int, ended_ns: int, worker: int = 0, stage: int = 0) -> StageFinished:
    return StageFinished(ended_ns, batch_id, stage, worker, started_ns, ended_ns)


Step = AnyStimulus | AnyEffect


def fold(*steps: Step) -> tuple[Reducer, list[tuple[object, ...]]]:
    """Stimuli, each followed by the effects that it had."""
    told = Told()
    reducer = Reducer(told)
    entries: list[tuple[AnyStimulus, list[AnyEffect]]] = []
    for step in steps:
        if hasattr(step, "now_ns"):
            entries.append((step, []))  # type: ignore[arg-type]
        else:
            entries[-1][1].append(step)
    for event, effects in entries:
        reducer.handled(event, effects)
    return reducer, told.said


def test_a_batch_from_arrival_to_answer() -> None:
    reducer, said = fold(arrived(0), arrived(1, 1, due_ns=20), ClockAdvanced(5), start(7, 0, 1), finished(7, 5, 25))
    assert said == [("joined", 7, [0, 1], 5), ("ran", 7, 0, 5, 25), ("answered", 7, [0, 1], 25)]
    assert reducer.tally == OutcomeCounts(accepted=2, answered=2, late=1)
    assert not reducer.open
    assert not reducer.sent


def test_only_the_last_stage_answers() -> None:
    between: list[Step] = [arrived(0), start(7, 0, workers=(0, 1)), finished(7, 0, 5)]
    reducer, said = fold(*between)
    assert (said[1:], reducer.tally.answered) == ([("ran", 7, 0, 0, 5)], 0)
    reducer, said = fold(*between, start(7, 0, workers=(0, 1), stage=1), finished(7, 5, 9, worker=1, stage=1))
    assert said[2:] == [("ran", 7, 1, 5, 9), ("answered", 7, [0], 9)]


def test_every_other_way_to_end() -> None:
    reducer, said = fold(
        *(arrived(number) for number in range(5)),
        start(0, 2, 3),
        RequestCancelled(1, 0),
        Drop(1, "deadline_unreachable"),
        Advise(-1),
        RequestCancelled(2, 3),
        BatchFailed(4, 0, 0, 0, "broken"),
        Fail(2, "broken"),
        RequestCancelled(5, 2),
    )
    assert said == [
        ("joined", 0, [2, 3], 0),
        ("cancelled", 0),
        ("dropped", 1, "deadline_unreachable"),
        ("advised", -1),
        ("cancelled", 3),
        ("ran", 0, 0, 0, 4),
        ("failed", 2, "broken"),
    ]
    assert reducer.tally == OutcomeCounts(accepted=5, failed=1, cancelled=2, dropped=Counter(deadline_unreachable=1))
    assert (
        str(reducer.tally)
        == "accepted 5, answered 0 (late 0), failed 1, cancelled 2, dropped 1 (deadline_unreachable 1)"
    )
    assert list(reducer.open) == [4]


def test_a_stage_runs_when_the_one_before_it_has_ended() -> None:
    """It was sent at 5, while another ran until 9."""
    _, said = fold(arrived(0), start(0, 0), arrived(1, 5), start(1, 1), finished(0, 0, 9), finished(1, 5, 12))
    assert [entry for entry in said if entry[0] == "ran"] == [("ran", 0, 0, 0, 9), ("ran", 1, 0, 9, 12)]


@pytest.mark.parametrize(
    ("ends", "ran"),
    [
        (BatchFailed(7, 1, 0, 0, "preempted", retry=True), []),  # it waited behind the other
        (BatchFailed(7, 0, 0, 0, "preempted", retry=True), [("ran", 0, 0, 0, 7)]),
        (WorkerLost(7, 0), [("ran", 0, 0, 0, 7)]),
        (WorkerJoined(7, Worker(0, "w", ("m",))), [("ran", 0, 0, 0, 7)]),
        (WorkerLost(7, 1), []),
    ],
    ids=["preempted before it ran", "preempted", "lost", "back", "another lost"],
)
def test_what_never_ran_is_not_told(ends: AnyStimulus, ran: list[object]) -> None:
    before: list[Step] = [arrived(0), start(0, 0), arrived(1, 5), start(1, 1)]
    _, said = fold(*before, ends)
    assert [entry for entry in said if entry[0] == "ran"] == ran


def test_a_straggler_of_a_lost_worker_answers_no_request() -> None:
    reducer, said = fold(arrived(0), start(0, 0), WorkerLost(5, 0), finished(0, 0, 9))
    assert ("answered", 0, [0], 9) not in said
    assert list(reducer.open) == [0]
    assert not reducer.sent


def test_no_more_is_remembered_than_what_waits_and_what_runs() -> None:
    """Plans come and go, each with workers of its own."""
    reducer = Reducer()
    for number in range(100):
        now_ns = 10 * number
        worker = Worker(number, f"w{number}", ("m",))
        reducer.handled(TopologyChanged(now_ns, (), (worker,), ()), [])
        reducer.handled(arrived(number, now_ns), [start(number, number, workers=(number,))])
        reducer.handled(finished(number, now_ns, now_ns + 5, worker=number), [])
    assert reducer.tally == OutcomeCounts(accepted=100, answered=100, late=90)
    assert not reducer.open
    assert not reducer.sent
    assert len(reducer._on_worker) <= 2
    assert len(reducer._freed_ns) <= 2


def test_an_engine_that_restarts_has_failed_what_it_says_and_answered_what_ended() -> None:
    restarted = EngineRestarted("p", "broke", failed=(1,), batches=(0,))
    reducer, _ = fold(arrived(0), start(0, 0), arrived(1), arrived(2), restarted)
    assert reducer.tally == OutcomeCounts(accepted=3, failed=1)
    assert list(reducer.open) == [0, 2]
    assert list(reducer.sent) == [0]
    reducer, _ = fold(arrived(0), start(0, 0), arrived(1), finished(0, 0, 9), EngineRestarted("p", "broke"))
    assert reducer.tally == OutcomeCounts(accepted=2, answered=1)
    assert not reducer.sent


@pytest.mark.parametrize("spec", PLUGINS.policies.values(), ids=lambda spec: spec.name)
@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=examples(0.034))
def test_a_log_tells_what_workers_and_clients_saw(spec: PolicySpec, rng: random.Random) -> None:
    """The driver's own books are those of `Ledger`: it knows what clients, workers and effects tell it."""
    out = io.BytesIO()
    driver: Ledger = run(spec, with_other_plans(rng, world(spec, rng)), observer=Recorder(out))
    told = Told()
    reducer = Reducer(told)
    for entry in read_log(out.getvalue().splitlines())[1]:
        reducer.handled(entry.event, entry.effects)
    tally = reducer.tally
    assert driver.ended == Counter(
        answered=tally.answered, failed=tally.failed, cancelled=tally.cancelled, dropped=tally.dropped.total()
    )
    assert tally == driver.engine.tally
    assert not reducer.open
    assert not reducer.sent
    busy_ns = sum(entry[4] - entry[3] for entry in told.said if entry[0] == "ran")  # type: ignore[operator]
    assert busy_ns == sum(end - start for _, start, end in driver.intervals)
