"""A more urgent class goes first, a floor keeps the least urgent one alive, and tenants get their weights' shares."""

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.engine.worlds import Ledger
from tests.examples import examples, few
from tidegate.api import Drop, Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.engine import AnyEffect, AnyStimulus, Engine, StartStage
from tidegate.host import Plugins, make_policy
from tidegate.sim import Simulation
from tidegate.testing import random_world

PLUGINS = Plugins.installed()
MS = 1_000_000
BATCH, ALPHA_MS, BETA_MS = 8, 2.0, 12.0
FULL_MS = ALPHA_MS * BATCH + BETA_MS
SECONDS, WORKERS = 1, 2
USUAL = ["symphony", "eager", "orloj", "fifs"]
MERGING = USUAL + sorted(PLUGINS.policies.keys() - {"elsa", *USUAL})
"""Policies that form batches: `elsa` runs each request alone, on a worker that it is bound to."""


@dataclass(frozen=True)
class Load:
    """Poisson arrivals of one client or of several of a tenant, at a fraction of what the workers can do."""

    load: float
    slo_ms: float = 100.0
    priority: int = 1
    model: str = "a"
    tenant: str = ""
    weight: float = 1.0
    clients: int = 1


class OpenLoop:
    """Clients that send whatever comes back, for some seconds of virtual time."""

    def __init__(self, policy: str, loads: Mapping[str, Load], *, floors: Mapping[int, float] | None = None) -> None:
        names = tuple(sorted({load.model for load in loads.values()}))
        slo_ms = next(iter(loads.values())).slo_ms
        setup = Setup(
            tuple(Model(name, BATCH, round(slo_ms * MS)) for name in names),
            tuple(Worker(number, f"w{number}", names) for number in range(WORKERS)),
            tuple(Profile.linear(name, alpha_ms=ALPHA_MS, beta_ms=BETA_MS, max_rows=BATCH) for name in names),
        )
        made = make_policy(PLUGINS.policy(policy), setup, {})
        self.engine = Engine(made, name=policy, strict=True, priority_floors=floors or {})
        self._requests: dict[int, tuple[str, Request]] = {}
        self._waiting: dict[int, Request] = {}
        self._running: dict[int, Sequence[int]] = {}
        self.on_time: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.worker_s: dict[str, float] = dict.fromkeys(loads, 0.0)
        self.overtaken_s = 0.0
        """Worker time of batches that made more urgent requests start too late."""
        self.idle_events = 0
        """Events after which a worker was idle though requests waited."""
        self._arrive(loads)
        self._simulation = Simulation(self.engine, listeners=[self])
        self._simulation.schedule([RequestArrived(each.arrival_ns, each) for _, each in self._requests.values()])
        self._simulation.run()

    def _arrive(self, loads: Mapping[str, Load]) -> None:
        drawn = []
        for name, load in loads.items():
            rng, at_s = random.Random(name), 0.0
            rate = load.load * WORKERS * BATCH / (FULL_MS / 1000)
            while (at_s := at_s + rng.expovariate(rate)) < SECONDS:
                drawn.append((at_s, name, load, f"{name}{rng.randrange(load.clients)}"))
        for number, (at_s, name, load, client) in enumerate(sorted(drawn, key=lambda each: each[0])):
            at_ns = round(at_s * 1e9)
            self.sent[name] += 1
            self._requests[number] = (
                name,
                Request(
                    number,
                    load.model,
                    1,
                    at_ns,
                    at_ns + round(load.slo_ms * MS),
                    client=client,
                    priority=load.priority,
                    tenant=load.tenant,
                    weight=load.weight,
                ),
            )

    def attainment(self, name: str) -> float:
        return self.on_time[name] / self.sent[name]

    def share(self, name: str) -> float:
        return self.worker_s[name] / sum(self.worker_s.values())

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        match event:
            case RequestArrived():
                self._waiting[event.request.id] = event.request
            case StageFinished():
                ids = self._running.pop(event.batch_id)
                for number in ids:
                    name, request = self._requests[number]
                    self.on_time[name] += event.now_ns <= request.deadline_ns
                    if event.now_ns < SECONDS * 1e9:
                        self.worker_s[name] += (event.ended_ns - event.started_ns) / len(ids) / 1e9
        for effect in effects:
            if isinstance(effect, StartStage):
                self._running[effect.batch.id] = effect.batch.request_ids
                for number in effect.batch.request_ids:
                    self._waiting.pop(number, None)
            elif isinstance(effect, Drop):
                self._waiting.pop(effect.request_id, None)
        self.idle_events += bool(self._waiting) and len(self._running) < WORKERS
        started = [effect for effect in effects if isinstance(effect, StartStage)]
        if started and len(self._running) >= WORKERS:
            self._look_for_overtaken(event.now_ns, started)

    def _look_for_overtaken(self, now_ns: int, started: Sequence[StartStage]) -> None:
        for effect in started:
            stage = effect.batch.stages[0]
            best = min(self._requests[number][1].priority for number in effect.batch.request_ids)
            latest_ns = stage.end_ns + round(FULL_MS * MS)
            if any(
                each.priority < best and each.arrival_ns < now_ns and each.deadline_ns < latest_ns
                for each in self._waiting.values()
            ):
                self.overtaken_s += stage.duration_ns / 1e9


