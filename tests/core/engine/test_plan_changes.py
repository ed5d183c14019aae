"""A plan that changes while requests are queued and batches run: nothing is lost, and a replay tells the same."""

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrivals import Arrivals
from tidegate.api import (
    NEVER_NS,
    Commands,
    Model,
    PolicyOptions,
    PolicySpec,
    Profile,
    Request,
    RequestArrived,
    Setup,
    StageFinished,
    Worker,
    WorkerLost,
)
from tidegate.engine import NO_WORKER, AnyEffect, AnyStimulus, ClockAdvanced, Engine, Fail, StartStage, TopologyChanged
from tidegate.host import Plugins, make_policy
from tidegate.observation import Recorder, read_log
from tidegate.sim import Simulation
from tidegate.sim.replay import replay
from tidegate.toolkit import FirstComeFirstServed

PLUGINS = Plugins.installed()
OLD, NEW = Model("old", max_rows=4), Model("new", max_rows=4)
PROFILES = tuple(Profile(name, "default", (10, 20, 30, 40)) for name in ("old", "new"))
A, B, C = Worker(0, "a", ("old",)), Worker(1, "b", ("old", "new")), Worker(2, "c", ("new",))


def engine(*workers: Worker, log: io.BytesIO | None = None) -> Engine:
    policy = FirstComeFirstServed(Setup((OLD,), workers, PROFILES[:1]), PolicyOptions())
    return Engine(policy, name="first-come", strict=True, learn=False, observers=[Recorder(log)] if log else ())


arrived = Arrivals("old")


def plan(now_ns: int, *workers: Worker, models: tuple[Model, ...] = (OLD, NEW)) -> TopologyChanged:
    return TopologyChanged(now_ns, models, workers, PROFILES)


def started(effects: list[AnyEffect]) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (effect.batch.stages[0].worker_id, effect.batch.request_ids)
        for effect in effects
        if isinstance(effect, StartStage)
    ]


def finished(effects: list[AnyEffect], now_ns: int) -> StageFinished:
    (effect,) = [effect for effect in effects if isinstance(effect, StartStage)]
    return StageFinished(
        now_ns, effect.batch.id, 0, effect.batch.stages[0].worker_id, effect.batch.stages[0].start_ns, now_ns
    )


def test_a_new_model_is_served_at_once() -> None:
    books = engine(A)
    assert books.handle(arrived(0, 0, "new")) == [Fail(0, NO_WORKER)]
    books.handle(plan(1, A, C))
    assert started(books.handle(arrived(1, 2, "new"))) == [(2, (1,))]


def test_what_waits_is_told_to_the_policy_that_goes_on() -> None:
    books = engine(A)
    books.handle(arrived(0, 0))
    books.handle(arrived(1, 1))  # waits for the only worker
    worker = msgspec.structs.replace(B, hosts=("old",))
    assert started(books.handle(plan(2, A, worker))) == [(1, (1,))]


def test_a_busy_worker_goes_on_and_joins_when_it_is_done() -> None:
    books = engine(A)
    effects = books.handle(arrived(0, 0))
    assert started(books.handle(plan(1, A))) == []
    assert started(books.handle(arrived(1, 2))) == []
    assert started(books.handle(finished(effects, 10))) == [(0, (1,))]
    assert books.tally.answered == 1


@pytest.mark.parametrize("spec", PLUGINS.policies.values(), ids=lambda spec: spec.name)
@pytest.mark.parametrize("slo_ns", [None, 1000])
def test_whatever_the_policy_what_comes_while_all_workers_are_busy_runs_when_they_are_done(
    spec: PolicySpec, slo_ns: int | None
) -> None:
    """The policy that follows has no worker for it until then."""
    model = msgspec.structs.replace(OLD, slo_ns=slo_ns)
    policy = make_policy(spec, Setup((model,), (A,), PROFILES[:1]), {})
    simulation = Simulation(Engine(policy, name=spec.name, strict=True))

    def comes(now_ns: int) -> RequestArrived:
        return RequestArrived(
            now_ns, Request(now_ns, "old", 4, now_ns, NEVER_NS if slo_ns is None else now_ns + slo_ns)
        )

    simulation.schedule([comes(0)])
    now_ns = 0
    while not simulation.engine.in_flight:
        simulation.run(now_ns := now_ns + 1)
    simulation.schedule([plan(now_ns + 1, A, models=(model,)), comes(now_ns + 2)])
    simulation.run()
    assert simulation.engine.tally.answered == 2


