"""What is expected and what runs depend on each other: neither a cold start nor a slow spell may end a service."""

import io
import random
from collections.abc import Callable, Sequence
from itertools import count, cycle, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tidegate.api import (
    NEVER,
    Batch,
    Commands,
    Drop,
    Leg,
    LegFinished,
    Model,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    Setup,
    Worker,
    ms_to_ns,
)
from tidegate.api.profile import SURPRISE
from tidegate.engine import Engine, StartLeg
from tidegate.engine.expectations import PATIENCE_LEGS, PATIENCE_NS, PROBES, Expectations
from tidegate.engine.learner import LATEST, PUBLISH_EVERY
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.replay import replay
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed, RequestQueue
from tidegate.workload import Poisson

PLUGINS = Plugins.installed()
DROPPING = ["symphony", "eager", "timeout", "clockwork", "nexus", "shepherd"]
every_policy = pytest.mark.parametrize("policy", PLUGINS.policies)
every_dropping_policy = pytest.mark.parametrize("policy", DROPPING)
a_few = settings(max_examples=examples(0.05))
SLO_NS = ms_to_ns(70)
TRUTH = Profile.linear("m", alpha_ms=5.09, beta_ms=18.368, max_rows=16)
GUESS = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=16)
"""What the proxy expects of a model of which it is told nothing."""
WORKER = Worker(0, "w0", ("m",))
SECOND_NS = 10**9


# One expectation ------------------------------------------------------------------------------------------------------


class Bench:
    """Expectations of one model on one worker, which legs are run on one after the other."""

    def __init__(self) -> None:
        self.expectations = Expectations([TRUTH], learn=True)
        self.now_ns = 0
        self.told_not_yet: list[Profile] = []
        self._batches = 0

    @property
    def expected_ns(self) -> int:
        return self.expectations.profiles["m", "default", ""].planned_ns(1)

    def start(self) -> Batch:
        self._batches += 1
        batch = Batch(self._batches, "m", (0,), (Leg(0, "m", self.now_ns, 0),))
        if recalled := self.expectations.leg_started(self.now_ns, batch, 0, "default", ""):
            self.told_not_yet.append(recalled)
        return batch

    def tell(self) -> None:
        """The policy hears of what is expected again."""
        while self.told_not_yet:
            self.expectations.recall(self.told_not_yet.pop().key)

    def end(self, batch: Batch) -> None:
        self.expectations.leg_ended(self.now_ns, batch.id)

    def run(self, legs: int, duration_ns: int) -> None:
        for _ in range(legs):
            batch = self.start()
            self.tell()
            self.now_ns += duration_ns
            self.end(batch)
            self.expectations.observe("m", WORKER, "", 1, duration_ns)

    def drop(self, *, due_in_ns: int = SLO_NS, idle: Sequence[Worker] = (WORKER,)) -> bool:
        """Whether the expectation fell for it."""
        dropped = Request(0, "m", 1, self.now_ns, self.now_ns + due_in_ns)
        doubted = self.expectations.doubt(self.now_ns, dropped, lambda partition, kind: idle)
        told = [self.expectations.expect_after_doubt(key) for key in doubted]
        assert told in ([], [TRUTH])
        return bool(doubted)


def test_what_is_doubted_is_expected_until_the_policy_is_told() -> None:
    """A policy may give up a request and dispatch another in one answer: that is judged by what it knew."""
    bench = Bench()
    bench.run(1 + 3 * PUBLISH_EVERY, ms_to_ns(460))
    slow_ns = bench.expected_ns
    bench.now_ns += PATIENCE_NS
    dropped = Request(0, "m", 1, bench.now_ns, bench.now_ns + SLO_NS)
    (key,) = bench.expectations.doubt(bench.now_ns, dropped, lambda partition, kind: [WORKER])
    assert bench.expected_ns == slow_ns > TRUTH.planned_ns(1)
    assert bench.expectations.expect_after_doubt(key) == TRUTH
    assert bench.expected_ns == TRUTH.planned_ns(1)


