"""`check_policy` lets honest policies pass and says of every bad one which invariant it breaks, and in which world."""

import re
from collections.abc import Sequence
from typing import ClassVar
from unittest import SkipTest

import msgspec
import pytest
from pydantic import ConfigDict, Field

from tests.examples import examples
from tidegate.api import (
    AnyCommand,
    Commands,
    Dispatch,
    Drop,
    Policy,
    PolicyOptions,
    PolicySpec,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Stage,
    TimerFired,
    Worker,
)
from tidegate.host import Plugins
from tidegate.testing import ConformanceError, PolicyConformance, check_policy, find_faults
from tidegate.toolkit import FirstComeFirstServed, RequestQueue


@pytest.mark.parametrize("name", Plugins.installed().policies)
def test_installed_policies_conform(name: str) -> None:
    check_policy(Plugins.installed().policy(name), worlds=examples(0.1))


def replanned(commands: Commands, **changes: int) -> Sequence[AnyCommand]:
    """The same, but every stage is planned otherwise."""
    return [
        Dispatch(
            msgspec.structs.replace(
                command.batch, stages=tuple(_shifted(stage, changes) for stage in command.batch.stages)
            )
        )
        if isinstance(command, Dispatch)
        else command
        for command in commands
    ]


def _shifted(stage: Stage, changes: dict[str, int]) -> Stage:
    return msgspec.structs.replace(stage, **{name: getattr(stage, name) + change for name, change in changes.items()})


class Hoards(FirstComeFirstServed):
    """Forgets every fifth request."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return () if event.request.id % 5 == 4 else super().on_request_arrived(event)

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        return () if event.request_id % 5 == 4 else super().on_request_cancelled(event)


class DropsTwice(FirstComeFirstServed):
    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [Drop(event.request.id, "full"), Drop(event.request.id, "full")]


class Overlaps(FirstComeFirstServed):
    """Takes every worker for idle."""

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        if queue and (worker := self.idle.get(0)):
            return [self.dispatch(now_ns, queue, 1, worker)]
        return ()


class StartsInThePast(FirstComeFirstServed):
    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        return replanned(super().queue_changed(now_ns, queue), start_ns=-1)


class IsLate(FirstComeFirstServed):
    """First come, first served, and claims to be honest about deadlines."""

    best_effort = False


class PlansRosily(FirstComeFirstServed):
    best_effort = False

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        return replanned(super().queue_changed(now_ns, queue), duration_ns=-1)


class ReusesBatchIds(FirstComeFirstServed):
    def new_batch_id(self) -> int:
        return 0


RUNS: list[int] = []


class Remembers(FirstComeFirstServed):
    """Does every second time something else: state outside of the policy."""

    runs_pipelines = False

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        RUNS.append(now_ns)
        waiting = [queue for queue in self.queues.values() if queue.model.name in worker.hosts]
        return [self.dispatch(now_ns, waiting[len(RUNS) % len(waiting)], 1, worker)] if waiting else ()


class Raises(FirstComeFirstServed):
    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        raise ZeroDivisionError("made to break")


class HiddenOptions(PolicyOptions):
    most_rows: int = Field(default=16, exclude=True)


class HidesAnOption(FirstComeFirstServed):
    """What it was made with is not in its log."""

    Options = HiddenOptions
    options: HiddenOptions

    def largest_batch(self, queue: RequestQueue) -> int:
        return min(queue.model.merged_rows, self.options.most_rows)


class MergesWhatRunsAlone(FirstComeFirstServed):
    def largest_batch(self, queue: RequestQueue) -> int:
        return queue.model.max_rows


class Refuses(FirstComeFirstServed):
    """Drops every third request, whoever is idle."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        if event.request.id % 3 == 2:
            return [Drop(event.request.id, "third")]
        return super().on_request_arrived(event)


