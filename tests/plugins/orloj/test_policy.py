"""Orloj, event by event: which requests run together, and when, by the distributions of their times."""

from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from tests.examples import examples, few
from tidegate.api import (
    CancelTimer,
    Dispatch,
    Drop,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    PolicySpec,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    TimerFired,
    Worker,
    WorkerReady,
    ms_to_ns,
)
from tidegate.testing import Playbook, PolicyConformance, check_policy
from tidegate_orloj.applications import MAX_GROUPS, BatchKind, WorkBudget
from tidegate_orloj.batch_latency import BatchLatency
from tidegate_orloj.pending import PendingQueue
from tidegate_orloj.policy import BatchCandidate, Orloj, OrlojOptions
from tidegate_orloj.priority import PriorityCurve

SLO_MS = 200
QUICK = LatencyDistribution("m", "quick", "default", tuple(map(ms_to_ns, (9, 10, 11))), ms_to_ns(5), 0.5)
SLOW = LatencyDistribution("m", "slow", "default", tuple(map(ms_to_ns, (90, 100, 110))), ms_to_ns(5), 0.5)
SETUP = Setup(
    models=(Model("m", 4, slo_ns=ms_to_ns(SLO_MS)),),
    workers=(Worker(0, "w0", ("m",)),),
    profiles=(Profile.linear("m", alpha_ms=10, beta_ms=5, max_rows=4),),
    latency_distributions=(QUICK, SLOW),
)


def playbook(**options: Any) -> Playbook:
    return Playbook(Orloj(SETUP, OrlojOptions.model_validate(options)))


def arrived(number: int, at_ms: float = 0, app: str = "", slo_ms: float = SLO_MS) -> RequestArrived:
    at_ns = ms_to_ns(at_ms)
    return RequestArrived(at_ns, Request(number, "m", 1, at_ns, at_ns + ms_to_ns(slo_ms), app=app))


def freed(at_ms: float) -> WorkerReady:
    return WorkerReady(ms_to_ns(at_ms), 0, ms_to_ns(at_ms))


def dispatched(playbook: Playbook) -> tuple[int, ...]:
    """The requests of the one batch among the commands that answer the last event, by id; empty: none."""
    return next((each.batch.request_ids for each in playbook.commands() if isinstance(each, Dispatch)), ())


def busy(*waiting: RequestArrived, **options: Any) -> Playbook:
    """The worker runs request 99, and these wait."""
    started = playbook(**options) >> arrived(99)
    started.commands()
    for event in waiting:
        started >>= event
        started.commands()
    return started


def test_an_idle_worker_runs_a_request_at_once_for_as_long_as_is_expected() -> None:
    (dispatch,) = (playbook() >> arrived(0, app="slow")).commands()
    assert isinstance(dispatch, Dispatch)
    (stage,) = dispatch.batch.stages
    assert stage.duration_ns == pytest.approx(ms_to_ns(5 + 0.5 * 100), rel=0.01)


def test_alike_requests_run_together_and_not_with_slower_ones() -> None:
    mixed = [arrived(number, app=("quick", "slow")[number % 2]) for number in range(4)]
    assert dispatched(busy(*mixed) >> freed(10)) == (0, 2)


def test_a_batch_of_any_may_be_what_the_paper_forms() -> None:
    mixed = [arrived(number, app=("quick", "slow")[number % 2]) for number in range(4)]
    assert len(dispatched(busy(*mixed, batch_selection="latest", batch_sizes=[2, 4]) >> freed(10))) == 2
    # Of four rows a batch takes 5 + 0.5 * 4 * 104 ms, if one of them is slow: too long for all.
    alike = [arrived(number, app="quick") for number in range(4)]
    setup = [QUICK, LatencyDistribution("m", "slow", "default", QUICK.times_ns, ms_to_ns(5), 0.5)]
    started = busy(*alike, batch_selection="earliest")
    for times in setup:
        started >>= LatencyDistributionUpdated(ms_to_ns(1), times)
        started.commands()
    assert len(dispatched(started >> freed(10))) == 4


def test_a_batch_leaves_its_requests_time() -> None:
    """Three quick ones: 5 + 0.5 * 3 * 10.5 ms; with 15 ms left they run as two and one."""
    waiting = [arrived(number, app="quick", slo_ms=30) for number in range(3)]
    started = busy(*waiting) >> LatencyDistributionUpdated(0, SLOW)
    started.commands()
    assert len(dispatched(started >> freed(5))) == 3
    started = busy(*waiting)
    assert len(dispatched(started >> freed(13))) == 2


