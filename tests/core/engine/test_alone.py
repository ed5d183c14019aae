"""What requests of each application take alone: learned from batches of one, and told to the policy."""

import random
from statistics import fmean

import pytest

from tidegate.api import (
    Commands,
    ExecutionTimes,
    ExecutionTimesUpdated,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    ms_to_ns,
)
from tidegate.engine import Engine
from tidegate.engine.alone import FIRST, MOST_APPS, POINTS, WINDOW, AloneTimes
from tidegate.observation import PlanChanged, StartLeg
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed

PROFILE = Profile.linear("m", alpha_ms=4, beta_ms=1, max_rows=4)
SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (PROFILE,))


class Listening(FirstComeFirstServed):
    """First come, first served, and what it is told of applications."""

    def __init__(self, setup: Setup, options: PolicyOptions | None = None) -> None:
        super().__init__(setup, options or PolicyOptions())
        self.told: list[ExecutionTimes] = []

    def on_execution_times_updated(self, event: ExecutionTimesUpdated) -> Commands:
        self.told.append(event.times)
        return ()


def of_app(app: str, number: int = 0) -> Request:
    return Request(number, "m", 1, 0, app=app)


def test_a_policy_is_told_what_each_application_takes_alone() -> None:
    """Chat takes 5 to 15 ms, search 2; what is not tagged, and what shares batches, teaches nothing."""
    rng = random.Random(1)
    took_ns: dict[int, int] = {}
    app_of: dict[int, str] = {}

    def service_ns(effect: StartLeg) -> int:
        (request_id,) = effect.batch.request_ids[:1]
        took_ns[request_id] = ms_to_ns({"chat": rng.uniform(5, 15), "search": 2, "": 40}[app_of[request_id]])
        return took_ns[request_id]

    policy = Listening(SETUP)
    engine = Engine(policy, name="listening", strict=True)
    simulation = Simulation(engine, ExactWorkers(taking(service_ns)))
    for number in range(600):
        app_of[number] = rng.choice(("chat", "search", ""))
        at_ns = number * ms_to_ns(50)
        simulation.schedule([RequestArrived(at_ns, Request(number, "m", 1, at_ns, app=app_of[number]))])
    simulation.run()
    assert {times.app for times in policy.told} == {"chat", "search"}
    chat = next(times for times in reversed(policy.told) if times.app == "chat")
    seen_ns = [took for number, took in took_ns.items() if app_of[number] == "chat"]
    assert chat.mean_ns == pytest.approx(fmean(seen_ns), rel=0.05)
    assert chat.share_within(ms_to_ns(10)) == pytest.approx(0.5, abs=0.1)
    assert len(chat.times_ns) == POINTS


def test_what_was_learned_survives_a_changed_plan() -> None:
    policy = Listening(SETUP)
    engine = Engine(policy, name="listening", strict=True)
    simulation = Simulation(engine, ExactWorkers(taking(lambda effect: ms_to_ns(3))))
    for number in range(FIRST + 1):
        at_ns = number * ms_to_ns(50)
        simulation.schedule([RequestArrived(at_ns, Request(number, "m", 1, at_ns, app="chat"))])
    simulation.run()
    engine.handle(PlanChanged(engine.now_ns, SETUP.models, SETUP.workers, ()))
    (times,) = engine.policy.setup.execution_times
    assert (times.model, times.app, set(times.times_ns)) == ("m", "chat", {ms_to_ns(3)})


def test_it_is_told_anew_only_where_it_has_moved_and_forgets_by_window() -> None:
    alone = AloneTimes(())
    told = [alone.observe(of_app("chat"), "gpu", 1000, PROFILE) for _ in range(WINDOW)]
    assert [number for number, times in enumerate(told, 1) if times] == [FIRST]
    told = [alone.observe(of_app("chat"), "gpu", 3000, PROFILE) for _ in range(WINDOW)]
    assert told[-1] is not None
    assert set(told[-1].times_ns) == {3000}


def test_clients_cannot_make_it_grow() -> None:
    alone = AloneTimes(())
    for number in range(10 * MOST_APPS):
        for _ in range(FIRST):
            alone.observe(of_app(f"app{number}"), "gpu", 1000, PROFILE)
    assert len(alone.known) == MOST_APPS
