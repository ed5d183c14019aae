"""Streams in slots, simulated: every policy places by load, keeps first-response deadlines, and shares fairly."""

import io
from collections.abc import Sequence
from typing import Any

import pytest

from tests.examples import few
from tidegate.api import (
    NEVER_NS,
    BatchFailed,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    StageFinished,
    Worker,
    ms_to_ns,
)
from tidegate.engine import AnyEffect, AnyStimulus, Engine, FirstResponse, StartStage
from tidegate.host import Plugins
from tidegate.observation import Observer, Recorder, read_log
from tidegate.sim import Simulation
from tidegate.sim.cluster import Cluster
from tidegate.sim.replay import replay
from tidegate.sim.run import RunSpec, simulate
from tidegate.sim.true_latency import SimulatedWorker, TrueLatency
from tidegate.toolkit import FirstComeFirstServed
from tidegate.toolkit.queueing import IdleWorkers
from tidegate.workload import PolicyChoice, Scenario

PLUGINS = Plugins.installed()
TTFT_MS, STREAM_MS = 50.0, 1000.0
SLOTS = 4
POLICIES = ["symphony", "fifs", "eager", "timeout", "clockwork", "clipper", "shepherd", "triton", "orloj", "elsa"]
DOCUMENT: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 15,
    "workers": [{"count": 2, "slots": SLOTS}],
    "models": [
        {
            "name": "llm",
            "slo_ms": 400,
            "profile": {"points_ms": {1: TTFT_MS}, "max_batch": 1},
            "streaming": {"responses": {"distribution": "lognormal", "mean": 40, "cv": 0.5}, "gap_ms": 20},
        }
    ],
    "arrivals": {"rate_rps": 14},
}


def setup_of(servers: int, slots: int = SLOTS) -> Setup:
    """Servers with so many slots each, whose first response takes `TTFT_MS`."""
    workers = tuple(
        Worker(server * slots + slot, f"t{server}/llm/{slot}", ("llm",), server=f"t{server}")
        for server in range(servers)
        for slot in range(slots)
    )
    model = Model("llm", 1, ms_to_ns(400), merge_limit=1, streams=True)
    return Setup((model,), workers, (Profile("llm", "default", (ms_to_ns(TTFT_MS),)),))


class Watch:
    """Notes what runs where, and when each request was answered for good."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.busy: dict[int, int] = {}
        self.most_of_server: dict[str, int] = {}
        self.ended_ns: dict[int, int] = {}
        self.placed: list[int] = []
        self._server = {worker.id: worker.server for worker in engine.current_setup.workers}

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        self.engine.validate()
        if isinstance(event, StageFinished | BatchFailed):
            for request_id in [number for number, worker in self.busy.items() if worker == event.worker_id]:
                del self.busy[request_id]
                self.ended_ns[request_id] = event.now_ns
        for effect in effects:
            if isinstance(effect, StartStage):
                worker_id = effect.batch.stages[0].worker_id
                assert worker_id not in self.busy.values(), "a slot has one stream at a time"
                self.placed.append(worker_id)
                self.busy[effect.batch.request_ids[0]] = worker_id


def run(
    setup: Setup,
    requests: list[Request],
    streams_ms: dict[int, float],
    policy: str = "fifs",
    observers: Sequence[Observer] = (),
) -> Watch:
    """Run requests whose streams take so long after their first response."""
    engine = Engine(PLUGINS.make_policy(policy, setup, {}), name=policy, strict=True, observers=observers)
    watch = Watch(engine)
    truth = TrueLatency(
        {("llm", "default", ""): (ms_to_ns(TTFT_MS),)},
        streams_ns=[ms_to_ns(streams_ms[request.id]) for request in sorted(requests, key=lambda each: each.id)],
    )
    cluster = Cluster([SimulatedWorker(worker.id) for worker in setup.workers], truth)
    simulation = Simulation(engine, cluster, listeners=[watch])
    simulation.feed(RequestArrived(request.arrival_ns, request) for request in requests)
    simulation.run()
    return watch


@pytest.mark.parametrize("policy", few(POLICIES))
def test_every_policy_serves_streams_from_slots(policy: str) -> None:
    """Nothing is lost, and what is answered on time had its first response in time, however long it went on."""
    total = simulate(RunSpec(Scenario.model_validate(DOCUMENT), PolicyChoice(name=policy), 1)).total
    assert total.stranded == total.failed == 0
    assert total.accepted == total.answered + sum(total.dropped.values())
    assert total.gap_p50_ms == pytest.approx(20)
    assert total.busy_share > 0.9, "slots are busy to the last response"
    if policy == "symphony":  # of 14 a second the slots take 8 / 0.83 s
        assert total.attainment > 0.6
        assert total.answered - total.late > 0.9 * total.answered


def test_slots_slow_each_other_and_gaps_have_an_slo() -> None:
    slowed = {"slot_slowdown": 0.5}
    streaming = DOCUMENT["models"][0]["streaming"] | {"slo_gap_ms": 30}
    models = [DOCUMENT["models"][0] | {"streaming": streaming}]
    document = DOCUMENT | {"models": models, "simulation": slowed}
    total = simulate(RunSpec(Scenario.model_validate(document), PolicyChoice(name="symphony"), 1)).total
    assert total.gap_p50_ms is not None
    assert 40 < total.gap_p50_ms <= 20 * (1 + 0.5 * (SLOTS - 1))
    assert total.gap_attainment is not None
    assert total.gap_attainment < 0.2


def test_placement_is_by_load_not_in_turns() -> None:
    """Streams of unlike lengths: in turns, every other one is long, and all long ones are on one server."""
    requests = [Request(number, "llm", 1, ms_to_ns(100 * number)) for number in range(12)]
    lengths = {number: 60_000.0 if number % 2 == 0 else 30.0 for number in range(12)}
    watch = run(setup_of(2, slots=8), requests, lengths)
    of_long = [worker_id // 8 for number, worker_id in enumerate(watch.placed) if number % 2 == 0]
    assert sorted(of_long) == [0, 0, 0, 1, 1, 1]


def test_an_idle_slot_of_the_least_busy_server_is_offered() -> None:
    idle = IdleWorkers(setup_of(2).workers)
    for worker_id in (1, 2, 3, 4):  # three slots of the first server, one of the second
        idle.occupy(worker_id)
    assert idle.peek("llm").id == 5  # type: ignore[union-attr]
    idle.leave(0)
    idle.release(1)
    idle.release(2)
    assert idle.peek("llm").id == 5, "one of three is busy there"  # type: ignore[union-attr]
    idle.release(3)
    assert idle.peek("llm").id == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["fifs", "symphony"])
def test_long_streams_of_a_neighbor_cost_others_no_more_than_their_share(policy: str) -> None:
    """The quiet client has a tenth of the neighbor's work a stream, and half of the slots as long as it waits."""
    noisy = [Request(number, "llm", 1, 0, client="noisy") for number in range(40)]
    quiet = [Request(number, "llm", 1, 1, client="quiet") for number in range(40, 80)]
    lengths = {number: 10 * STREAM_MS if number < 40 else STREAM_MS for number in range(80)}
    watch = run(setup_of(1), noisy + quiet, lengths, policy)
    work_s = len(quiet) * (TTFT_MS + STREAM_MS) / 1000
    ended_s = max(watch.ended_ns[request.id] for request in quiet) / 1e9
    first_free_s = (TTFT_MS + 10 * STREAM_MS) / 1000
    assert ended_s < first_free_s + 1.3 * work_s / (SLOTS / 2)


