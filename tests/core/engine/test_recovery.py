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
    Model,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    ms_to_ns,
)
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate.engine import Engine, StartStage
from tidegate.engine.estimates.expectations import MAX_PROBES, PATIENCE_STAGES
from tidegate.engine.estimates.learner import MARGIN_WINDOW_STAGES
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.replay import replay
from tidegate.sim.workers import taking
from tidegate.workload import Poisson

PLUGINS = Plugins.installed()
DROPPING = ["symphony", "eager", "timeout", "clockwork", "nexus", "shepherd"]
every_policy = pytest.mark.parametrize("policy", PLUGINS.policies)
every_dropping_policy = pytest.mark.parametrize("policy", DROPPING)
a_few = settings(max_examples=examples(0.034))
SLO_NS = ms_to_ns(70)
TRUTH = Profile.linear("m", alpha_ms=5.09, beta_ms=18.368, max_rows=16)
GUESS = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=16)
"""What the proxy expects of a model of which it is told nothing."""
SECOND_NS = 10**9


class Service:
    """A policy that serves one model for a while; stages take as long as they are told to."""

    def __init__(
        self,
        policy: str,
        stage_ns: Callable[[int, StartStage], int],
        *,
        seconds: float,
        base: Profile = TRUTH,
        workers: int = 2,
        rate_rps: float = 30.0,
    ) -> None:
        """`stage_ns`: the instant at which a stage starts, and the stage."""
        setup = Setup((Model("m", 16, SLO_NS),), tuple(Worker(n, f"w{n}", ("m",)) for n in range(workers)), (base,))
        log = io.BytesIO()
        observers = [Recorder(log)]
        engine = Engine(PLUGINS.make_policy(policy, setup, {}), name=policy, strict=True, observers=observers)
        self.ends: list[tuple[int, tuple[int, ...]]] = []
        """When each stage ended, and its requests, in the order of their starts."""

        def service(effect: StartStage) -> int:
            duration_ns = stage_ns(engine.now_ns, effect)
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
        self.on_time = {n for end_ns, numbers in self.ends for n in numbers if end_ns <= self.arrivals[n] + SLO_NS}

    def share(self, of: set[int], from_s: float, to_s: float) -> float:
        """Of the requests that arrived in a while."""
        arrived = {n for n, at_ns in enumerate(self.arrivals) if from_s * SECOND_NS <= at_ns < to_s * SECOND_NS}
        return len(arrived & of) / len(arrived)


def spell_of(stages_ms: Sequence[float], from_s: float, to_s: float) -> Callable[[int, StartStage], int]:
    """Stages take so long (cyclic) if they start within a while, else what they should."""
    lengths = cycle(stages_ms)

    def stage_ns(now_ns: int, effect: StartStage) -> int:
        spell = from_s * SECOND_NS <= now_ns < to_s * SECOND_NS
        return ms_to_ns(next(lengths)) if spell else TRUTH.upper_ns(effect.rows)

    return stage_ns


@every_policy
@given(
    slow_ms=st.sampled_from([350, 1000, 3000]), slow=st.sets(st.integers(0, 12), min_size=1), workers=st.integers(1, 3)
)
@example(slow_ms=3000, slow={3, 4}, workers=1)
@example(slow_ms=3000, slow=set(range(13)), workers=1)
@a_few
def test_after_slow_stages_the_next_answer_is_there_within_a_second(
    policy: str, slow_ms: float, slow: set[int], workers: int
) -> None:
    """Whichever of the first stages were slow, and be it all of them."""
    stages = count()

    def stage_ns(now_ns: int, effect: StartStage) -> int:
        del now_ns
        return ms_to_ns(slow_ms) if next(stages) in slow else TRUTH.upper_ns(effect.rows)

    service = Service(policy, stage_ns, seconds=slow_ms / 1000 * (len(slow) + 1) + 12, workers=workers, base=GUESS)
    slow_ended_ns = max(service.ends[number][0] for number in slow if number < len(service.ends))
    backlog = PLUGINS.policy(policy).policy.best_effort  # is answered, though late
    answers_ns = [end_ns for end_ns, numbers in service.ends if backlog or service.on_time.issuperset(numbers)]
    later_ns = sorted(at_ns for at_ns in answers_ns if at_ns > slow_ended_ns)
    assert min(later_ns) - slow_ended_ns <= SECOND_NS
    gaps_ns = [after - before for before, after in pairwise(later_ns)]
    assert max(gaps_ns, default=0) <= SECOND_NS, "nor does it stop again"