def test_a_policy_is_told_of_the_loss_of_no_worker_that_it_never_had() -> None:
    class Listening(FirstComeFirstServed):
        def on_worker_lost(self, event: WorkerLost) -> Commands:
            lost.append(event.worker_id)
            return super().on_worker_lost(event)

    lost: list[int] = []
    books = Engine(Listening(Setup((OLD,), (A, B), PROFILES), PolicyOptions()), name="listening", strict=True)
    books.handle(arrived(0, 0))
    books.handle(plan(1, A, B))  # A has work of the policy before
    books.handle(WorkerLost(2, A.id))
    books.handle(WorkerLost(3, B.id))
    assert lost == [B.id]


def test_a_worker_that_is_left_out_finishes_and_gets_nothing_more() -> None:
    other = msgspec.structs.replace(B, hosts=("old",))
    books = engine(A, other)
    effects = books.handle(arrived(0, 0))
    books.handle(plan(1, other))
    assert started(books.handle(arrived(1, 2))) == [(1, (1,))]
    books.handle(finished(effects, 10))
    assert books.tally.answered == 1
    assert started(books.handle(arrived(2, 11))) == []


def test_what_nobody_hosts_any_more_fails() -> None:
    books = engine(A)
    effects = books.handle(arrived(0, 0))
    books.handle(arrived(1, 1))
    assert books.handle(plan(2, C, models=(NEW,))) == [Fail(1, NO_WORKER)]
    books.handle(finished(effects, 10))
    assert (books.tally.answered, books.tally.failed) == (1, 1)


def test_a_busy_worker_cannot_become_another() -> None:
    books = engine(A)
    effects = books.handle(arrived(0, 0))
    with pytest.raises(ValueError, match="'a' is busy"):
        books.handle(plan(1, msgspec.structs.replace(A, hosts=("new",))))
    books.handle(finished(effects, 10))
    assert books.tally.answered == 1


def test_a_plan_without_the_profiles_to_plan_with_changes_nothing() -> None:
    books = engine(A)
    with pytest.raises(ValueError, match="no profile of 'new'"):
        books.handle(TopologyChanged(1, (OLD, NEW), (A, C), ()))
    assert started(books.handle(arrived(0, 2))) == [(0, (0,))]


def test_a_model_may_take_larger_batches_from_now_on() -> None:
    books = engine(A)
    larger = Profile("old", "default", (10, 20, 30, 40, 50, 60))
    books.handle(TopologyChanged(1, (Model("old", max_rows=6),), (A,), (larger,)))
    effects = books.handle(RequestArrived(2, Request(0, "old", 6, 2, NEVER_NS)))
    assert started(effects) == [(0, (0,))]


PLANS = st.lists(st.sampled_from([A, B, C]), unique=True).map(tuple)


@given(st.lists(st.one_of(st.sampled_from(["old", "new"]), PLANS, st.just(None)), max_size=40))
def test_every_request_ends_once_and_a_replay_is_the_same(steps: list[str | tuple[Worker, ...] | None]) -> None:
    """A step is a request of a model, a plan, or the end of the oldest batch."""
    log = io.BytesIO()
    books = engine(A, log=log)
    running: list[StartStage] = []
    now_ns = 0

    def happen(event: AnyStimulus) -> None:
        running.extend(effect for effect in books.handle(event) if isinstance(effect, StartStage))

    def finish() -> None:
        effect = running.pop(0)
        stage = effect.batch.stages[0]
        happen(StageFinished(now_ns, effect.batch.id, 0, stage.worker_id, stage.start_ns, now_ns))

    for number, step in enumerate(steps):
        now_ns += 7
        if isinstance(step, str):
            happen(arrived(number, now_ns, step))
        elif step is not None:
            happen(plan(now_ns, *step))
        elif running:
            finish()
    happen(plan(now_ns, A, B, C))
    while running:
        now_ns += 7
        finish()
    happen(ClockAdvanced(now_ns))
    assert books.queued == books.in_flight == 0
    assert books.tally.ended == books.tally.accepted == sum(isinstance(step, str) for step in steps)
    header, entries = read_log(log.getvalue().splitlines())
    assert replay(header, entries, FirstComeFirstServed(header.setup, PolicyOptions())).difference is None