BAD = [
    (Hoards, "test_1_conservation", r"invariant 1: \d+ requests were left waiting"),
    (DropsTwice, "test_1_conservation", "invariant 1: request .* is dropped but not queued"),
    (MergesWhatRunsAlone, "test_1_conservation", r"invariant 1: batch \d+ has \d+ requests of \d+ rows"),
    (Overlaps, "test_2_exclusivity", "invariant 2: .* overlaps what is booked on worker 0"),
    (StartsInThePast, "test_3_causality", "invariant 3: .* starts at"),
    (ReusesBatchIds, "test_6_determinism", "invariant 6: batch id 0 was used before"),
    (Remembers, "test_6_determinism", "invariant 6: a second run gave other commands"),
    (HidesAnOption, "test_7_parity", "invariant 7: replayed from its log it answers otherwise: ReplayDifference"),
    (IsLate, "test_8_deadline_honesty", "invariant 8: .* is due at"),
    (PlansRosily, "test_8_deadline_honesty", "invariant 8: .* the profile says"),
    (Refuses, "test_10_no_idle_refusal", "invariant 10: request .* is dropped at .* is idle and would answer it"),
    (Raises, "test_it_never_raises", "it raised ZeroDivisionError: made to break"),
]
OPTIONS: dict[type[Policy], dict[str, int]] = {HidesAnOption: {"most_rows": 1}}


@pytest.mark.parametrize(("policy", "test", "message"), BAD)
def test_a_bad_policy_is_caught(policy: type[Policy], test: str, message: str) -> None:
    with pytest.raises(ConformanceError, match=rf"policy 'bad' in world (\d+) \(seed=\1\): .*{message}"):
        check_policy(PolicySpec("bad", "made to fail", policy), options=OPTIONS.get(policy))


@pytest.mark.parametrize(("policy", "test", "message"), BAD)
def test_the_class_says_it_in_the_test_of_that_invariant(policy: type[Policy], test: str, message: str) -> None:
    class Conformance(PolicyConformance):
        spec = PolicySpec("bad", "made to fail", policy)
        options = OPTIONS.get(policy, {})
        worlds = 15

    first = rf"policy 'bad' in world (\d+) \(seed=\1\): .*{message}"
    with pytest.raises(ConformanceError, match=first + r".* \(the first of \d+ of 15 worlds\)$"):
        getattr(Conformance(), test)()


class FollowsHashes(FirstComeFirstServed):
    """The order in which it serves is that of a set of names: another one in every process."""

    runs_pipelines = False

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        waiting = {key for key, queue in self.queues.items() if queue.model.name in worker.hosts}
        return [self.dispatch(now_ns, self.queues[next(iter(waiting))], 1, worker)] if waiting else ()


class TestByHashes(PolicyConformance):
    spec = PolicySpec("by-hashes", "Deterministic within a process only", FollowsHashes)
    worlds = 5

    def test_6_determinism_across_processes(self) -> None:
        said = r"policy 'by-hashes' in world (\d+) \(seed=\1\): invariant 6: under PYTHONHASHSEED"
        with pytest.raises(ConformanceError, match=said):
            super().test_6_determinism_across_processes()


class TestFirstCome(PolicyConformance):
    spec = PolicySpec("first-come", "First come, first served", FirstComeFirstServed)
    worlds = 8


def failures(conformance: PolicyConformance) -> dict[str, str]:
    """What its tests say, by name."""
    said = {}
    for name in dir(conformance):
        if name.startswith("test_"):
            try:
                getattr(conformance, name)()
            except (ConformanceError, SkipTest) as error:
                said[name] = str(error)
    return said


def test_a_class_that_no_other_process_can_import_is_not_tried_there() -> None:
    class Local(FirstComeFirstServed):
        pass

    class Conformance(TestFirstCome):
        spec = PolicySpec("local", "First come, first served", Local)

    said = failures(Conformance())
    assert said.pop("test_6_determinism_across_processes").startswith("policy 'local' cannot be imported by another")
    assert said == {"test_8_deadline_honesty": "policy 'local' declares itself best-effort"}


class CarelessOptions(PolicyOptions):
    model_config = ConfigDict(extra="ignore")

    patience_ms: float


class Careless(FirstComeFirstServed):
    Options = CarelessOptions