@every_dropping_policy
@given(
    stages_ms=st.lists(st.floats(1, 1500), min_size=1, max_size=6),
    spell_s=st.floats(0.1, 8),
    start_s=st.sampled_from([0, 1, 4]),
    workers=st.integers(1, 4),
)
@example(stages_ms=[450], spell_s=1, start_s=0, workers=4)
@example(stages_ms=[1500], spell_s=8, start_s=1, workers=2)
@example(stages_ms=[1, 15, 84, 316], spell_s=5, start_s=1, workers=1)
@a_few
def test_after_any_spell_a_service_recovers(
    policy: str, stages_ms: list[float], spell_s: float, start_s: float, workers: int
) -> None:
    end_s = start_s + spell_s
    rate_rps = 12.0 * workers
    forgotten_s = 1.2 * MARGIN_WINDOW_STAGES / rate_rps  # the margin remembers so many stages
    recovered_s = end_s + (1 + PATIENCE_STAGES) * max(stages_ms) / 1000 + 12 + forgotten_s
    service = Service(
        policy, spell_of(stages_ms, start_s, end_s), seconds=recovered_s + 8, workers=workers, rate_rps=rate_rps
    )
    assert service.share(service.on_time, recovered_s, recovered_s + 8) > 0.9


@every_dropping_policy
@given(stage_ms=st.floats(80, 1500), base=st.sampled_from([TRUTH, GUESS]), workers=st.integers(1, 4))
@a_few
def test_what_is_truly_too_slow_is_tried_now_and_then(
    policy: str, stage_ms: float, base: Profile, workers: int
) -> None:
    taught_s, end_s = 15, 45
    service = Service(policy, spell_of([stage_ms], 0, 1e9), seconds=end_s, base=base, workers=workers, rate_rps=40)
    assert not service.on_time
    tried = service.share(service.tried, taught_s, end_s)
    assert tried > 0
    # Symphony lets idle workers try what may be on time all the same.
    assert tried < 0.2 or (policy == "symphony" and ms_to_ns(stage_ms) < 1.5 * MAX_SURPRISE_FACTOR * SLO_NS)


@every_dropping_policy
@pytest.mark.parametrize("cold_stages", [1, 4])
def test_a_cold_start_passes(policy: str, cold_stages: int) -> None:
    """Of each worker the first stages take 460 ms. One is forgiven; four are believed, and then doubted."""
    ran = dict.fromkeys(range(4), 0)

    def stage_ns(now_ns: int, effect: StartStage) -> int:
        del now_ns
        (stage,) = effect.batch.stages
        ran[stage.worker_id] += 1
        return ms_to_ns(460) if ran[stage.worker_id] <= cold_stages else TRUTH.upper_ns(effect.rows)

    warm_s = 3 if cold_stages == 1 else 30
    service = Service(policy, stage_ns, seconds=warm_s + 5, workers=4, rate_rps=70)
    assert service.share(service.on_time, warm_s, warm_s + 5) > 0.95


@every_dropping_policy
def test_a_base_that_is_a_guess_far_too_small_is_corrected_at_once(policy: str) -> None:
    service = Service(policy, spell_of([1], 0, 0), seconds=10, base=GUESS, workers=4, rate_rps=60)
    assert service.share(service.on_time, 1, 10) > 0.95


@every_dropping_policy
def test_doubts_are_replayed(policy: str) -> None:
    service = Service(policy, spell_of([450], 1, 3), seconds=15)
    header, entries = read_log(service.log.splitlines())
    made = PLUGINS.make_policy(policy, header.setup, header.options)
    assert replay(header, entries, made).difference is None


@every_dropping_policy
@pytest.mark.parametrize("times", [2.9, 3.1, 40])
def test_a_profile_of_another_machine_refuses_nobody_for_long(policy: str, times: float) -> None:
    """By what was measured no request can be on time; in truth all can, with much to spare."""
    service = Service(policy, lambda now_ns, stage: TRUTH.upper_ns(stage.rows), seconds=12, base=TRUTH.scaled(times))
    assert service.share(service.on_time, 4, 12) > 0.95


@every_dropping_policy
@pytest.mark.parametrize("times", [1.6, 4])
def test_a_slow_spell_at_the_start_proves_no_profile(policy: str, times: float) -> None:
    """Neither one that is right, though little more than it says would be too late, nor one of a slower machine."""

    def stage_ns(now_ns: int, stage: StartStage) -> int:
        return ms_to_ns(900) if now_ns < 6 * SECOND_NS else TRUTH.upper_ns(stage.rows)

    service = Service(policy, stage_ns, seconds=14, base=TRUTH.scaled(times))
    assert service.share(service.on_time, 9, 14) > 0.95


@every_dropping_policy
def test_a_profile_that_is_as_slow_as_it_says_is_tried_and_then_believed(policy: str) -> None:
    slow = TRUTH.scaled(20)
    service = Service(policy, lambda now_ns, stage: slow.upper_ns(stage.rows), seconds=12, base=slow)
    assert 1 <= len(service.ends) <= 2 * (1 + MAX_PROBES)
    assert max(end_ns for end_ns, _ in service.ends) < 8 * SECOND_NS
