"""Simulated workers: how long stages take, who slows whom, what fails, what is lost, what travels."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev

import pytest

from tests.arrivals import Arrivals
from tidegate.api import (
    AnyEvent,
    Batch,
    Commands,
    Dispatch,
    Model,
    Network,
    Pipeline,
    Policy,
    PolicyOptions,
    Preempt,
    Profile,
    RequestArrived,
    SetTimer,
    Setup,
    Stage,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import Engine
from tidegate.schemas import Interference, InterferenceModel, NonDecreasingLine, Sensitivity, ShareTable, SharingModel
from tidegate.sim.build import MAX_IDLE_TIMERS
from tidegate.sim.cluster import Cluster
from tidegate.sim.links import Forwarding, NetworkLinks
from tidegate.sim.record import ANSWERED, FAILED, WAITING, RunRecord
from tidegate.sim.simulation import Simulation
from tidegate.sim.true_latency import (
    ConstantSlowdown,
    SimulatedWorker,
    TrueLatency,
    drawing_delays,
    drawing_factors,
    drawing_failures,
)
from tidegate.toolkit import FirstComeFirstServed
from tidegate.workload import draw_requests
from tidegate.workload.scenario import Scenario
from tidegate.workload.simulated import FailureSpec, JitterSpec, NetworkSpec

SETUP = Setup(
    (Model("m", 4),),
    tuple(Worker(number, f"w{number}", ("m",)) for number in range(3)),
    (Profile("m", "default", (1000, 2000, 3000, 4000)),),
)
EXACT = TrueLatency({("m", "default", ""): (1000, 2000, 3000, 4000), ("tail", "default", ""): (500, 500, 500, 500)})


def requests(count: int) -> "object":
    """As many requests as a test needs; their instants come from the events."""
    line = {"alpha_ms": 1, "beta_ms": 1, "max_batch": 4}
    document = {
        "warmup_s": 0,
        "duration_s": count,
        "workers": [{"count": 1}],
        "models": [{"name": "m", "profile": line}],
        "arrivals": {"process": "uniform", "rate_rps": 1},
    }
    return draw_requests(Scenario.model_validate(document), seed=0)


class Stages(RunRecord):
    """A record that is read as a list."""

    def __init__(self, count: int) -> None:
        super().__init__(requests(count))  # type: ignore[arg-type]

    @property
    def stages(self) -> list[tuple[int, int, int]]:
        """(worker, start, end), in the order of their ends."""
        return list(zip(self.stage_worker, self.stage_started_ns, self.stage_ended_ns, strict=True))


def run(
    events: Sequence[AnyEvent],
    *,
    policy: Policy | None = None,
    truth: TrueLatency = EXACT,
    worker: Callable[[int], SimulatedWorker] = SimulatedWorker,
    interference: Interference | None = None,
    retry: bool = True,
    links: NetworkLinks | None = None,
) -> Stages:
    policy = policy or FirstComeFirstServed(SETUP, PolicyOptions())
    engine = Engine(policy, name="test", strict=True, learn=False)
    record = Stages(max(1, sum(isinstance(event, RequestArrived) for event in events)))
    workers = [worker(each.id) for each in policy.setup.workers]
    engine.reducer.add_listener(record)
    cluster = Cluster(workers, truth, interference=interference, retry=retry, links=links)
    forwarding = [] if links is None else [Forwarding(engine, links)]
    simulation = Simulation(engine, cluster, listeners=forwarding, patience=MAX_IDLE_TIMERS)
    simulation.schedule(events)
    simulation.run()
    assert engine.in_flight == 0
    return record


arrived = Arrivals()


# How long ------------------------------------------------------------------------------------------------------------


def test_the_truth_may_differ_from_what_was_planned() -> None:
    record = run([arrived(0)], truth=TrueLatency({("m", "default", ""): (1700, 1, 1, 1)}))
    assert record.stages == [(0, 0, 1700)]
    assert record.outcome[0] == ANSWERED


@pytest.mark.parametrize(("how", "carried_ns"), [("max", 5_000_000), ("sum", 8_000_000), ("padded", 15_000_000)])
def test_what_requests_carry_lengthens_their_batch(how: str, carried_ns: int) -> None:
    """Two of them, with three rows together, wait until the worker is free and share a batch."""
    truth = TrueLatency(EXACT.tables_ns, (0.0, 3.0, 5.0), {"m": how})  # type: ignore[dict-item]
    only = Setup(SETUP.models, SETUP.workers[:1], SETUP.profiles)
    policy = FirstComeFirstServed(only, PolicyOptions())
    record = run([arrived(0), arrived(1, 1, rows=2), arrived(2, 2)], truth=truth, policy=policy)
    assert record.stages == [(0, 0, 1000), (0, 1000, 1000 + 3000 + carried_ns)]


@pytest.mark.parametrize("distribution", ["lognormal", "gamma"])
def test_jitter_has_mean_one_and_the_variation_asked_for(distribution: str) -> None:
    spec = JitterSpec.model_validate({"cv": 0.3, "distribution": distribution})
    draw, same, other = (drawing_factors(spec, None, 1, worker) for worker in (0, 0, 1))
    assert draw
    assert same
    assert other
    factors = [draw() for _ in range(20_000)]
    assert mean(factors) == pytest.approx(1, rel=0.01)
    assert stdev(factors) == pytest.approx(0.3, rel=0.03)
    assert [same() for _ in range(9)] == factors[:9]
    assert [other() for _ in range(9)] != factors[:9]


def test_every_worker_draws_its_own_jitter() -> None:
    def worker(worker_id: int) -> SimulatedWorker:
        return SimulatedWorker(worker_id, jitter=lambda: 1.0 + worker_id)

    record = run([arrived(0), arrived(1), arrived(2)], worker=worker)
    assert record.stages == [(0, 0, 1000), (1, 0, 2000), (2, 0, 3000)]


def test_a_stage_lasts_until_its_rows_have_traveled_too() -> None:
    def worker(worker_id: int) -> SimulatedWorker:
        return SimulatedWorker(worker_id, jitter=lambda: 2.0, delay_ns=lambda rows: 70 + 10 * rows)

    assert run([arrived(0, rows=3)], worker=worker).stages == [(0, 0, 100 + 2 * 3000)], "jitter is that of the worker"


def test_delays_have_the_jitter_asked_for() -> None:
    assert drawing_delays(None, 1, 0) is None
    steady = drawing_delays(NetworkSpec(control_ms=1, data_ms_per_row=0.05), 1, 0)
    assert steady
    assert (steady(1), steady(20)) == (1_050_000, 2_000_000)
    spec = NetworkSpec(control_ms=1, jitter_ms=0.5)
    draw, same, other = (drawing_delays(spec, 1, worker) for worker in (0, 0, 1))
    assert draw
    assert same
    assert other
    delays = [draw(1) for _ in range(20_000)]
    assert min(delays) >= 1_000_000
    assert mean(delays) == pytest.approx(1_500_000, rel=0.01)
    assert stdev(delays) == pytest.approx(500_000, rel=0.03)
    assert [same(1) for _ in range(9)] == delays[:9]
    assert [other(1) for _ in range(9)] != delays[:9]


# Interference --------------------------------------------------------------------------------------------------------


def sharing(worker_id: int) -> SimulatedWorker:
    """The first two share a GPU."""
    return SimulatedWorker(worker_id, gpu="shared" if worker_id < 2 else None)


def test_workers_of_one_gpu_slow_each_other_while_both_are_busy() -> None:
    """0 is alone for 400, then both have half the speed: 0 needs 1200 more; 1 has 400 left then."""
    record = run([arrived(0), arrived(1, 400)], worker=sharing, interference=ConstantSlowdown(2.0))
    assert record.stages == [(0, 0, 1600), (1, 400, 2000)]


def test_the_network_is_not_slowed() -> None:
    def far(worker_id: int) -> SimulatedWorker:
        return SimulatedWorker(worker_id, gpu="shared", delay_ns=lambda rows: 500 if worker_id else 0)

    record = run([arrived(0), arrived(1)], worker=far, interference=ConstantSlowdown(2.0))
    # 0 runs at half speed from the start; at 2000 worker 1 has worked 750 of its 1000, and is alone then.
    assert record.stages == [(0, 0, 2000), (1, 0, 2250)]


def test_workers_of_other_gpus_are_not_slowed() -> None:
    record = run([arrived(0), arrived(1), arrived(2)], worker=sharing, interference=ConstantSlowdown(2.0))
    assert record.stages == [(2, 0, 1000), (0, 0, 2000), (1, 0, 2000)]


def test_a_lost_worker_slows_nobody() -> None:
    events: list[AnyEvent] = [arrived(0), arrived(1), WorkerLost(500, 1)]
    record = run(events, worker=sharing, interference=ConstantSlowdown(2.0))
    # The second request is tried again, on the worker with a GPU to itself.
    assert record.stages == [(1, 0, 500), (0, 0, 1250), (2, 500, 1500)]


def test_each_is_slowed_as_a_fitted_model_says_of_its_neighbors() -> None:
    """One row of `m` uses 20 % of the cache alone; of three neighbors each is slowed by 1 % for each percent."""
    table = ShareTable(rows=(1,), percents=(50,), taken_ms=((1.0,),))
    sensitivity = Sensitivity(cache=0.01, neighbor=0.05)
    model = SharingModel(gpu_ms=table, cache_percent=NonDecreasingLine(slope=0.02), sensitivity=sensitivity)
    fitted = InterferenceModel(gpu="V100", models={"m": model})

    def on_halves(worker_id: int) -> SimulatedWorker:
        return SimulatedWorker(worker_id, gpu="shared", percent=50)

    events = [arrived(0), arrived(1), arrived(2, 500)]
    # Two neighbors: 1.5 times as long; one: 1.25. At 500 the first two have done 400 of 1000, the other 600 take 900;
    # the third has done 600 of its own by then, and goes on alone.
    record = run(events, worker=on_halves, interference=fitted)
    assert record.stages == [(0, 0, 1400), (1, 0, 1400), (2, 500, 1800)]


# Failures and losses -------------------------------------------------------------------------------------------------


def test_failures_come_as_often_as_asked_for() -> None:
    draw = drawing_failures(FailureSpec(probability=0.2), 1, 0)
    assert draw
    assert sum(draw() for _ in range(10_000)) == pytest.approx(2000, rel=0.05)
    assert drawing_failures(FailureSpec(probability=0), 1, 0) is None


@pytest.mark.parametrize(("retry", "outcome", "stages"), [(True, ANSWERED, 2), (False, FAILED, 1)])
def test_a_failed_stage_is_tried_again_unless_the_request_is_to_blame(retry: bool, outcome: int, stages: int) -> None:
    def worker(worker_id: int) -> SimulatedWorker:
        draws = iter([True] + [False] * 9)
        return SimulatedWorker(worker_id, fails=(lambda: next(draws)) if worker_id == 0 else None)

    record = run([arrived(0)], worker=worker, retry=retry)
    assert record.outcome[0] == outcome
    assert len(record.stages) == stages


def test_a_lost_worker_takes_its_stage_along_and_comes_back_idle() -> None:
    only = Setup(SETUP.models, SETUP.workers[:1], SETUP.profiles)
    policy = FirstComeFirstServed(only, PolicyOptions())
    events: list[AnyEvent] = [arrived(0), WorkerLost(300, 0), WorkerJoined(5000, SETUP.workers[0]), arrived(1, 5001)]
    record = run(events, policy=policy)
    assert record.stages == [(0, 0, 300), (0, 5001, 6001)]
    assert list(record.outcome) == [FAILED, ANSWERED]


# Preemption ----------------------------------------------------------------------------------------------------------


class Impatient(FirstComeFirstServed):
    """Preempts its first batch at an instant, once."""

    at_ns = 400

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        commands = super().on_request_arrived(event)
        return [*commands, SetTimer("now", self.at_ns)] if event.now_ns == 0 else commands

    def on_timer_fired(self, event: TimerFired) -> Commands:
        return [Preempt(0)]


def test_a_preempted_stage_ends_at_once_and_its_request_runs_anew() -> None:
    record = run([arrived(0)], policy=Impatient(SETUP, PolicyOptions()))
    assert record.stages == [(0, 0, 400), (0, 400, 1400)]
    assert record.outcome[0] == ANSWERED


def test_a_stage_that_ends_at_this_instant_is_not_preempted() -> None:
    class TooLate(Impatient):
        at_ns = 1000

    record = run([arrived(0)], policy=TooLate(SETUP, PolicyOptions()))
    assert record.stages == [(0, 0, 1000)]


# Links ---------------------------------------------------------------------------------------------------------------

SPLIT = Setup(
    (Model("m", 4, pipelines=(Pipeline(("m", "tail"), 4),)),),
    (Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",)), Worker(2, "w2", ("tail",)), Worker(3, "w3", ("tail",))),
    (Profile("m", "default", (1000, 2000, 3000, 4000)), Profile("tail", "default", (500, 500, 500, 500))),
)


class TwoStages(Policy):
    """The n-th request runs on worker n, then on worker n + 2, without a thought for the network."""

    best_effort = True
    runs_pipelines = True

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        now_ns, request = event.now_ns, event.request
        first = Stage(request.id, "m", now_ns, 1000 * request.rows)
        second = Stage(request.id + 2, "tail", first.end_ns, 500)
        return [Dispatch(Batch(self.new_batch_id(), "m", (request.id,), (first, second)))]

    def _nothing(self, event: AnyEvent) -> Commands:
        return ()

    on_request_cancelled = on_stage_finished = on_batch_failed = _nothing
    on_worker_joined = on_worker_lost = on_worker_ready = on_profile_updated = _nothing


def links(nodes: Mapping[int, str]) -> NetworkLinks:
    """A byte takes one nanosecond, a row is 100 bytes, and every transfer 7 ns more."""
    return NetworkLinks(Network({"m": 100}, bytes_per_s=1e9, latency_ns=7), nodes)


def over(nodes: Mapping[int, str], events: Sequence[AnyEvent]) -> list[tuple[int, int, int]]:
    return run(events, policy=TwoStages(SPLIT, PolicyOptions()), links=links(nodes)).stages


def test_the_output_of_a_stage_travels_to_the_next_node() -> None:
    stages = over({0: "a", 2: "b"}, [arrived(0, rows=3)])
    assert stages == [(0, 0, 3000), (2, 3307, 3807)]


def test_within_a_node_nothing_travels() -> None:
    assert over({0: "a", 2: "a"}, [arrived(0)]) == [(0, 0, 1000), (2, 1000, 1500)]


@pytest.mark.parametrize("nodes", ["aabc", "abcc"], ids=["uplink", "downlink"])
def test_a_link_carries_one_transfer_at_a_time(nodes: str) -> None:
    stages = over(dict(enumerate(nodes)), [arrived(0), arrived(1)])
    assert stages == [(0, 0, 1000), (1, 0, 1000), (2, 1107, 1607), (3, 1207, 1707)]


def test_links_of_other_nodes_are_others() -> None:
    stages = over(dict(enumerate("abcd")), [arrived(0), arrived(1)])
    assert stages[2:] == [(2, 1107, 1607), (3, 1107, 1607)]


# The end -------------------------------------------------------------------------------------------------------------


class Sleepy(FirstComeFirstServed):
    """Sets timers for ever, and never runs anything."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [SetTimer("again", event.now_ns + 10)]

    def on_timer_fired(self, event: TimerFired) -> Commands:
        return [SetTimer("again", event.now_ns + 10)]


def test_a_policy_that_only_sets_timers_does_not_go_on_for_ever() -> None:
    record = run([arrived(0)], policy=Sleepy(SETUP, PolicyOptions()))
    assert record.outcome[0] == WAITING


def test_timers_alone_do_not_keep_a_run_going() -> None:
    class Ticking(FirstComeFirstServed):
        ticks = 0

        def on_request_arrived(self, event: RequestArrived) -> Commands:
            return [*super().on_request_arrived(event), SetTimer("tick", event.now_ns + 100)]

        def on_timer_fired(self, event: TimerFired) -> Commands:
            self.ticks += 1
            return [SetTimer("tick", event.now_ns + 100)]

    policy = Ticking(SETUP, PolicyOptions())
    assert run([arrived(0)], policy=policy).stages == [(0, 0, 1000)]
    assert policy.ticks == 10, "none once the last request had ended"