def test_the_first_leg_on_a_worker_teaches_nothing() -> None:
    bench = Bench()
    bench.run(1, ms_to_ns(460))
    bench.run(3 * PUBLISH_EVERY, TRUTH.planned_ns(1))
    assert bench.expected_ns == TRUTH.planned_ns(1)
    bench.expectations.worker_lost(0)
    bench.run(1, ms_to_ns(460))
    bench.run(3 * PUBLISH_EVERY, TRUTH.planned_ns(1))
    assert bench.expected_ns == TRUTH.planned_ns(1), "one that comes back is cold again"


def test_the_first_legs_on_several_workers_are_believed_until_a_warm_one_decides() -> None:
    """Of many workers each has a first leg: from a guess, nothing would be learned for so long."""
    expectations, workers = (
        Expectations([GUESS], learn=True),
        [Worker(number, f"w{number}", ("m",)) for number in range(3)],
    )
    expected_ns: list[int] = []
    for worker, took_ms in zip(workers, (450, 30, 24), strict=True):
        expectations.observe("m", worker, "", 1, ms_to_ns(took_ms))
        expected_ns.append(expectations.profiles["m", "default", ""].expected_ns(1))
    assert expected_ns == [pytest.approx(ms, rel=1e-3) for ms in (GUESS.expected_ns(1), ms_to_ns(30), ms_to_ns(24))]
    expectations.observe("m", workers[0], "", 1, ms_to_ns(5))
    assert expectations.profiles["m", "default", ""].expected_ns(1) == pytest.approx(ms_to_ns(5), rel=0.01)


def test_nothing_is_given_up_for_the_first_legs_while_a_worker_is_idle() -> None:
    expectations, workers = (
        Expectations([GUESS], learn=True),
        [Worker(number, f"w{number}", ("m",)) for number in range(2)],
    )
    for worker in workers:
        expectations.leg_started(0, Batch(worker.id, "m", (0,), (Leg(worker.id, "m", 0, 0),)), 0, "default", "")
        expectations.leg_ended(1, worker.id)
        expectations.observe("m", worker, "", 1, ms_to_ns(450))
    key = ("m", "default", "")
    assert expectations.profiles[key].expected_ns(1) == pytest.approx(ms_to_ns(450), rel=1e-3)
    dropped = Request(0, "m", 1, 2, 2 + SLO_NS)
    assert expectations.doubt(2, dropped, lambda partition, kind: ()) == []
    assert expectations.doubt(2, dropped, lambda partition, kind: workers) == [key]
    assert expectations.expect_after_doubt(key) == GUESS


@pytest.mark.parametrize("slow_ms", [350, 1000, 3000])
@given(first=st.integers(0, 7), second=st.integers(0, 7))
def test_two_slow_legs_among_the_first_eight_are_outliers(slow_ms: int, first: int, second: int) -> None:
    bench = Bench()
    bench.run(1, TRUTH.planned_ns(1))
    for number in range(PUBLISH_EVERY):
        bench.run(1, ms_to_ns(slow_ms) if number in (first, second) else TRUTH.planned_ns(1))
    assert bench.expected_ns < 1.1 * TRUTH.planned_ns(1)


def test_an_expectation_is_doubted_when_nothing_has_run_for_a_while_and_no_sooner() -> None:
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    assert bench.expected_ns > SLO_NS
    bench.now_ns += PATIENCE_NS - 1
    assert not bench.drop()
    bench.now_ns += 1
    assert not bench.drop(due_in_ns=TRUTH.planned_ns(1) - 1), "nobody could have answered it"
    assert not bench.drop(due_in_ns=10 * SECOND_NS), "it was not for the expectation that it was dropped"
    assert not bench.drop(idle=()), "it may have been dropped because all workers are busy"
    assert bench.drop()
    assert bench.expected_ns == TRUTH.planned_ns(1)
    bench.now_ns += PATIENCE_NS
    assert not bench.drop(), "there is nothing left to doubt"


