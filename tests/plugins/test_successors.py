"""What a policy has learned survives a change of the plan: its successor knows it, and counts nothing twice."""

from collections.abc import Callable
from typing import Any

import pytest

from tidegate.api import Model, Policy, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.engine import AnyEffect, Engine, StartStage, TopologyChanged
from tidegate.host import Plugins

MS = 1_000_000
PLUGINS = Plugins.installed()
MODELS = (Model("m", 4, slo_ns=200 * MS), Model("n", 4, slo_ns=200 * MS))
NEW = Model("new", 4, slo_ns=200 * MS)
WORKERS = tuple(Worker(number, f"w{number}", ("m", "n")) for number in range(2))
MORE = (*WORKERS, Worker(2, "w2", ("m", "n", "new")))
PROFILES = tuple(
    Profile.linear(name, alpha_ms=1, beta_ms=5, max_rows=4) for name in (*(model.name for model in MODELS), "new")
)

Learned = Callable[[Any], object]


def of_symphony(policy: Any) -> object:
    loads = {kind: (load.rate.rows_per_ns, load.needed_rows) for kind, load in policy._loads.items()}
    advised_on = policy._autoscaler
    return loads, advised_on._arrived, advised_on._busy_ns, advised_on._since_ns


def of_eager(policy: Any) -> object:
    return {kind: target.rate.rows_per_ns for kind, target in policy._targets.items()}


def of_nexus(policy: Any) -> object:
    return policy._rates, policy._observed, policy._observing_since_ns


def of_ppipe(policy: Any) -> object:
    return {model: routes.rate.rows_per_ns for model, routes in policy._routes.items() if routes.rate.rows_per_ns}


LEARNERS: list[tuple[str, dict[str, object], Learned]] = [
    ("symphony", {"deferral": "adaptive"}, of_symphony),
    ("eager", {"batch_formation": "skip_head"}, of_eager),
    ("nexus", {"observe_ms": 20}, of_nexus),
    ("nexus", {"observe_ms": 10_000}, of_nexus),
    ("ppipe", {}, of_ppipe),
    ("reactive", {}, of_ppipe),
]
IDS = ["symphony", "eager", "nexus", "nexus that observes", "ppipe", "reactive"]


class Busy:
    """An engine whose workers are so busy that requests of both models wait."""

    def __init__(self, policy: str, options: dict[str, object]) -> None:
        setup = Setup(MODELS, WORKERS, PROFILES[:2])
        self.engine = Engine(PLUGINS.make_policy(policy, setup, options), name=policy, strict=True, learn=False)
        self.arrived = 0
        self._ends: list[StageFinished] = []
        for number in range(60):
            self.arrive(number * MS, "mn"[number % 2])

    def arrive(self, now_ns: int, model: str) -> None:
        while self._ends and self._ends[0].now_ns <= now_ns:
            self._follow(self.engine.handle(self._ends.pop(0)))
        request = Request(self.arrived, model, 1, now_ns, now_ns + 200 * MS)
        self.arrived += 1
        self._follow(self.engine.handle(RequestArrived(now_ns, request)))
        self.engine.validate()

    def change(self, models: tuple[Model, ...], workers: tuple[Worker, ...]) -> Policy:
        self._follow(self.engine.handle(TopologyChanged(self.engine.now_ns, models, workers, PROFILES)))
        self.engine.validate()
        return self.engine.policy

    def _follow(self, effects: list[AnyEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartStage):
                stage, now_ns = effect.batch.stages[effect.stage], self.engine.now_ns
                end_ns = now_ns + stage.duration_ns
                self._ends.append(StageFinished(end_ns, effect.batch.id, effect.stage, stage.worker_id, now_ns, end_ns))
        self._ends.sort(key=lambda end: end.now_ns)


@pytest.mark.parametrize(("policy", "options", "learned"), LEARNERS, ids=IDS)
def test_what_was_learned_survives(policy: str, options: dict[str, object], learned: Learned) -> None:
    world = Busy(policy, options)
    before, knew = world.engine.policy, learned(world.engine.policy)
    assert knew
    assert world.engine.queued, "what waits is told to the successor as arrivals"
    after = world.change(MODELS, MORE)
    assert after is not before
    assert type(after) is type(before)
    assert learned(after) == knew, "and nothing was counted twice"
    world.arrive(world.engine.now_ns + MS, "m")
    assert learned(after) != knew or policy == "nexus", "it goes on to learn"


@pytest.mark.parametrize(("policy", "options", "learned"), LEARNERS, ids=IDS)
def test_what_is_gone_is_forgotten_and_what_is_new_is_learned(
    policy: str, options: dict[str, object], learned: Learned
) -> None:
    world = Busy(policy, options)
    after = world.change((MODELS[0], NEW), MORE[2:])
    world.arrive(world.engine.now_ns + MS, "new")
    world.arrive(world.engine.now_ns + MS, "m")
    knows = str(learned(after))
    assert "'n'" not in knows
    assert world.engine.policy is after, "it goes on"


def test_a_nexus_that_meets_a_new_model_observes_anew() -> None:
    world = Busy("nexus", {"observe_ms": 20})
    assert of_nexus(world.engine.policy)[0]  # type: ignore[index]
    after = world.change((*MODELS, NEW), MORE)
    assert of_nexus(after) == ({}, {}, None)


def test_advice_over_a_change_of_the_number_of_workers_is_of_what_there_was() -> None:
    """Two workers that were busy all the time, and four that were for as long again, have none to spare."""
    from tidegate_symphony.autoscaler import Autoscaler

    scaler = Autoscaler(interval_ns=100, tolerated=0.01)
    scaler.arrived()
    assert scaler.advice(0, 2) == []
    scaler.ran(100)
    assert scaler.advice(50, 2) == []
    scaler.ran(200)
    assert scaler.advice(100, 4) == []
    scaler.arrived()
    (spare,) = scaler.advice(200, 4)
    assert spare.workers == -4


@pytest.mark.parametrize("name", sorted(PLUGINS.policies))
def test_every_policy_has_a_successor_of_its_own_kind(name: str) -> None:
    setup = Setup(MODELS, WORKERS, PROFILES[:2])
    policy = PLUGINS.make_policy(name, setup, {})
    other = Setup(MODELS, MORE, PROFILES, first_batch_id=7)
    follower = policy.migrate(other)
    assert type(follower) is type(policy)
    assert (follower.setup, follower.options) == (other, policy.options)
    assert follower.new_batch_id() == 7