def test_a_request_is_dropped_once_it_is_expected_to_be_late_even_alone() -> None:
    timeline = busy()
    timeline >>= arrived(0, app="slow", slo_ms=100)
    (timer,) = timeline.commands()
    assert isinstance(timer, SetTimer)
    assert timer.at_ns == pytest.approx(ms_to_ns(100 - 55), rel=0.01)
    assert timeline >> TimerFired(timer.at_ns, timer.key) << Drop(0, "deadline_unreachable") << CancelTimer(timer.key)


def test_requests_without_an_application_take_what_the_profile_of_their_shape_says() -> None:
    timeline = busy()
    timeline >>= arrived(0, slo_ms=100)
    (timer,) = timeline.commands()
    assert isinstance(timer, SetTimer)
    assert timer.at_ns == pytest.approx(ms_to_ns(100 - 15), rel=0.01)
    slower = Profile.linear("m", alpha_ms=60, beta_ms=5, max_rows=4)
    timeline >>= ProfileUpdated(ms_to_ns(1), slower)
    (timer,) = timeline.commands()
    assert isinstance(timer, SetTimer)
    assert timer.at_ns == pytest.approx(ms_to_ns(100 - 65), rel=0.01)


def test_a_request_whose_chance_is_fading_comes_after_one_that_is_sure_to_be_on_time() -> None:
    arrivals = [arrived(0, app="slow", slo_ms=66), arrived(1, app="slow", slo_ms=150)]
    assert dispatched(busy(*arrivals, batch_sizes=[1]) >> freed(10)) == (1,)


@pytest.mark.parametrize(("costs", "first"), [({}, 0), ({"dear": [{"after": 1, "cost": 5}]}, 1)])
def test_a_model_whose_lateness_costs_more_runs_first(costs: dict[str, Any], first: int) -> None:
    names = ("m", "dear")
    setup = Setup(
        models=tuple(Model(name, 1, slo_ns=ms_to_ns(SLO_MS)) for name in names),
        workers=(Worker(0, "w0", tuple(sorted(names))),),
        profiles=tuple(Profile.linear(name, alpha_ms=10, beta_ms=5, max_rows=1) for name in names),
    )
    timeline = Playbook(Orloj(setup, OrlojOptions.model_validate({"costs": costs}))) >> arrived(99)
    timeline.commands()
    for number, name in enumerate(names):
        timeline >>= RequestArrived(number, Request(number, name, 1, number, ms_to_ns(SLO_MS)))
        timeline.commands()
    assert dispatched(timeline >> freed(10)) == (first,)


def test_a_deadline_that_has_passed_may_not_be_the_last() -> None:
    steps = {"m": [{"after": 1.0, "cost": 1.0}, {"after": 3.0, "cost": 2.0}]}
    timeline = busy(costs=steps)
    timeline >>= arrived(0, app="slow", slo_ms=100)
    (timer,) = timeline.commands()
    assert isinstance(timer, SetTimer)
    assert timer.at_ns == pytest.approx(ms_to_ns(300 - 55), rel=0.01)
    assert dispatched(timeline >> freed(150)) == (0,)