def test_one_probe_is_let_through() -> None:
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    slow_ns = bench.expected_ns
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    probe = bench.start()
    assert bench.expected_ns == TRUTH.planned_ns(1), "a policy that has not been told yet may plan with it"
    bench.tell()
    assert bench.expected_ns == slow_ns, "the next one waits for what comes of it"
    bench.now_ns += PATIENCE_NS
    assert not bench.drop(idle=()), "its worker is busy"
    assert bench.drop(), "another worker is idle"
    bench.end(probe)  # it failed, say: nothing was observed
    bench.now_ns += PATIENCE_NS
    assert bench.expected_ns == TRUTH.planned_ns(1)


def test_the_probe_decides() -> None:
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    bench.run(1, ms_to_ns(460))
    assert bench.expected_ns == pytest.approx(ms_to_ns(460), rel=0.02), "still slow"
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    bench.run(1, TRUTH.planned_ns(1))
    assert bench.expected_ns == pytest.approx(TRUTH.planned_ns(1), rel=0.02), "no more"


def test_what_stays_slow_is_probed_less_often_where_others_need_the_worker() -> None:
    shared = Worker(0, "w0", ("m", "n"))
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    for _ in range(PROBES):
        bench.now_ns += PATIENCE_NS
        assert bench.drop(idle=[shared])
        bench.run(1, ms_to_ns(460))
    bench.now_ns += PATIENCE_LEGS * bench.expected_ns - 1
    assert not bench.drop(idle=[shared])
    assert bench.drop(), "one that hosts nothing else has nothing else to do"
    bench.run(1, ms_to_ns(460))
    bench.now_ns += PATIENCE_LEGS * bench.expected_ns
    assert bench.drop(idle=[shared])
    bench.run(1, TRUTH.planned_ns(1))
    bench.run(2 * PUBLISH_EVERY, ms_to_ns(460))
    bench.now_ns += PATIENCE_NS
    assert bench.drop(idle=[shared]), "once it was fast again all begins anew"


class OneForTwo(FirstComeFirstServed):
    """Drops the request that waits, where another one has come besides, and runs that in the same answer."""

    best_effort = False
    told: Profile = TRUTH

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        if len(queue) < 2:
            return super().queue_changed(now_ns, queue) if queue and queue.head.deadline_ns == NEVER else ()
        (dropped,) = self.take(queue, 1)
        return [Drop(dropped.id, "deadline"), *super().queue_changed(now_ns, queue)]

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        self.told = event.profile
        return super().on_profile_updated(event)


def test_a_policy_is_told_last_what_is_expected_though_the_probe_leaves_with_the_doubt() -> None:
    policy = OneForTwo(Setup((Model("m", 16, SLO_NS),), (WORKER,), (TRUTH,)), PolicyOptions())
    engine = Engine(policy, name="one for two", strict=True)
    now_ns = 0
    for number in range(1 + PUBLISH_EVERY):  # taught that it is slow
        (start,) = (
            effect
            for effect in engine.handle(RequestArrived(now_ns, Request(number, "m", 1, now_ns)))
            if isinstance(effect, StartLeg)
        )
        began_ns, now_ns = now_ns, now_ns + ms_to_ns(460)
        engine.handle(LegFinished(now_ns, start.batch.id, 0, 0, began_ns, now_ns))
    slow_ns = policy.told.planned_ns(1)
    assert slow_ns > SLO_NS
    now_ns += PATIENCE_NS
    for number, due_in_ns in ((100, SLO_NS), (101, 3 * slow_ns)):
        engine.handle(RequestArrived(now_ns, Request(number, "m", 1, now_ns, now_ns + due_in_ns)))
    assert engine.in_flight == 1, "the probe"
    assert engine.queued == 1, "the one that was dropped for what was expected"
    assert policy.told == engine.expectations.profiles["m", "default", ""]
    assert policy.told.planned_ns(1) == slow_ns


