"""Workers are shared in turn: a neighbor's flood costs a client two batches at most, and nobody throughput."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.engine.script import Script, arrived, engine_of, failed, run
from tests.effect_log import EffectLog
from tests.examples import examples, few
from tidegate.api import (
    NEVER_NS,
    AnyEvent,
    Drop,
    Model,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    StageFinished,
    Worker,
    WorkerLost,
    ms_to_ns,
)
from tidegate.engine import AnyEffect, AnyStimulus, CancelStage, Engine, StartStage
from tidegate.host import Plugins, make_policy
from tidegate.sim import Simulation
from tidegate.testing import random_world

PLUGINS = Plugins.installed()
BATCH = 8
ALPHA_MS, BETA_MS = 2.0, 12.0
FULL_MS = ALPHA_MS * BATCH + BETA_MS
SECONDS = 2
END_NS = SECONDS * 1_000_000_000


class Client:
    """One that keeps so many requests of a model under way: an answer, or a refusal, is followed by the next."""

    def __init__(
        self,
        under_way: int,
        *,
        model: str = "m",
        slo_ms: float | None = None,
        pause_ms: float = 0.0,
        rows: int = 1,
        apart: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """`apart`: each request has a merge key of its own. `timeout_ms`: the client's own deadline."""
        self.timeout_ms = timeout_ms
        self.under_way = under_way
        self.rows = rows
        self.apart = apart
        self.model = model
        self.slo_ms = slo_ms
        self.pause_ns = ms_to_ns(pause_ms)
        self.waited_ms: list[float] = []
        self.dropped = 0
        self.while_loaded = 0
        """Answers while the load lasted."""

    @property
    def p50_ms(self) -> float:
        return sorted(self.waited_ms)[len(self.waited_ms) // 2]


class ClosedLoop:
    """Clients before an engine, for some seconds."""

    def __init__(self, policy: str, clients: Mapping[str, Client], *, workers: int = 1, tagged: bool = True) -> None:
        """`tagged`: whether their requests say whose they are."""
        slos = {client.model: client.slo_ms for client in clients.values()}
        models = [
            Model(name, BATCH, None if slo_ms is None else ms_to_ns(slo_ms)) for name, slo_ms in sorted(slos.items())
        ]
        names = tuple(model.name for model in models)
        profiles = [Profile.linear(name, alpha_ms=ALPHA_MS, beta_ms=BETA_MS, max_rows=BATCH) for name in names]
        everywhere = [Worker(number, f"w{number}", names) for number in range(workers)]
        setup = Setup(tuple(models), tuple(everywhere), tuple(profiles))
        spec = PLUGINS.policy(policy)
        self.engine = Engine(make_policy(spec, setup, {}), name=policy, strict=True)
        self.effects = EffectLog()
        self._simulation = Simulation(self.engine, listeners=[self, self.effects])
        self.clients = clients
        self._tagged = tagged
        self._requests: dict[int, tuple[str, Request]] = {}
        self._running: dict[int, tuple[int, ...]] = {}
        for name, client in clients.items():
            for number in range(client.under_way):
                self._send(number * 1000, name)
        self._simulation.run()

    @property
    def answered(self) -> int:
        return sum(client.while_loaded for client in self.clients.values())

    def _send(self, at_ns: int, name: str) -> None:
        client, request_id = self.clients[name], len(self._requests)
        if at_ns < END_NS:
            within_ms = client.slo_ms if client.timeout_ms is None else client.timeout_ms
            due_ns = NEVER_NS if within_ms is None else at_ns + ms_to_ns(within_ms)
            key, owner = str(request_id) if client.apart else "", name if self._tagged else ""
            request = Request(request_id, client.model, client.rows, at_ns, due_ns, key, client=owner)
            self._requests[request_id] = name, request
            self._simulation.schedule([RequestArrived(at_ns, request)])

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        if isinstance(event, StageFinished):
            for request_id in self._running.pop(event.batch_id):
                name, request = self._requests[request_id]
                client = self.clients[name]
                client.waited_ms.append((event.now_ns - request.arrival_ns) / 1e6)
                client.while_loaded += event.now_ns < END_NS
                self._send(event.now_ns + client.pause_ns, name)
        for effect in effects:
            if isinstance(effect, StartStage):
                self._running[effect.batch.id] = effect.batch.request_ids
            elif isinstance(effect, Drop):
                name, _ = self._requests[effect.request_id]
                self.clients[name].dropped += 1
                self._send(event.now_ns + ms_to_ns(1) + self.clients[name].pause_ns, name)


def crowd(slo_ms: float | None = None, model: str = "m") -> dict[str, Client]:
    return {"crowd": Client(400, slo_ms=slo_ms), "neighbor": Client(1, slo_ms=slo_ms, pause_ms=5, model=model)}


@pytest.mark.parametrize("workers", few([1, 2]))
@pytest.mark.parametrize(("policy", "slo_ms"), [("fifs", None), ("fifs", 100), ("symphony", None), ("symphony", 100)])
def test_four_hundred_under_way_cost_a_neighbor_less_than_three_batches(
    policy: str, slo_ms: float | None, workers: int
) -> None:
    run = ClosedLoop(policy, crowd(slo_ms), workers=workers)
    neighbor = run.clients["neighbor"]
    assert neighbor.p50_ms < 3 * FULL_MS
    assert neighbor.dropped == 0
    assert len(neighbor.waited_ms) > SECONDS * 1000 / (3 * FULL_MS + 5)
    untagged = ClosedLoop(policy, crowd(slo_ms), workers=workers, tagged=False)
    before = untagged.clients["neighbor"]
    assert before.dropped > len(before.waited_ms) or before.p50_ms > 10 * FULL_MS, "it harms nobody"
    assert run.answered > 0.99 * untagged.answered


@pytest.mark.parametrize("how", [{"apart": True}, {"rows": BATCH}, {"rows": 5}], ids=["keys", "full", "over half"])
@pytest.mark.parametrize("policy", few(["symphony", "fifs", "eager", "clockwork"]))
def test_what_merges_with_nothing_costs_a_neighbor_no_more_than_what_does(policy: str, how: dict[str, Any]) -> None:
    """A neighbor whose request nothing can join does not wait, nor behind requests out of turn that cannot join it."""
    clients = {"crowd": Client(300, slo_ms=400, **how), "neighbor": Client(1, slo_ms=400)}
    ClosedLoop(policy, clients)
    assert max(clients["neighbor"].waited_ms) < 4 * FULL_MS
    assert clients["neighbor"].dropped == 0


@pytest.mark.parametrize("timeout_ms", [90, 30])
def test_clients_that_ask_again_when_their_time_is_up_cost_a_neighbor_no_more(timeout_ms: float) -> None:
    """Requests whose deadlines are earlier than the neighbor's have no more of the worker for that."""
    clients = {"crowd": Client(60, slo_ms=400, timeout_ms=timeout_ms), "neighbor": Client(1, slo_ms=400)}
    ClosedLoop("symphony", clients)
    assert clients["crowd"].dropped > 100, "nothing is asked again"
    assert clients["neighbor"].p50_ms < 4 * FULL_MS
    assert clients["neighbor"].dropped == 0


@pytest.mark.parametrize("policy", few(["fifs", "symphony", "eager", "clockwork", "timeout"], 2))
def test_a_neighbor_that_uses_another_model_of_the_same_worker_has_its_turn(policy: str) -> None:
    run = ClosedLoop(policy, crowd(model="n"))
    assert run.clients["neighbor"].p50_ms < 4 * FULL_MS
    assert run.answered > 0.9 * ClosedLoop(policy, {"crowd": Client(400)}).answered * (BATCH / (BATCH + 2))


@pytest.mark.parametrize("slo_ms", [None, 100, 400])
@pytest.mark.parametrize("under_way", few([400, 8, 16]))
def test_a_neighbors_small_batches_make_way_once_and_are_answered(slo_ms: float | None, under_way: int) -> None:
    """With `shepherd`: what runs alone made way for every large batch of others before, and was answered never."""
    neighbor = Client(1, slo_ms=slo_ms, pause_ms=5, model="n")
    run = ClosedLoop("shepherd", {"crowd": Client(under_way, slo_ms=slo_ms), "neighbor": neighbor})
    made_way = Counter(
        request_id
        for _, effect in run.effects
        if isinstance(effect, CancelStage)
        for request_id in effect.batch.request_ids
    )
    assert made_way
    assert max(made_way.values()) == 1
    assert len(neighbor.waited_ms) >= 10
    assert neighbor.dropped <= 5


@pytest.mark.parametrize("policy", few(["fifs", "symphony", "eager", "clockwork", "timeout"], 2))
def test_two_clients_that_ask_for_more_than_there_is_get_the_same(policy: str) -> None:
    run = ClosedLoop(policy, {"many": Client(300), "few": Client(60)})
    many, few = (client.while_loaded for client in run.clients.values())
    assert abs(many - few) < 0.05 * (many + few)


@pytest.mark.parametrize("policy", few(["fifs", "symphony", "eager", "clockwork", "timeout"], 2))
def test_requests_without_a_deadline_neither_starve_nor_take_more_than_their_turn(policy: str) -> None:
    # The one with an SLO alone could keep the worker busy.
    clients = {"hurried": Client(30, slo_ms=400, model="slo"), "patient": Client(64, model="any")}
    run = ClosedLoop(policy, clients)
    hurried, patient = clients["hurried"], clients["patient"]
    in_turn_ms = 2 * FULL_MS * patient.under_way / BATCH
    assert max(patient.waited_ms) < 1000 + 400 + in_turn_ms
    assert hurried.while_loaded > 0.45 * run.answered
    assert hurried.dropped == 0


@settings(max_examples=examples(0.4))
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(sorted(PLUGINS.policies)))
def test_one_client_alone_is_never_held_back(rng: random.Random, name: str) -> None:
    scenario = random_world(rng, disturbances=False)
    told: list[AnyEvent] = []
    policy = make_policy(PLUGINS.policy(name), scenario.setup, {})
    handle = policy.handle

    def listening(event: AnyEvent) -> Any:
        told.append(event)
        return handle(event)

    policy.handle = listening  # type: ignore[method-assign]
    simulation = Simulation(Engine(policy, name=name, strict=True))
    alone = [
        RequestArrived(event.now_ns, replace(event.request, client="me", late_until_ns=0))
        for event in scenario.events
        if isinstance(event, RequestArrived) and event.request.deadline_ns < NEVER_NS
    ]
    simulation.schedule(alone)
    simulation.run()
    # A policy that preempts is told once more of what it preempted.
    first = {event.request.id: event for event in reversed(told) if isinstance(event, RequestArrived)}
    at_once = [(event.now_ns, event.request.id) for event in alone]
    assert [(first[number].now_ns, number) for _, number in at_once] == at_once
    # And what behind others with more time could not be on time any more is dropped.
    gone = {event.request_id for event in told if isinstance(event, RequestCancelled)}
    assert not simulation.engine.tally.dropped["fair_share"]
    assert len(gone) <= simulation.engine.tally.dropped["deadline_unreachable"]
    for number, event in enumerate(told):
        if isinstance(event, RequestCancelled):
            again = [each for each in told[number:] if isinstance(each, RequestArrived)]
            assert event.request_id not in {each.request.id for each in again}


