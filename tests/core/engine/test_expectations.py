"""What is expected of one model: when it is doubted, what a probe is, and what the policy is told of that."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import (
    NEVER_NS,
    Batch,
    Commands,
    Drop,
    Model,
    PolicyOptions,
    Profile,
    ProfileKey,
    ProfileUpdated,
    Request,
    RequestArrived,
    Setup,
    Stage,
    StageFinished,
    Worker,
    ms_to_ns,
)
from tidegate.engine import Engine, StartStage
from tidegate.engine.estimates.expectations import MAX_PROBES, PATIENCE_NS, PATIENCE_STAGES, Expectations
from tidegate.engine.estimates.learner import PUBLISH_EVERY
from tidegate.toolkit import FirstComeFirstServed, RequestQueue

SLO_NS = ms_to_ns(70)
TRUTH = Profile.linear("m", alpha_ms=5.09, beta_ms=18.368, max_rows=16)
GUESS = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=16)
"""What the proxy expects of a model of which it is told nothing."""
WORKER = Worker(0, "w0", ("m",))
SECOND_NS = 10**9


class Bench:
    """Expectations of one model on one worker, which stages are run on one after the other."""

    def __init__(self) -> None:
        self.expectations = Expectations([TRUTH], learn=True)
        self.expectations.extend((), [Model("m", 16)])
        self.now_ns = 0
        self.told_not_yet: list[ProfileKey] = []
        self._batches = 0

    @property
    def expected_ns(self) -> int:
        return self.expectations.profiles["m", "default", ""].upper_ns(1)

    def start(self) -> Batch:
        self._batches += 1
        batch = Batch(self._batches, "m", (0,), (Stage(0, "m", self.now_ns, 0),))
        if recalled := self.expectations.stage_started(self.now_ns, batch, 0, "default", ""):
            self.told_not_yet.append(recalled)
        return batch

    def tell(self) -> None:
        """The policy hears of what is expected again."""
        while self.told_not_yet:
            self.expectations.recall(self.told_not_yet.pop())

    def end(self, batch: Batch) -> None:
        self.expectations.stage_ended(self.now_ns, batch.id)

    def run(self, stages: int, duration_ns: int) -> None:
        for _ in range(stages):
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
    assert bench.expected_ns == slow_ns > TRUTH.upper_ns(1)
    assert bench.expectations.expect_after_doubt(key) == TRUTH
    assert bench.expected_ns == TRUTH.upper_ns(1)


def test_the_first_stage_on_a_worker_teaches_nothing() -> None:
    bench = Bench()
    bench.run(1, ms_to_ns(460))
    bench.run(3 * PUBLISH_EVERY, TRUTH.upper_ns(1))
    assert bench.expected_ns == TRUTH.upper_ns(1)
    bench.expectations.worker_lost(0)
    bench.run(1, ms_to_ns(460))
    bench.run(3 * PUBLISH_EVERY, TRUTH.upper_ns(1))
    assert bench.expected_ns == TRUTH.upper_ns(1), "one that comes back is cold again"


def test_the_first_stages_on_several_workers_are_believed_until_a_warm_one_decides() -> None:
    """Of many workers each has a first stage: from a guess, nothing would be learned for so long."""
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


def test_nothing_is_given_up_for_the_first_stages_while_a_worker_is_idle() -> None:
    expectations, workers = (
        Expectations([GUESS], learn=True),
        [Worker(number, f"w{number}", ("m",)) for number in range(2)],
    )
    expectations.extend((), [Model("m", 16)])
    for worker in workers:
        expectations.stage_started(0, Batch(worker.id, "m", (0,), (Stage(worker.id, "m", 0, 0),)), 0, "default", "")
        expectations.stage_ended(1, worker.id)
        expectations.observe("m", worker, "", 1, ms_to_ns(450))
    key = ("m", "default", "")
    assert expectations.profiles[key].expected_ns(1) == pytest.approx(ms_to_ns(450), rel=1e-3)
    dropped = Request(0, "m", 1, 2, 2 + SLO_NS)
    assert expectations.doubt(2, dropped, lambda partition, kind: ()) == []
    assert expectations.doubt(2, dropped, lambda partition, kind: workers) == [key]
    assert expectations.expect_after_doubt(key) == GUESS


@pytest.mark.parametrize("slow_ms", [350, 1000, 3000])
@given(first=st.integers(0, 7), second=st.integers(0, 7))
def test_two_slow_stages_among_the_first_eight_are_outliers(slow_ms: int, first: int, second: int) -> None:
    bench = Bench()
    bench.run(1, TRUTH.upper_ns(1))
    for number in range(PUBLISH_EVERY):
        bench.run(1, ms_to_ns(slow_ms) if number in (first, second) else TRUTH.upper_ns(1))
    assert bench.expected_ns < 1.1 * TRUTH.upper_ns(1)


def test_an_expectation_is_doubted_when_nothing_has_run_for_a_while_and_no_sooner() -> None:
    bench = Bench()
    bench.run(1 + MAX_PROBES, TRUTH.upper_ns(1))
    bench.run(4 * PUBLISH_EVERY, ms_to_ns(460))
    assert bench.expected_ns > SLO_NS
    bench.now_ns += PATIENCE_NS - 1
    assert not bench.drop()
    bench.now_ns += 1
    assert not bench.drop(due_in_ns=TRUTH.upper_ns(1) - 1), "nobody could have answered it"
    assert not bench.drop(due_in_ns=10 * SECOND_NS), "it was not for the expectation that it was dropped"
    assert not bench.drop(idle=()), "it may have been dropped because all workers are busy"
    assert bench.drop()
    assert bench.expected_ns == TRUTH.upper_ns(1)
    bench.now_ns += PATIENCE_NS
    assert not bench.drop(), "there is nothing left to doubt"


def test_one_probe_is_let_through() -> None:
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    slow_ns = bench.expected_ns
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    probe = bench.start()
    assert bench.expected_ns == TRUTH.upper_ns(1), "a policy that has not been told yet may plan with it"
    bench.tell()
    assert bench.expected_ns == slow_ns, "the next one waits for what comes of it"
    bench.now_ns += PATIENCE_NS
    assert not bench.drop(idle=()), "its worker is busy"
    assert bench.drop(), "another worker is idle"
    bench.end(probe)  # it failed, say: nothing was observed
    bench.now_ns += PATIENCE_NS
    assert bench.expected_ns == TRUTH.upper_ns(1)


def test_the_probe_decides() -> None:
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    bench.run(1, ms_to_ns(460))
    assert bench.expected_ns == pytest.approx(ms_to_ns(460), rel=0.02), "still slow"
    bench.now_ns += PATIENCE_NS
    assert bench.drop()
    bench.run(1, TRUTH.upper_ns(1))
    assert bench.expected_ns == pytest.approx(TRUTH.upper_ns(1), rel=0.02), "no more"


def test_what_stays_slow_is_probed_less_often_where_others_need_the_worker() -> None:
    shared = Worker(0, "w0", ("m", "n"))
    bench = Bench()
    bench.run(1 + PUBLISH_EVERY, ms_to_ns(460))
    for _ in range(MAX_PROBES):
        bench.now_ns += PATIENCE_NS
        assert bench.drop(idle=[shared])
        bench.run(1, ms_to_ns(460))
    bench.now_ns += PATIENCE_STAGES * bench.expected_ns - 1
    assert not bench.drop(idle=[shared])
    assert bench.drop(), "one that hosts nothing else has nothing else to do"
    bench.run(1, ms_to_ns(460))
    bench.now_ns += PATIENCE_STAGES * bench.expected_ns
    assert bench.drop(idle=[shared])
    bench.run(1, TRUTH.upper_ns(1))
    bench.run(2 * PUBLISH_EVERY, ms_to_ns(460))
    bench.now_ns += PATIENCE_NS
    assert bench.drop(idle=[shared]), "once it was fast again all begins anew"


class OneForTwo(FirstComeFirstServed):
    """Drops the request that waits, where another one has come besides, and runs that in the same answer."""

    best_effort = False
    told: Profile = TRUTH

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        if len(queue) < 2:
            return super().queue_changed(now_ns, queue) if queue and queue.head.deadline_ns == NEVER_NS else ()
        (dropped,) = self.take(queue, 1)
        return [Drop(dropped.id, "deadline_unreachable"), *super().queue_changed(now_ns, queue)]

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        self.received = event.profile
        return super().on_profile_updated(event)


def test_a_policy_is_told_last_what_is_expected_though_the_probe_leaves_with_the_doubt() -> None:
    policy = OneForTwo(Setup((Model("m", 16, SLO_NS),), (WORKER,), (TRUTH,)), PolicyOptions())
    engine = Engine(policy, name="one for two", strict=True)
    now_ns = 0
    for number in range(1 + PUBLISH_EVERY):  # taught that it is slow
        (start,) = (
            effect
            for effect in engine.handle(RequestArrived(now_ns, Request(number, "m", 1, now_ns)))
            if isinstance(effect, StartStage)
        )
        began_ns, now_ns = now_ns, now_ns + ms_to_ns(460)
        engine.handle(StageFinished(now_ns, start.batch.id, 0, 0, began_ns, now_ns))
    slow_ns = policy.received.upper_ns(1)
    assert slow_ns > SLO_NS
    now_ns += PATIENCE_NS
    for number, due_in_ns in ((100, SLO_NS), (101, 3 * slow_ns)):
        engine.handle(RequestArrived(now_ns, Request(number, "m", 1, now_ns, now_ns + due_in_ns)))
    assert engine.in_flight == 1, "the probe"
    assert engine.queued == 1, "the one that was dropped for what was expected"
    assert policy.received == engine.expectations.profiles["m", "default", ""]
    assert policy.received.upper_ns(1) == slow_ns