# A service ------------------------------------------------------------------------------------------------------------


class Service:
    """A policy that serves one model for a while; legs take as long as they are told to."""

    def __init__(
        self,
        policy: str,
        leg_ns: Callable[[int, StartLeg], int],
        *,
        seconds: float,
        base: Profile = TRUTH,
        workers: int = 2,
        rate_rps: float = 30.0,
    ) -> None:
        """`leg_ns`: the instant at which a leg starts, and the leg."""
        setup = Setup((Model("m", 16, SLO_NS),), tuple(Worker(n, f"w{n}", ("m",)) for n in range(workers)), (base,))
        log = io.BytesIO()
        observers = [Recorder(log)]
        engine = Engine(PLUGINS.make_policy(policy, setup, {}), name=policy, strict=True, observers=observers)
        self.ends: list[tuple[int, tuple[int, ...]]] = []
        """When each leg ended, and its requests, in the order of their starts."""

        def service(effect: StartLeg) -> int:
            duration_ns = leg_ns(engine.now_ns, effect)
            self.ends.append((engine.now_ns + duration_ns, effect.batch.request_ids))
            return duration_ns

        self.arrivals = list(Poisson(rate_rps).instants_ns(round(seconds * SECOND_NS), random.Random(1)))
        simulation = Simulation(engine, ExactWorkers(taking(service)))
        simulation.schedule(
            RequestArrived(at_ns, Request(number, "m", 1, at_ns, at_ns + SLO_NS))
            for number, at_ns in enumerate(self.arrivals)
        )
        simulation.run()
        self.log = log.getvalue()
        self.tried = {number for _, numbers in self.ends for number in numbers}
        self.in_time = {n for end_ns, numbers in self.ends for n in numbers if end_ns <= self.arrivals[n] + SLO_NS}

    def share(self, of: set[int], from_s: float, to_s: float) -> float:
        """Of the requests that arrived in a while."""
        arrived = {n for n, at_ns in enumerate(self.arrivals) if from_s * SECOND_NS <= at_ns < to_s * SECOND_NS}
        return len(arrived & of) / len(arrived)


def spell_of(legs_ms: Sequence[float], from_s: float, to_s: float) -> Callable[[int, StartLeg], int]:
    """Legs take so long (cyclic) if they start within a while, else what they should."""
    lengths = cycle(legs_ms)

    def leg_ns(now_ns: int, effect: StartLeg) -> int:
        spell = from_s * SECOND_NS <= now_ns < to_s * SECOND_NS
        return ms_to_ns(next(lengths)) if spell else TRUTH.planned_ns(effect.rows)

    return leg_ns


@every_policy
@given(
    slow_ms=st.sampled_from([350, 1000, 3000]), slow=st.sets(st.integers(0, 12), min_size=1), workers=st.integers(1, 3)
)
@example(slow_ms=350, slow={2, 5}, workers=1)
@example(slow_ms=1000, slow={1, 8}, workers=1)
@example(slow_ms=3000, slow={3, 4}, workers=1)
@example(slow_ms=3000, slow=set(range(13)), workers=1)
@a_few
def test_after_slow_legs_the_next_answer_is_there_within_a_second(
    policy: str, slow_ms: float, slow: set[int], workers: int
) -> None:
    """Whichever of the first legs were slow, and be it all of them."""
    legs = count()

    def leg_ns(now_ns: int, effect: StartLeg) -> int:
        del now_ns
        return ms_to_ns(slow_ms) if next(legs) in slow else TRUTH.planned_ns(effect.rows)

    service = Service(policy, leg_ns, seconds=slow_ms / 1000 * (len(slow) + 1) + 12, workers=workers, base=GUESS)
    slow_ended_ns = max(service.ends[number][0] for number in slow if number < len(service.ends))
    backlog = PLUGINS.policy(policy).policy.best_effort  # is answered, though late
    answers_ns = [end_ns for end_ns, numbers in service.ends if backlog or service.in_time.issuperset(numbers)]
    later_ns = sorted(at_ns for at_ns in answers_ns if at_ns > slow_ended_ns)
    assert min(later_ns) - slow_ended_ns <= SECOND_NS
    gaps_ns = [after - before for before, after in pairwise(later_ns)]
    assert max(gaps_ns, default=0) <= SECOND_NS, "nor does it stop again"