@settings(max_examples=examples(0.5))
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(sorted(PLUGINS.policies)))
def test_whatever_happens_every_request_is_told_or_held_and_ends_once(rng: random.Random, name: str) -> None:
    scenario = random_world(rng, disturbances=True)
    engine = Engine(make_policy(PLUGINS.policy(name), scenario.setup, {}), name=name, strict=True)
    simulation = Simulation(engine, listeners=[Counted(engine)])
    simulation.schedule(scenario.events)
    simulation.run()
    assert engine.queued == engine.in_flight == 0
    assert engine.tally.ended == engine.tally.accepted


class Counted:
    """A listener: after every event the books agree, and no worker is idle while all requests of a model are held."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        del event, effects
        engine = self._engine
        held, seen, late = engine._state.waiting._sharing.held, engine._state.waiting.queued, engine._state.waiting.late
        assert not {request.id for request in held} & seen.keys()
        assert engine.queued == len(held) + len(seen) + len(late)
        for model in {request.model for request in held}:
            shared = engine._state.waiting._sharing._classes_by[model].usual
            workers = shared._places[model].workers
            assert engine._state.fleet.idle_ids.isdisjoint(workers) or any(
                request.model == model for request in seen.values()
            )


def test_thousands_of_cancellations_of_what_is_held_are_cheap_and_leave_nothing() -> None:
    setup = Setup(
        (Model("m", BATCH),), (Worker(0, "w0", ("m",)),), (Profile.linear("m", alpha_ms=1, beta_ms=1, max_rows=BATCH),)
    )
    engine = Engine(make_policy(PLUGINS.policy("fifs"), setup, {}), name="fifs", strict=True)
    engine.handle(RequestArrived(0, Request(-1, "m", 1, 0, client="neighbor")))
    engine.handle(RequestArrived(0, Request(-2, "m", 1, 0, client="neighbor")))
    for number in range(5000):
        engine.handle(RequestArrived(0, Request(number, "m", 1, 0, client="crowd")))
    assert len(engine._state.waiting.queued) <= BATCH + 1
    for number in range(5000):
        engine.handle(RequestCancelled(1, number))
    assert (engine.queued, engine.tally.cancelled) == (1, 5000)


def test_the_reason_of_what_ran_out_of_time_behind_others_is_said() -> None:
    run = ClosedLoop("symphony", crowd(100))
    assert run.engine.tally.dropped["fair_share"] > run.clients["crowd"].while_loaded
    assert run.clients["neighbor"].dropped == 0


@settings(max_examples=examples(0.4))
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(sorted(PLUGINS.policies)))
def test_a_client_of_one_request_has_no_more_than_its_share(rng: random.Random, name: str) -> None:
    """A request with too little time for the next batch waits, but other requests of its client are not the reason."""
    scenario = random_world(rng, disturbances=False)
    engine = Engine(make_policy(PLUGINS.policy(name), scenario.setup, {}), name=name, strict=True)
    simulation = Simulation(engine)
    simulation.schedule(
        RequestArrived(event.now_ns, replace(event.request, client=str(event.request.id), priority=1))
        for event in scenario.events
        if isinstance(event, RequestArrived)
    )
    simulation.run()
    assert engine.tally.ended == engine.tally.accepted
    assert not engine.tally.dropped["fair_share"]


def of(client: str, request_id: int, now_ns: int = 0, *, due_ns: int = NEVER_NS) -> RequestArrived:
    """A request of one row for the model that only worker 0 of the script hosts."""
    return arrived(request_id, now_ns, model="n", due_ns=due_ns, client=client)


def test_clients_that_contend_anew_within_an_event_are_counted_once() -> None:
    """All that waited started, and those of a failed batch wait again."""
    together, alone = run(1, 2, 3, 4, model="n", last_ns=40), run(5, batch=1, model="n", at_ns=20)
    policy = Script((), (), (), [together], (), (), (), [alone])
    engine = engine_of(policy)
    for event in (of("a", 1), of("b", 2), of("b", 3), of("b", 4), of("a", 5, 10), of("b", 6, 10)):
        engine.handle(event)
    engine.handle(RequestCancelled(15, 6))
    engine.handle(failed(20, retry=True))
    engine.handle(of("b", 7, 25))  # is held: there is a full batch before it
    assert engine.queued == 5
    policy.received.clear()
    engine.handle(WorkerLost(30, 2))  # from which turns are taken anew
    assert policy.received.count(RequestArrived(30, of("b", 7, 25).request)) == 1
    assert engine.queued == 5