def test_what_is_wrong_with_options_is_said() -> None:
    class Conformance(PolicyConformance):
        spec = PolicySpec("careless", "", Careless)
        options: ClassVar = {"patience_ms": 1}
        worlds = 1

    said = failures(Conformance())
    del said["test_8_deadline_honesty"]  # skipped
    assert said == {
        "test_it_has_a_summary_of_one_line": "policy 'careless': its summary is not one line: ''",
        "test_it_needs_no_options": "policy 'careless' has options without a default: patience_ms",
        "test_every_option_is_described": "policy 'careless' has options without description: patience_ms",
        "test_unknown_options_are_refused": "policy 'careless' takes options that it does not have",
    }


def test_classes_for_other_options_are_tried_on_their_own() -> None:
    class Conformance(PolicyConformance):
        spec = PolicySpec("hides", "Hides an option", HidesAnOption)
        worlds = 5

    class WithOptions(Conformance):
        options: ClassVar = {"most_rows": 1}

    Conformance().test_7_parity()
    with pytest.raises(ConformanceError, match="invariant 7"):
        WithOptions().test_7_parity()


def test_the_seed_of_a_world_reproduces_its_fault() -> None:
    spec = PolicySpec("bad", "made to fail", Overlaps)
    with pytest.raises(ConformanceError) as first:
        check_policy(spec)
    seed = int(str(first.value).split("seed=")[1].split(")")[0])
    with pytest.raises(ConformanceError) as again:
        check_policy(spec, worlds=1, seed=seed)
    assert str(again.value) == str(first.value)


class AsksTheToolkit(FirstComeFirstServed):
    """Gives the toolkit what it cannot use: the fault is where it does so."""

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        return self._chosen(now_ns, worker)

    def _chosen(self, now_ns: int, worker: Worker) -> Commands:
        return [self.dispatch(now_ns, None, 1, worker)]  # type: ignore[arg-type]


def test_a_policy_that_raises_shows_its_own_last_line_and_how_to_see_it_again() -> None:
    with pytest.raises(ConformanceError) as raised:
        check_policy(PolicySpec("bad", "made to fail", AsksTheToolkit))
    frame = r"\(test_conformance.py:\d+, in _chosen: return \[self.dispatch\(now_ns, None, 1, worker\)\].*\)"
    found = re.search(rf"it raised AttributeError: .* {frame}; again: (check_policy\(spec, .*\))$", str(raised.value))
    assert found, str(raised.value)
    with pytest.raises(ConformanceError, match=r"it raised AttributeError"):
        eval(found[1], {"check_policy": check_policy, "spec": PolicySpec("bad", "again", AsksTheToolkit)})


class ReturnsNothingToTheToolkit(FirstComeFirstServed):
    """Forgets to return its commands: the fault is where the toolkit uses them."""

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:  # type: ignore[return]
        super().worker_freed(now_ns, worker)


class ReturnsNothingToTheEngine(FirstComeFirstServed):
    """Forgets to return its commands: the fault is where the engine uses them."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:  # type: ignore[return]
        super().on_request_arrived(event)


def test_a_method_that_returns_none_is_located() -> None:
    for policy, method in (
        (ReturnsNothingToTheToolkit, "worker_freed"),
        (ReturnsNothingToTheEngine, "on_request_arrived"),
    ):
        fault = next(find_faults(PolicySpec("bad", "made to fail", policy)))
        place = rf"\(test_conformance.py:\d+, {method}: returns None, not a list of commands\)"
        assert re.search(rf"TypeError: .*NoneType.* {place}; again: ", str(fault)), fault


class SetsATimerForNow(FirstComeFirstServed):
    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [SetTimer("now", event.now_ns)]

    def on_timer_fired(self, event: TimerFired) -> Commands:
        return [SetTimer("now", event.now_ns)]


def test_a_policy_that_keeps_time_from_passing_does_not_hang_the_kit() -> None:
    with pytest.raises(ConformanceError, match="it raised TimerLoopError: timers fired 10,000 times in a row"):
        check_policy(PolicySpec("bad", "made to hang", SetsATimerForNow))
