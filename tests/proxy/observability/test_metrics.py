"""The numbers of an engine, beside the engine's own books."""

import io
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.proxy.observability.followed import Followed
from tidegate.api import (
    Advise,
    Batch,
    BatchFailed,
    Drop,
    Model,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Stage,
    StageFinished,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, AnyStimulus, ClockAdvanced, Engine, Fail, PolicyReplaced, StartStage
from tidegate.host import Plugins, make_policy
from tidegate.observation import Recorder, read_log
from tidegate.testing import random_world, run_world
from tidegate_proxy.observability.metrics import MAX_REASONS, MAX_SHAPES, OTHER_REASONS, OTHER_SHAPES, Metrics

MS = 1_000_000
SETUP = Setup((Model("m", 4),), (Worker(0, "a:1/0", ("m",)), Worker(1, "a:1/1", ("m",))), ())


def _arrived(request_id: int, now_ms: int = 0, slo_ms: int = 20, rows: int = 1) -> RequestArrived:
    return RequestArrived(now_ms * MS, Request(request_id, "m", rows, now_ms * MS, (now_ms + slo_ms) * MS))


def _start(batch_id: int, *request_ids: int, workers: tuple[int, ...] = (0,), stage: int = 0) -> StartStage:
    stages = tuple(Stage(worker, "m", 0, MS) for worker in workers)
    return StartStage(Batch(batch_id, "m", request_ids, stages), stage, len(request_ids))


def _finished(batch_id: int, started_ms: int, ended_ms: int, worker: int = 0, stage: int = 0) -> StageFinished:
    return StageFinished(ended_ms * MS, batch_id, stage, worker, started_ms * MS, ended_ms * MS)


def _tell(metrics: Metrics, *steps: AnyStimulus | AnyEffect) -> None:
    """Events, each followed by the effects that it had."""
    event: AnyStimulus = ClockAdvanced(0)
    effects: list[AnyEffect] = []
    for step in [*steps, None]:
        if step is None or hasattr(step, "now_ns"):
            metrics.handled(event, effects, 1000)
            event, effects = step, []  # type: ignore[assignment]  # the last is never told
        else:
            effects.append(step)


def test_what_was_planned_and_what_came_of_it() -> None:
    metrics = Followed(SETUP)
    batch = Batch(0, "m", (0, 1), (Stage(0, "m", 6 * MS, 10 * MS),))
    _tell(metrics, _arrived(0), _arrived(1, 4), ClockAdvanced(6 * MS), StartStage(batch, 0, 2, "x:3"))
    _tell(metrics, _finished(0, 6, 21))
    model = metrics.snapshot().counts.models["m"]
    assert (model.slack.sum_ns, sum(model.slack.counts)) == (4 * MS, 1)  # its end at 16, the first deadline at 20
    assert {shape: (stages.count, stages.upper_ns, stages.taken_ns) for shape, stages in model.stages.items()} == {
        "x:3": (1, 10 * MS, 15 * MS)
    }
    for number in range(MAX_SHAPES + 3):
        model.stage_ran(f"x:{number}", MS, MS)
    assert len(model.stages) <= MAX_SHAPES + 1
    assert model.stages[OTHER_SHAPES].count >= 3


def test_a_batch_is_counted_from_arrival_to_answer() -> None:
    metrics = Followed(SETUP)
    _tell(metrics, _arrived(0), _arrived(1, 4), _arrived(2, 5))
    assert metrics.snapshot().waiting == {"m": 3}
    _tell(metrics, ClockAdvanced(6 * MS), _start(0, 0, 1))
    assert metrics.snapshot().waiting == {"m": 1}
    _tell(metrics, _finished(0, 6, 21))
    now = metrics.snapshot()
    model = now.counts.models["m"]
    assert (model.late, model.on_time) == (1, 1)
    assert (model.queued.sum_ns, sum(model.queued.counts)) == ((6 + 2) * MS, 2)
    assert (model.answered.sum_ns, sum(model.answered.counts)) == ((21 + 17) * MS, 2)
    assert (model.batch_rows, model.batch_requests) == ({2: 1}, {2: 1})
    assert [(worker.name, worker.busy_ns, worker.up) for worker in now.counts.workers.values()] == [
        ("a:1/0", 15 * MS, True),
        ("a:1/1", 0, True),
    ]


def test_only_the_last_partition_answers() -> None:
    metrics = Followed(SETUP)
    _tell(metrics, _arrived(0), _start(0, 0, workers=(0, 1)), _finished(0, 0, 2))
    between = metrics.snapshot()
    assert between.counts.models["m"].on_time == 0
    assert between.waiting == {"m": 1}, "for its second worker"
    _tell(metrics, ClockAdvanced(3 * MS), _start(0, 0, workers=(0, 1), stage=1), _finished(0, 3, 5, worker=1, stage=1))
    now = metrics.snapshot()
    assert (now.counts.models["m"].on_time, now.counts.models["m"].batch_rows) == (1, {1: 1})
    assert [worker.busy_ns for worker in now.counts.workers.values()] == [2 * MS, 2 * MS]


def test_a_straggler_of_a_lost_worker_answers_no_request() -> None:
    metrics = Followed(SETUP)
    _tell(metrics, _arrived(0), _start(0, 0), WorkerLost(MS, 0), _finished(0, 0, 2))
    now = metrics.snapshot()
    assert (now.counts.models["m"].on_time, now.waiting) == (0, {"m": 1})
    assert [worker.up for worker in now.counts.workers.values()] == [False, True]
    _tell(metrics, _start(1, 0, workers=(1,)), _finished(1, 2, 3, worker=1), WorkerJoined(4 * MS, SETUP.workers[0]))
    now = metrics.snapshot()
    assert now.counts.models["m"].on_time == 1
    assert [worker.up for worker in now.counts.workers.values()] == [True, True]


def test_every_way_to_end() -> None:
    metrics = Followed(SETUP)
    _tell(metrics, *(_arrived(number) for number in range(4)), RequestCancelled(1, 0), Drop(1, "deadline_unreachable"))
    _tell(metrics, BatchFailed(2, 0, 0, 0, "refused"), Fail(2, "refused"), RequestCancelled(3, 2))
    model = metrics.snapshot().counts.models["m"]
    assert (model.cancelled, model.dropped, model.failed) == (1, {"deadline_unreachable": 1}, 1)
    assert metrics.snapshot().waiting == {"m": 1}


def test_advice_and_a_broken_policy_are_remembered() -> None:
    metrics = Followed(SETUP)
    _tell(metrics, ClockAdvanced(7), Advise(-2, "idle"), PolicyReplaced("p", "broke"))
    now = metrics.snapshot()
    assert (now.counts.advised, now.counts.advised_at_ns, now.counts.failures) == (-2, 7, {"PolicyReplaced": 1})


def test_reasons_without_end_are_cut() -> None:
    metrics = Followed(SETUP)
    for number in range(50):
        _tell(metrics, _arrived(number), Drop(number, f"request {number} is late"))
    dropped = metrics.snapshot().counts.models["m"].dropped
    assert len(dropped) == MAX_REASONS + 1
    assert dropped[OTHER_REASONS] == 50 - MAX_REASONS


def test_shapes_are_counted_apart_until_there_are_too_many() -> None:
    metrics = Followed(SETUP)
    for number in range(MAX_SHAPES + 10):
        request = Request(number, "m", 1, 0, shape=f"x:{number}")
        _tell(metrics, RequestArrived(0, request), _start(number, number), _finished(number, 0, 2))
    _tell(metrics, _arrived(99), _start(99, 99), _finished(99, 0, 2))
    shapes = metrics.snapshot().counts.models["m"].shapes
    assert len(shapes) == MAX_SHAPES + 1
    assert shapes["x:3"] == (1, 2 * MS)
    assert shapes[OTHER_SHAPES] == (10, 20 * MS)
    assert sum(requests for requests, _ in shapes.values()) == MAX_SHAPES + 10, "a request without one has none"


def test_a_snapshot_stays_as_it_is() -> None:
    metrics = Followed(SETUP)
    before = metrics.snapshot().counts
    _tell(metrics, _arrived(0), _start(0, 0), _finished(0, 0, 2), _arrived(1), Drop(1, "x"), Advise(1))
    now = metrics.snapshot().counts
    assert before.models["m"] != now.models["m"]
    assert (
        before.models["m"].on_time,
        before.models["m"].queued.sum_ns,
        before.workers[0].busy_ns,
    ) == (0, 0, 0)
    assert (before.models["m"].dropped, before.models["m"].batch_rows, before.advised) == (
        {},
        {},
        0,
    )


@pytest.mark.parametrize("policy", ["fifs", "symphony", "nexus", "shepherd"])
@settings(
    max_examples=examples(1 / 8), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 30))
