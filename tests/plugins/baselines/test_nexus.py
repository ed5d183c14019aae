"""Nexus, event by event, with l(b) = b + 5 and an SLO of 20: batches of 5, of which two fit into it."""

from typing import Any

import pytest

from tests.arrivals import Arrivals
from tidegate.api import (
    AnyCommand,
    Batch,
    Dispatch,
    Drop,
    Model,
    Profile,
    ProfileUpdated,
    RequestCancelled,
    Setup,
    Stage,
    Worker,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.testing import Playbook
from tidegate_baselines import nexus
from tidegate_baselines.nexus import Nexus, NexusOptions
from tidegate_baselines.squishy import BISECTION_STEPS, Plan, PlanSearch

MODELS = (Model("m", 8, slo_ns=20), Model("n", 8, slo_ns=20))


def workers(count: int, *hosts: str) -> tuple[Worker, ...]:
    return tuple(Worker(number, f"w{number}", hosts or ("m",)) for number in range(count))


def playbook(at_work: tuple[Worker, ...], models: tuple[Model, ...] = MODELS[:1], **options: Any) -> Playbook:
    profiles = tuple(Profile(m.name, "default", tuple(rows + 5 for rows in range(1, 9))) for m in models)
    return Playbook(Nexus(Setup(models, at_work, profiles), NexusOptions.model_validate(options)))


arrived = Arrivals(slo_ns=20)


def run(batch: int, *ids: int, at: int, worker: int = 0, model: str = "m") -> Dispatch:
    return Dispatch(Batch(batch, model, ids, (Stage(worker, model, at, len(ids) + 5),)))


def freed(now_ns: int, worker: int = 0) -> WorkerReady:
    return WorkerReady(now_ns, worker, now_ns)


def test_requests_are_routed_in_turn_and_wait_where_they_are_though_another_worker_is_idle() -> None:
    assert (
        playbook(workers(2))
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        << run(1, 1, at=1, worker=1)
        >> arrived(2, 2)
        >> freed(6, worker=1)
        >> freed(7)
        << run(2, 2, at=7)
        >> arrived(3, 8)
        << run(3, 3, at=8, worker=1)
    )


def test_a_batch_is_never_larger_than_planned() -> None:
    play = playbook(workers(1)) >> arrived(0, 0) << run(0, 0, at=0)
    for number in range(1, 8):
        play = play >> arrived(number, 1)
    assert play >> freed(6) << run(1, 1, 2, 3, 4, 5, at=6) >> freed(12) << run(2, 6, 7, at=12)


def test_heads_that_leave_no_time_for_the_planned_batch_are_dropped_early() -> None:
    def waiting(drop: str) -> list[AnyCommand]:
        play = playbook(workers(1), drop=drop) >> arrived(0, 0) << run(0, 0, at=0)
        for number, due in enumerate((15, 16, 17, 18, 19, 20), start=1):
            play = play >> arrived(number, 1, due_ns=due)
        return list((play >> freed(7)).commands())

    assert waiting("window") == [Drop(1, "early_drop"), Drop(2, "early_drop"), run(1, 3, 4, 5, 6, at=7)]
    assert waiting("hopeless") == [run(1, 1, 2, 3, at=7)]


def test_what_would_be_late_even_alone_is_dropped_before_the_worker_goes_on() -> None:
    assert (
        playbook(workers(1))
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1, due_ns=10)
        >> arrived(2, 1, due_ns=11)
        >> freed(6)
        << Drop(1, "deadline_unreachable")
        << Drop(2, "deadline_unreachable")
        >> arrived(3, 7)
        << run(1, 3, at=7)
    )


def test_a_worker_serves_its_queues_in_turn() -> None:
    assert (
        playbook(workers(1, "m", "n"), MODELS)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 1, key="wide")
        >> arrived(3, 1, "n")
        >> freed(2)
        << run(1, 1, at=2)
        >> arrived(4, 3)
        >> freed(4)
        << run(2, 2, at=4)
        >> freed(6)
        << run(3, 3, at=6, model="n")
        >> freed(8)
        << run(4, 4, at=8)
    )


def test_frontends_do_not_know_of_each_other() -> None:
    """With two of them, some worker gets two requests before each has one."""

    def first_round(frontends: int) -> int:
        play = playbook(workers(4), frontends=frontends)
        return sum(len((play >> arrived(number, 0)).commands()) for number in range(4))

    assert first_round(1) == 4
    assert first_round(2) < 4


def test_the_plan_follows_the_rates_given_or_observed_first() -> None:
    """Of four workers a model that is asked a hundred times as often gets three, or more."""
    at_work = workers(4, "m", "n")

    def idle_for_m(play: Playbook, now_ns: int) -> int:
        """How many requests run at once."""
        return sum(len((play >> arrived(1000 + number, now_ns)).commands()) for number in range(4))

    assert idle_for_m(playbook(at_work, MODELS), 0) <= 2
    assert idle_for_m(playbook(at_work, MODELS, rates={"m": 300_000_000, "n": 1_000_000}), 0) >= 3
    observing = playbook(at_work, MODELS, observe_ms=0.0001)
    for number in range(90):
        (observing >> arrived(number, number, "n" if number == 0 else "m")).commands()
    for worker in range(4):
        (observing >> freed(200, worker)).commands()
        (observing >> freed(201, worker)).commands()
    assert idle_for_m(observing, 1000) >= 3


def test_a_plan_is_looked_for_a_step_at_a_time_where_models_and_workers_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[float] = []
    pack = PlanSearch._pack

    def counted(search: PlanSearch, multiple: float) -> Plan | None:
        packed.append(multiple)
        return pack(search, multiple)

    monkeypatch.setattr(PlanSearch, "_pack", counted)
    at_work = workers(4, "m", "n")
    monkeypatch.setattr(nexus, "PAIRS_PER_EVENT", len(at_work) * len(MODELS))
    play = playbook(at_work, MODELS, observe_ms=0.0001)
    for number in range(3 * BISECTION_STEPS):
        packed.clear()
        (play >> arrived(number, 100 * min(number, 1), "m")).commands()
        assert len(packed) == (1 <= number <= BISECTION_STEPS), "one step for each that arrives, until it is found"


def test_what_waits_at_a_lost_worker_is_routed_again() -> None:
    assert (
        playbook(workers(2))
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 0)
        << run(1, 1, at=0, worker=1)
        >> arrived(2, 1)
        >> WorkerLost(2, 0)
        >> freed(6, worker=1)
        << run(2, 2, at=6, worker=1)
        >> WorkerJoined(7, Worker(0, "w0", ("m",)))
        >> arrived(3, 7)
        << run(3, 3, at=7)
    )


def test_without_a_worker_it_waits_for_the_engine_to_say_so() -> None:
    lost = playbook(workers(1)) >> arrived(0, 0) << run(0, 0, at=0) >> arrived(1, 1) >> WorkerLost(2, 0)
    assert lost >> RequestCancelled(2, 1) >> freed(6)


def test_a_cancelled_request_and_a_new_profile_count() -> None:
    assert (
        playbook(workers(1))
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 1)
        >> RequestCancelled(2, 1)
        >> ProfileUpdated(3, Profile("m", "default", tuple(range(1, 9))))
        >> freed(6)
        << Dispatch(Batch(1, "m", (2,), (Stage(0, "m", 6, 1),)))
    )
