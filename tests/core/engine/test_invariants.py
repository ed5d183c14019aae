"""The numbered invariants, one test each, over every installed policy (docs/reference/invariants.md)."""

import io
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.engine.worlds import (
    Ledger,
    Watch,
    assert_nothing_lost,
    crowded,
    log_of,
    run,
    with_other_plans,
    world,
)
from tests.examples import examples
from tidegate.api import AnyCommand, AnyEvent, Commands, Drop, PolicySpec, RequestArrived, StageFinished
from tidegate.engine import AnyStimulus, ClockAdvanced, Engine, InvariantViolation, PolicyReplaced, StartStage
from tidegate.engine.kernel.in_flight import MAX_LEAD_NS
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.testing import random_world, run_world

pytestmark = pytest.mark.apart
PLUGINS = Plugins.installed()
every_policy = pytest.mark.parametrize("spec", PLUGINS.policies.values(), ids=lambda spec: spec.name)
# Worlds drawn choice by choice go to extremes and shrink. Those by seed are mixed, and find what the others have not:
# where nobody has tried yet is explored with both (`make explore`).
RNG = st.randoms(use_true_random=False)
if not settings().derandomize:
    RNG |= st.randoms(use_true_random=True)
worlds = given(rng=RNG)
a_few = settings(max_examples=examples(0.034))


