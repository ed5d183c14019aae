"""The tuner: windows of traffic in, verdicts out. Simulations are given, so that each rule shows by itself."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.core.sim.tuning.windows import S, arrivals, window
from tidegate.control.settings import TuningOptions
from tidegate.observation import PolicyChanged, PolicyTuned
from tidegate.sim.tuning.candidates import PolicyCandidate
from tidegate.sim.tuning.policy_comparison import GAIN_BLOCKS, CandidateOutcome, Comparison, ComparisonJob
from tidegate.sim.tuning.tuner import BAN_NS, PolicyTuner

FIRST, OTHER, THIRD = PolicyCandidate("first"), PolicyCandidate("other"), PolicyCandidate("third", {"x": 1})
OFTEN = TuningOptions(interval_s=5)
PER_BLOCK = 100
Attained = dict[str, float]
"""Attainment by title."""


class World:
    """Traffic of one load after the other, and what simulations say of it."""

    def __init__(self, options: TuningOptions = OFTEN) -> None:
        self.tuner = PolicyTuner(options, FIRST, lambda setup: [FIRST, OTHER, THIRD])
        self.engine_policy = FIRST.policy
        self.events: list[PolicyTuned | PolicyChanged] = []
        self.now_ns = 0

    def step(self, simulated: Attained, measured: float | None = None, rate: float = 100, why: str = "") -> str:
        """A window passes; returns the latest verdict."""
        job = self.window_over(rate, simulated[self.tuner.present.title] if measured is None else measured)
        if job is not None:
            self.answer(job, simulated, measured, why)
        return self.tuner.verdict.verdict

    def window_over(self, rate: float = 100, measured: float = 0.5) -> ComparisonJob | None:
        """A window passes; returns what is to be compared."""
        self.now_ns = self.tuner.next_wake_ns
        since_ns = max(self.tuner.since_ns, self.now_ns - round(1000 * S / rate))
        job, events = self.tuner.begin(window(arrivals(since_ns, self.now_ns, rate), since_ns, self.now_ns, measured))
        self.take(events)
        return job

    def answer(self, job: ComparisonJob, simulated: Attained, measured: float | None, why: str = "") -> None:
        """The comparison ends."""
        outcomes = [
            CandidateOutcome(each, why=why)
            if each.title not in simulated
            else CandidateOutcome(each, blocks(simulated[each.title]), {"m": simulated[each.title]})
            for each in job.candidates
        ]
        truth = simulated.get(self.tuner.present.title, 0.0) if measured is None else measured
        self.take(self.tuner.decide(self.now_ns, Comparison([PER_BLOCK] * GAIN_BLOCKS, blocks(truth), outcomes, 1)))

    def take(self, events: Sequence[PolicyTuned | PolicyChanged]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, PolicyChanged):
                self.engine_policy = event.policy


def blocks(attainment: float) -> list[int]:
    """So many of each block on time, a few more in every other one."""
    return [round(PER_BLOCK * attainment) + (number % 2) * 2 - 1 for number in range(GAIN_BLOCKS)]


BETTER = {"first": 0.5, "other": 0.7, "third (x=1)": 0.6}


def test_a_policy_that_is_better_in_two_windows_replaces_the_present_one() -> None:
    world = World()
    assert world.step(BETTER) == "kept"
    assert "other: +20.0 points" in world.tuner.verdict.reason
    assert world.step(BETTER) == "replaced"
    assert world.engine_policy == "other"
    assert world.tuner.verdict.gain == (0.2, 0.2)
    told, changed = world.events[-2:]
    assert isinstance(told, PolicyTuned) and isinstance(changed, PolicyChanged)
    assert told.reason.endswith("are on time when simulated, and 50.0 % with first, in two windows")


def test_a_gain_that_does_not_return_changes_nothing() -> None:
    world = World()
    world.step(BETTER)
    assert world.step({**BETTER, "other": 0.5}) == "kept"
    assert world.step(BETTER) == "kept"
    assert world.engine_policy == "first"


def test_it_goes_back_where_the_gain_did_not_come_true() -> None:
    world = World()
    world.step(BETTER)
    world.step(BETTER)
    assert world.step(BETTER, measured=0.4) == "reverted"
    assert world.engine_policy == "first"
    assert "other answers fewer requests on time than first would" in world.tuner.verdict.reason
    for _ in range(4):  # it is no candidate for some time
        world.step(BETTER)
    assert world.engine_policy == "third"
    assert world.now_ns < BAN_NS


def test_a_remembered_load_needs_one_window() -> None:
    world = World()
    for _ in range(3):
        world.step(BETTER)
    assert world.engine_policy == "other"
    back = {"first": 0.8, "other": 0.6, "third (x=1)": 0.5}
    for _ in range(5):
        world.step(back, rate=400)
    assert world.engine_policy == "first"
    assert world.step(BETTER) == "replaced"
    assert world.tuner.verdict.reason.endswith("as before under this load")


def test_a_dry_run_only_says_what_it_would_do() -> None:
    world = World(TuningOptions(interval_s=5, dry_run=True))
    world.step(BETTER)
    assert world.step(BETTER) == "proposed"
    assert world.tuner.verdict.reason.startswith("auto would run other: +20.0 points (+20.0 to +20.0)")
    assert world.tuner.verdict.policy == "other"
    assert not any(isinstance(event, PolicyChanged) for event in world.events)


def test_a_simulator_that_disagrees_with_what_is_measured_changes_nothing() -> None:
    world = World()
    for _ in range(6):
        assert world.step(BETTER, measured=0.75) == "kept"
    assert any("+25.0 points" not in event.reason for event in world.events if isinstance(event, PolicyTuned))
    assert any("from what was measured" in event.reason for event in world.events if isinstance(event, PolicyTuned))


def test_a_policy_that_breaks_in_simulation_is_no_candidate() -> None:
    world = World()
    for _ in range(4):
        world.step({"first": 0.5}, why="the policy broke: ZeroDivisionError: x")
    assert world.engine_policy == "first"
    world = World()
    assert world.step({"other": 0.9}, measured=0.5, why="the policy broke: ZeroDivisionError: x") == "kept"
    assert "first cannot be simulated: the policy broke" in world.tuner.verdict.reason


def test_a_gain_that_one_model_pays_for_is_none() -> None:
    world = World()
    for _ in range(4):
        job = world.window_over()
        if job is None:
            continue
        outcomes = [
            CandidateOutcome(FIRST, blocks(0.5), {"m": 0.9, "n": 0.1}),
            *(CandidateOutcome(each, blocks(0.7), {"m": 0.8, "n": 0.6}) for each in job.candidates[1:]),
        ]
        world.take(world.tuner.decide(world.now_ns, Comparison([PER_BLOCK] * GAIN_BLOCKS, blocks(0.5), outcomes, 1)))
    assert world.engine_policy == "first"


def test_nothing_is_compared_without_need() -> None:
    world = World()
    assert world.window_over(rate=10) is None
    assert world.tuner.verdict.reason == "50 requests are too few to compare policies"
    world.tuner.disturbed(world.now_ns)
    assert world.window_over(measured=1.0) is None
    assert "nothing can be gained" in world.tuner.verdict.reason


def test_a_load_that_changes_from_window_to_window_is_not_learned() -> None:
    world = World()
    for number in range(8):
        since_ns, now_ns = world.tuner.since_ns, world.tuner.next_wake_ns
        middle_ns = (since_ns + now_ns) // 2
        requests = [*arrivals(since_ns, middle_ns, 100), *arrivals(middle_ns, now_ns, 300)]
        job, _ = world.tuner.begin(window(requests, since_ns, now_ns, number / 8))
        assert job is None
        assert world.tuner.verdict.reason == "the load changed within the window: waiting for the next"


def test_workers_that_come_or_go_end_a_comparison() -> None:
    world = World()
    world.step(BETTER)
    job = world.window_over()
    assert job is not None
    world.tuner.disturbed(world.now_ns)
    world.answer(job, BETTER, None)
    assert world.engine_policy == "first"
    assert world.step(BETTER) == "kept"


def test_a_policy_that_the_engine_refuses_is_given_up() -> None:
    world = World()
    world.step(BETTER)
    world.step(BETTER)
    world.take(world.tuner.refused(world.now_ns, "it schedules whole models only"))
    assert world.tuner.present == FIRST
    assert world.tuner.verdict.reason == "other was refused: it schedules whole models only"


@given(seed=st.integers(0, 2**32))
def test_whatever_simulations_say_the_tuner_and_the_engine_agree(seed: int) -> None:
    rng = Random(seed)
    world = World(TuningOptions(interval_s=5, dry_run=rng.random() < 0.2))
    for _ in range(15):
        fate = rng.random()
        job = world.window_over(rng.choice((10, 100, 100, 400)), rng.random())
        if fate < 0.1:
            world.tuner.disturbed(world.now_ns)
        elif job is not None and fate < 0.2:
            world.take(world.tuner.decide(world.now_ns, "it was killed"))
        elif job is not None:
            simulated = {each.title: rng.random() for each in job.candidates if rng.random() < 0.9}
            simulated.setdefault(world.tuner.present.title, rng.random())
            world.answer(job, simulated, rng.random(), "it broke")
        if not world.events or not isinstance(world.events[-1], PolicyChanged):
            assert world.engine_policy == world.tuner.present.policy
        assert world.tuner.next_wake_ns > world.now_ns
    for before, event in zip(world.events, world.events[1:], strict=False):
        if isinstance(event, PolicyChanged):
            assert isinstance(before, PolicyTuned) and before.verdict in ("replaced", "reverted")