def test_a_client_with_all_the_time_in_the_world_hinders_nobody() -> None:
    """Twenty times its time is beyond what instants can be."""
    steps = {"m": [{"after": 1.0, "cost": 1.0}, {"after": 20.0, "cost": 2.0}]}
    timeline = busy(arrived(0, slo_ms=1e12), arrived(1, app="quick"), costs=steps)
    assert 1 in dispatched(timeline >> freed(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"costs": {"m": []}}, "needs steps"),
        ({"costs": {"m": [{"after": 2, "cost": 1}, {"after": 1, "cost": 2}]}}, "of which `after` and `cost` rise"),
        ({"costs": {"m": [{"after": 1, "cost": 1}, {"after": 2, "cost": 1}]}}, "of which `after` and `cost` rise"),
        ({"delay_rate": 0}, "greater than or equal"),
        ({"batch_sizes": [0]}, "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OrlojOptions.model_validate(options)


def counted(units: int) -> int:
    """How many of something that takes so many units may be done for an event."""
    return WorkBudget.UNITS // units


def test_a_worker_that_frees_looks_at_the_most_urgent_of_very_many_queues() -> None:
    looked: list[str] = []

    class Watched(Orloj):
        def _candidate(self, start_ns: int, queue: PendingQueue, kind: str) -> BatchCandidate | None:
            looked.append(queue.key[2])
            return super()._candidate(start_ns, queue, kind)

    many = 100
    started = Playbook(Watched(SETUP, OrlojOptions())) >> arrived(9999)
    started.commands()
    for number in range(many):
        event = arrived(number, app="quick", slo_ms=2 * SLO_MS - number / 10)
        started >>= msgspec.structs.replace(
            event, request=msgspec.structs.replace(event.request, merge_key=f"key {number}")
        )
        started.commands()
    looked.clear()
    assert dispatched(started >> freed(10)) == (many - 1,), "it is due first"
    assert looked == [f"key {many - 1 - number}" for number in range(len(looked))]
    assert 3 <= len(looked) <= counted(WorkBudget.QUEUE + WorkBudget.SIZE)


@pytest.mark.parametrize("names", [1, 5, 20, 100, 500])
@pytest.mark.parametrize("waiting", [10, 300])
def test_the_work_for_an_event_does_not_grow_with_the_names_that_clients_use(
    names: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: curves that are drawn, their size, and sizes that are looked at; just after distributions moved, too."""
    drawn: list[tuple[int, ...]] = []
    scored = 0

    def drawing(curve: PriorityCurve, latency: BatchLatency, b: float) -> None:
        drawn.append(latency.density.shape)
        draw(curve, latency, b)

    def scoring(queue: PendingQueue, size: BatchKind, curve: PriorityCurve, now_ns: int) -> NDArray[np.float64]:
        nonlocal scored
        scored += 1
        return score(queue, size, curve, now_ns)

    draw, score = PriorityCurve.__init__, PendingQueue.scores
    monkeypatch.setattr(PriorityCurve, "__init__", drawing)
    monkeypatch.setattr(PendingQueue, "scores", scoring)
    model = Model("m", 64, slo_ns=ms_to_ns(1e6))
    times = [
        LatencyDistribution(
            "m", f"a{number}", "default", tuple(map(ms_to_ns, (5 + number, 9 + number))), ms_to_ns(3), 0.5
        )
        for number in range(names)
    ]
    profile = Profile.linear("m", alpha_ms=10, beta_ms=5, max_rows=64)
    setup = msgspec.structs.replace(SETUP, models=(model,), profiles=(profile,), latency_distributions=tuple(times))
    policy = Orloj(setup, OrlojOptions())
    for number in range(waiting):
        policy.handle(arrived(number, number / 100, app=f"a{number % names}", slo_ms=1e5 + number))
    for moment in range(40):
        if moment % 3 == 0:
            moved = times[moment % names]
            slower = tuple(time_ns + ms_to_ns(1 + moment) for time_ns in moved.times_ns)
            policy.handle(
                LatencyDistributionUpdated(ms_to_ns(100 + moment), msgspec.structs.replace(moved, times_ns=slower))
            )
        drawn.clear()
        scored = 0
        policy.handle(freed(100 + moment))
        assert len(drawn) <= WorkBudget.MOST_CURVES
        assert all(len(shape) < 3 or shape[0] <= MAX_GROUPS + 1 for shape in drawn)
        assert all(shape[-2] <= MAX_GROUPS + 1 for shape in drawn)
        assert scored <= counted(WorkBudget.SIZE)


def test_what_is_yet_to_be_drawn_is_drawn_in_the_next_events() -> None:
    """After so many events a distribution that moved is in all curves: what is told meanwhile is not lost."""
    waiting = [arrived(number, app="quick", slo_ms=1e5) for number in range(60)]
    timeline = busy(*waiting)
    for moment in range(6):
        assert dispatched(timeline >> freed(10 + moment))
    policy = timeline.policy
    assert isinstance(policy, Orloj)
    known = policy._applications["m", ""]
    versions = {size.rows: curves.version for size, curves in known._curves.items()}
    assert versions == dict.fromkeys((1, 2, 3, 4), known._version)


def test_a_successor_knows_what_was_told_since_and_how_often_applications_come() -> None:
    timeline = busy(*[arrived(number, app="slow") for number in range(300)])
    moved = LatencyDistribution("m", "slow", "default", (ms_to_ns(50),))
    timeline >>= LatencyDistributionUpdated(ms_to_ns(1), moved)
    timeline.commands()
    policy = timeline.policy
    assert isinstance(policy, Orloj)
    follower = policy.migrate(msgspec.structs.replace(SETUP, latency_distributions=()))
    shares = follower._applications["m", ""]._shares
    assert shares[2] > 0.9
    assert follower._times["m", "default", "slow"] == moved


@pytest.mark.parametrize(
    "choice",
    few(["worth", "earliest", "latest"]),
)
def test_every_reading_of_the_algorithm_conforms(choice: str) -> None:
    check_policy(PolicySpec("orloj", "Orloj", Orloj), worlds=examples(0.2), options={"batch_selection": choice})


class TestOrloj(PolicyConformance):
    spec = PolicySpec("orloj", "Orloj", Orloj)
    worlds = examples(0.2)


class TestCostlyOrloj(PolicyConformance):
    spec = PolicySpec("orloj", "Orloj", Orloj)
    options: ClassVar = {
        "costs": {f"model{number}": [{"after": 1, "cost": 1}, {"after": 2, "cost": 3}] for number in range(3)},
        "delay_rate": 0.1,
    }
    worlds = examples(0.2)