def two(model: str = "a", *, high: float = 0.4, low: float = 1.1, slo_ms: float = 100.0) -> dict[str, Load]:
    return {"high": Load(high, slo_ms, 1), "low": Load(low, slo_ms, 2, model)}


@pytest.mark.parametrize("policy", few(MERGING, len(USUAL)))
def test_11_the_high_class_is_on_time_under_overload_and_the_low_one_keeps_its_floor(policy: str) -> None:
    other = "a" if policy == "nexus" else "b"  # nexus gives each model workers of its own
    for loads in (two(), two(other)):
        run = OpenLoop(policy, loads)
        assert run.attainment("high") > 0.99
        assert run.worker_s["low"] > 0.05 * WORKERS * SECONDS * 0.9
        assert run.overtaken_s <= 0.05 * WORKERS * SECONDS + 2 * FULL_MS / 1000
        assert not run.idle_events or policy != "fifs", "a policy that never waits leaves no worker idle"
    swamped = OpenLoop(policy, two(other, high=1.5, low=0.5), floors={2: 0.2})
    assert abs(swamped.worker_s["low"] / (WORKERS * SECONDS) - 0.2) < 0.03


@pytest.mark.parametrize("policy", few(["symphony", "eager", "fifs", "orloj"], 2))
def test_a_class_that_waits_alone_has_all_workers(policy: str) -> None:
    alone = OpenLoop(policy, {"low": Load(0.8, priority=7)})
    usual = OpenLoop(policy, {"low": Load(0.8)})
    assert alone.on_time == usual.on_time
    assert alone.worker_s == usual.worker_s


@pytest.mark.parametrize("policy", few(["symphony", "fifs", "timeout", "clockwork"], 2))
def test_tenants_share_the_workers_by_weight_however_many_clients_they_are(policy: str) -> None:
    """A tenant that opens many connections, or gives its requests little time, gains nothing over its share."""
    calm = Load(1.2, tenant="calm", weight=3.0)
    for slo_ms, clients in ((100.0, 50), (50.0, 1)):
        attack = Load(3.0, slo_ms, tenant="attack", weight=1.0, clients=clients)
        run = OpenLoop(policy, {"calm": calm, "attack": attack})
        assert run.share("calm") > 0.75 - 0.06
    within = OpenLoop(policy, {"calm": Load(0.6, tenant="t", weight=3.0), "noisy": Load(3.0, tenant="t", weight=3.0)})
    assert within.share("calm") > 0.5 - 0.06, "clients of one tenant share it equally"


def _classed(request: Request, number: int) -> Request:
    return replace(
        request,
        priority=(1, 1, 2, 5)[number % 4],
        tenant=("", "t", "u")[number % 3],
        weight=(1.0, 4.0)[number % 2],
        client=f"c{number % 5}",
    )


@settings(max_examples=examples(0.5))
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(sorted(PLUGINS.policies)))
def test_11_nothing_is_lost_and_all_books_agree_whatever_classes_and_tenants_there_are(
    rng: random.Random, name: str
) -> None:
    world = random_world(rng)
    events = [
        RequestArrived(event.now_ns, _classed(event.request, number)) if isinstance(event, RequestArrived) else event
        for number, event in enumerate(world.events)
    ]
    world = dataclasses.replace(world, events=tuple(events))
    engine = Engine(make_policy(PLUGINS.policy(name), world.setup, {}), name=name, strict=True)
    ledger = Ledger(engine, world)
    assert not ledger.open, "every request ends"