def test_they_agree_with_the_engine(policy: str, seed: int) -> None:
    scenario = random_world(random.Random(seed))
    spec = Plugins.installed().policy(policy)
    log = io.BytesIO()
    run_world(spec, scenario, recorder=Recorder(log))
    entries = list(read_log(log.getvalue().splitlines())[1])

    policy_made = make_policy(spec, scenario.setup, {})
    engine = Engine(policy_made, name=policy, strict=True, first_lead_ns=scenario.first_lead_ns)
    metrics = Metrics(scenario.setup, engine.reducer)
    for entry in entries:
        metrics.handled(entry.event, engine.handle(entry.event), 1000)
    now, tally = metrics.snapshot(), engine.tally
    models = now.counts.models.values()
    assert sum(model.on_time + model.late for model in models) == tally.answered
    assert sum(model.late for model in models) == tally.late
    assert sum(model.failed for model in models) == tally.failed
    assert sum(model.cancelled for model in models) == tally.cancelled
    assert sum((model.dropped for model in models), start=type(tally.dropped)()) == tally.dropped
    assert now.waiting.total() == tally.accepted - tally.ended
    assert sum(sum(model.answered.counts) for model in models) == tally.answered
    assert sum(sum(model.queued.counts) for model in models) >= tally.answered
    assert sum(now.counts.decisions.counts) == len(entries)