def test_a_stream_is_late_by_its_first_response_and_is_not_tried_again_after_it() -> None:
    setup = setup_of(1, slots=2)
    engine = Engine(FirstComeFirstServed(setup, PolicyOptions()), name="fcfs", strict=True, first_lead_ns=1_000_000)
    due_ns = ms_to_ns(100)
    [start] = engine.handle(RequestArrived(0, Request(0, "llm", 1, 0, due_ns)))
    assert isinstance(start, StartStage)
    worker_id = start.batch.stages[0].worker_id
    engine.handle(FirstResponse(due_ns, start.batch.id, 0, worker_id, 0))
    [other] = engine.handle(RequestArrived(due_ns + 1, Request(1, "llm", 1, due_ns + 1, due_ns + 2)))
    assert isinstance(other, StartStage)
    engine.handle(RequestArrived(due_ns + 2, Request(2, "llm", 1, due_ns + 2, NEVER_NS)))
    assert engine.next_wake_ns is None, "no end is expected of a stream"
    [following] = engine.handle(StageFinished(due_ns + 9, start.batch.id, 0, worker_id, 0, due_ns + 9))
    assert isinstance(following, StartStage)
    assert (engine.tally.answered, engine.tally.late) == (1, 0)
    assert engine.expectations.profiles["llm", "default", ""].upper_ns(1) <= due_ns

    worker_id = other.batch.stages[0].worker_id
    engine.handle(FirstResponse(due_ns + 10, other.batch.id, 0, worker_id, due_ns + 1))
    effects = engine.handle(BatchFailed(due_ns + 11, other.batch.id, 0, worker_id, "lost", retry=True))
    assert [type(effect).__name__ for effect in effects] == ["Fail"]
    worker_id = following.batch.stages[0].worker_id
    effects = engine.handle(BatchFailed(due_ns + 12, following.batch.id, 0, worker_id, "lost", retry=True))
    assert [type(effect) for effect in effects] == [StartStage], "nothing of it was answered yet"


def test_a_run_with_streams_is_replayed_to_the_byte() -> None:
    requests = [
        Request(number, "llm", 1, ms_to_ns(30 * number), ms_to_ns(30 * number + 900), client=str(number % 3))
        for number in range(60)
    ]
    log = io.BytesIO()
    run(setup_of(2), requests, {number: 40.0 * (number % 7) for number in range(60)}, "symphony", [Recorder(log)])
    header, entries = read_log(log.getvalue().splitlines())
    found = list(entries)
    assert sum(isinstance(entry.event, FirstResponse) for entry in found) > 30
    result = replay(header, found, PLUGINS.make_policy("symphony", setup_of(2), {}))
    assert result.difference is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"streaming": None}, "workers.0.slots: 'llm' has no `streaming`"),
        ({"profile": {"points_ms": {1: 5}, "max_batch": 4}}, "max_batch must be 1, not 4"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scenario.model_validate(DOCUMENT | {"models": [DOCUMENT["models"][0] | changes]})