@every_policy
@worlds
@a_few
def test_1_conservation(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    assert_nothing_lost(run(spec, scenario), scenario)


@every_policy
@worlds
@a_few
def test_1_conservation_while_plans_change(spec: PolicySpec, rng: random.Random) -> None:
    """The policy that follows may have no worker yet for what waits: all of them have work of the one before."""
    scenario = with_other_plans(rng, world(spec, rng))
    assert_nothing_lost(run(spec, scenario), scenario)


@every_policy
@worlds
@a_few
def test_2_exclusivity(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    driver = run(spec, scenario)
    for (worker, _, end), (next_worker, next_start, _) in itertools.pairwise(sorted(driver.intervals)):
        assert worker != next_worker or end <= next_start
    assert driver.most_sent <= (2 if scenario.first_lead_ns and spec.policy.supports_pipelined_dispatch else 1)


def without_shape(event: AnyStimulus) -> AnyStimulus:
    if not isinstance(event, RequestArrived):
        return event
    return RequestArrived(event.now_ns, msgspec.structs.replace(event.request, shape=""))


@every_policy
@worlds
@a_few
def test_2_exclusivity_nothing_is_sent_long_before_the_stage_before_it_ends(
    spec: PolicySpec, rng: random.Random
) -> None:
    """Where stages take as long as expected it can be told how early: no more than the lead, whatever is urgent
    then."""
    scenario = random_world(rng, disturbances=False, pipelines=spec.policy.runs_pipelines and rng.random() < 0.5)
    events = [without_shape(event) for event in scenario.events]  # what a new shape takes is a guess
    watch = Watch()
    driver = run(spec, replace(scenario, events=tuple(events)), observer=watch)
    sent = {
        (effect.batch.id, effect.stage): now_ns for now_ns, effect in driver.effects if isinstance(effect, StartStage)
    }
    before: dict[int, StageFinished] = {}
    for event, _ in watch.seen:
        if isinstance(event, StageFinished):
            early_ns = event.started_ns - sent[event.batch_id, event.stage]
            if early_ns:
                ran_ns = before[event.worker_id].ended_ns - before[event.worker_id].started_ns
                assert early_ns <= min(MAX_LEAD_NS, ran_ns)
            before[event.worker_id] = event


@every_policy
@worlds
@a_few
def test_3_causality(spec: PolicySpec, rng: random.Random) -> None:
    watch = Watch()
    driver = run(spec, world(spec, rng), observer=watch)
    for now_ns, effect in driver.effects:
        if isinstance(effect, StartStage) and (effect.batch.id, effect.stage) not in driver.sent_behind:
            assert effect.batch.stages[effect.stage].start_ns <= now_ns, "as planned, or as planned anew"
    arrived = {event.request.id: event.now_ns for event, _ in watch.seen if isinstance(event, RequestArrived)}
    for decided_ns, dispatch in watch.dispatches():
        batch = dispatch.batch
        assert all(arrived[request_id] <= decided_ns for request_id in batch.request_ids)
        assert all(decided_ns <= stage.start_ns for stage in batch.stages)
        assert all(before.end_ns <= after.start_ns for before, after in itertools.pairwise(batch.stages))


@every_policy
@worlds
@a_few
def test_4_monotone_clock(spec: PolicySpec, rng: random.Random) -> None:
    engine = run(spec, world(spec, rng)).engine
    now_ns = engine.now_ns + rng.randint(1, 1000)
    engine.handle(ClockAdvanced(now_ns))
    engine.handle(ClockAdvanced(now_ns))
    with pytest.raises(InvariantViolation, match=f"an event of {now_ns - 1} came after {now_ns}") as refused:
        engine.handle(ClockAdvanced(now_ns - 1))
    assert refused.value.number == 4
    assert engine.now_ns == now_ns


@every_policy
@worlds
@a_few
def test_5_no_oracle(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    horizon_ns = rng.randint(0, 250_000_000)
    delay_ns = rng.randint(1, 50_000_000)

    class OtherFuture(Ledger):
        """Whatever ends after the horizon ends at another instant after it."""

        def true_end(self, number: int, started_ns: int, duration_ns: int) -> int:
            ended_ns = super().true_end(number, started_ns, duration_ns)
            return ended_ns if ended_ns < horizon_ns else ended_ns + delay_ns * (number % 3)

    def until_the_horizon(driver: type[Ledger]) -> list[tuple[AnyStimulus, Sequence[AnyCommand]]]:
        watch = Watch()
        run(spec, scenario, observer=watch, driver=driver)
        return [(event, commands) for event, commands in watch.seen if event.now_ns < horizon_ns]

    assert until_the_horizon(Ledger) == until_the_horizon(OtherFuture)


@every_policy
@worlds
@a_few
def test_6_determinism(spec: PolicySpec, rng: random.Random) -> None:
    scenario = world(spec, rng)
    assert log_of(spec, scenario) == log_of(spec, scenario)


def test_6_determinism_across_processes() -> None:
    """The order of sets and of hashes of strings must not show."""
    program = f"import runpy; print(runpy.run_path({__file__!r})['digest_of_logs']())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "4")  # with which sets of the names of models have another order
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


@every_policy
@given(rng=RNG, learn=st.booleans())
@a_few
def test_7_parity(spec: PolicySpec, rng: random.Random, learn: bool) -> None:
    recorded = log_of(spec, world(spec, rng), learn=learn)
    header, entries = read_log(recorded.splitlines())
    replayed = io.BytesIO()
    policy = PLUGINS.make_policy(header.policy, header.setup, header.options)
    lead_ns = header.settings.first_lead_ns
    engine = Engine(policy, name=header.policy, learn=learn, observers=[Recorder(replayed)], first_lead_ns=lead_ns)
    for entry in entries:
        engine.handle(entry.event)
    assert replayed.getvalue() == recorded


@every_policy
@worlds
@a_few
def test_8_deadline_honesty(spec: PolicySpec, rng: random.Random) -> None:
    if spec.policy.best_effort:
        pytest.skip("declares itself best-effort")
    scenario = world(spec, rng)
    watch = Watch()
    run(spec, scenario, observer=watch, learn=False)
    requests = {event.request.id: event.request for event, _ in watch.seen if isinstance(event, RequestArrived)}
    kinds = {worker.id: worker.device_class for worker in scenario.setup.workers}
    profiles = {(profile.partition, profile.device_class): profile for profile in scenario.setup.profiles}
    for _, dispatch in watch.dispatches():
        batch = dispatch.batch
        taken = [requests[request_id] for request_id in batch.request_ids]
        rows = sum(request.rows for request in taken)
        along = [profiles[stage.partition, kinds[stage.worker_id]] for stage in batch.stages]
        booked = zip(batch.stages, along, strict=True)
        assert all(stage.duration_ns >= profile.upper_ns(rows) for stage, profile in booked)
        upper_ns = sum(profile.upper_ns(rows) for profile in along[:-1])
        soonest_ns = batch.stages[0].start_ns + upper_ns + along[-1].lower_bound_ns(rows)
        assert all(
            soonest_ns <= request.deadline_ns or request.late_until_ns > batch.stages[0].start_ns for request in taken
        )


@every_policy
@pytest.mark.parametrize("fault", ["raises", "gives an invalid command"])
@given(rng=RNG, nth=st.integers(0, 60))
@a_few
def test_9_isolation(spec: PolicySpec, fault: str, rng: random.Random, nth: int) -> None:
    calls = 0

    class Breaking(spec.policy):  # type: ignore[name-defined,misc]  # whichever policy is tried
        def handle(self, event: AnyEvent) -> Commands:
            nonlocal calls
            calls += 1
            commands: Commands = super().handle(event)
            if calls - 1 != nth:
                return commands
            if fault == "raises":
                raise RuntimeError("made to break")
            return [*commands, Drop(-1, "never queued")]

    scenario = world(spec, rng)
    driver = run(PolicySpec("breaking", "", Breaking), scenario, strict=False)
    assert_nothing_lost(driver, scenario)
    replaced = [effect for _, effect in driver.effects if isinstance(effect, PolicyReplaced)]
    assert len(replaced) == (calls > nth)
    assert all(effect.policy == "breaking" for effect in replaced)


@pytest.mark.parametrize(
    ("name", "fault", "seed", "nth"),
    [("timeout", "raises", 3777, 50), ("orloj", "gives an invalid command", 6005305126, 36)],
)
def test_a_policy_that_breaks_when_told_of_a_worker(name: str, fault: str, seed: int, nth: int) -> None:
    """Its successor has the worker from the start, gives it what is late, and is not told once more that it is idle."""
    tried = test_9_isolation.hypothesis.inner_test
    tried(PLUGINS.policies[name], fault, random.Random(seed), nth)


@every_policy
@worlds
@a_few
def test_10_no_idle_refusal(spec: PolicySpec, rng: random.Random) -> None:
    if spec.policy.early_drop_reason:
        pytest.skip(spec.policy.early_drop_reason)
    run_world(spec, world(spec, rng))


def digest_of_logs() -> str:
    """Of every policy in two worlds; the runs of another process are compared by it."""
    import hashlib

    digest = hashlib.sha256()
    for spec in PLUGINS.policies.values():
        rng = random.Random(0)
        scenario = world(spec, rng)
        digest.update(log_of(spec, scenario))
        digest.update(log_of(spec, crowded(rng, scenario)))
    return digest.hexdigest()


@pytest.mark.parametrize("seed", [1771, 15489])
def test_what_has_another_chance_is_in_the_books_of_all(seed: int) -> None:
    """What a policy gave up for an expectation that is doubted waits, while others begin to wait or are called back."""
    eager = PLUGINS.policies["eager"]
    run(eager, world(eager, random.Random(seed)))


def test_what_is_not_expected_any_more_is_told_at_once() -> None:
    """A doubt was caused by requests given up while it was the turn of others: the policy learns that it is over."""
    ppipe = PLUGINS.policies["ppipe"]
    log_of(ppipe, world(ppipe, random.Random(1099254135807180032)))


@pytest.mark.parametrize(
    ("name", "seed"), [("eager", 900009494), ("symphony", 900008320), ("symphony", 900016984), ("ppipe", 900001692)]
)
def test_a_worker_that_is_lost_as_something_was_to_start_there(name: str, seed: int) -> None:
    """Drivers are not told of it, and workers further on are free of what never comes to them."""
    spec = PLUGINS.policies[name]
    log_of(spec, world(spec, random.Random(seed)))