@every_dropping_policy
@given(
    legs_ms=st.lists(st.floats(1, 1500), min_size=1, max_size=6),
    spell_s=st.floats(0.1, 8),
    start_s=st.sampled_from([0, 1, 4]),
    workers=st.integers(1, 4),
)
@example(legs_ms=[450], spell_s=1, start_s=0, workers=4)
@example(legs_ms=[454], spell_s=0.5, start_s=0, workers=3)
@example(legs_ms=[1500], spell_s=8, start_s=1, workers=2)
@example(legs_ms=[1, 15, 84, 316], spell_s=5, start_s=1, workers=1)
@a_few
def test_after_any_spell_a_service_recovers(
    policy: str, legs_ms: list[float], spell_s: float, start_s: float, workers: int
) -> None:
    end_s = start_s + spell_s
    rate_rps = 12.0 * workers
    forgotten_s = 1.2 * LATEST / rate_rps  # the margin remembers so many legs
    recovered_s = end_s + (1 + PATIENCE_LEGS) * max(legs_ms) / 1000 + 12 + forgotten_s
    service = Service(
        policy, spell_of(legs_ms, start_s, end_s), seconds=recovered_s + 8, workers=workers, rate_rps=rate_rps
    )
    assert service.share(service.in_time, recovered_s, recovered_s + 8) > 0.9


@every_dropping_policy
@given(leg_ms=st.floats(80, 1500), base=st.sampled_from([TRUTH, GUESS]), workers=st.integers(1, 4))
@a_few
def test_what_is_truly_too_slow_is_tried_now_and_then(policy: str, leg_ms: float, base: Profile, workers: int) -> None:
    taught_s, end_s = 15, 75
    service = Service(policy, spell_of([leg_ms], 0, 1e9), seconds=end_s, base=base, workers=workers, rate_rps=40)
    assert not service.in_time
    tried = service.share(service.tried, taught_s, end_s)
    assert tried > 0
    # Symphony lets idle workers try what may be in time all the same.
    assert tried < 0.2 or (policy == "symphony" and ms_to_ns(leg_ms) < 1.5 * SURPRISE * SLO_NS)


@every_dropping_policy
@pytest.mark.parametrize("cold_legs", [1, 4])
def test_a_cold_start_passes(policy: str, cold_legs: int) -> None:
    """Of each worker the first legs take 460 ms. One is forgiven; four are believed, and then doubted."""
    ran = dict.fromkeys(range(4), 0)

    def leg_ns(now_ns: int, effect: StartLeg) -> int:
        del now_ns
        (leg,) = effect.batch.legs
        ran[leg.worker_id] += 1
        return ms_to_ns(460) if ran[leg.worker_id] <= cold_legs else TRUTH.planned_ns(effect.rows)

    service = Service(policy, leg_ns, seconds=40, workers=4, rate_rps=100)
    warm_s = 3 if cold_legs == 1 else 30
    assert service.share(service.in_time, warm_s, 40) > 0.95


@every_dropping_policy
def test_a_base_that_is_a_guess_far_too_small_is_corrected_at_once(policy: str) -> None:
    service = Service(policy, spell_of([1], 0, 0), seconds=10, base=GUESS, workers=4, rate_rps=60)
    assert service.share(service.in_time, 1, 10) > 0.95


@every_dropping_policy
def test_doubts_are_replayed(policy: str) -> None:
    service = Service(policy, spell_of([450], 1, 3), seconds=15)
    header, entries = read_log(service.log.splitlines())
    made = PLUGINS.make_policy(policy, header.setup, header.options)
    assert replay(header, entries, made).difference is None
