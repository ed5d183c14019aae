"""`check_policy` lets honest policies pass and says of every bad one which invariant it breaks, and in which world."""

from collections.abc import Sequence

import msgspec
import pytest

from tidegate.api import (
    AnyCommand,
    Commands,
    Dispatch,
    Drop,
    FirstComeFirstServed,
    Leg,
    Policy,
    PolicySpec,
    RequestArrived,
    RequestQueue,
    Worker,
)
from tidegate.host import Plugins
from tidegate.testing import ConformanceError, check_policy


@pytest.mark.parametrize("name", Plugins.installed().policies)
def test_installed_policies_conform(name: str) -> None:
    check_policy(Plugins.installed().policy(name), worlds=60)


def replanned(commands: Commands, **changes: int) -> Sequence[AnyCommand]:
    """The same, but every leg is planned otherwise."""
    return [
        Dispatch(
            msgspec.structs.replace(command.batch, legs=tuple(_shifted(leg, changes) for leg in command.batch.legs))
        )
        if isinstance(command, Dispatch)
        else command
        for command in commands
    ]


def _shifted(leg: Leg, changes: dict[str, int]) -> Leg:
    return msgspec.structs.replace(leg, **{name: getattr(leg, name) + change for name, change in changes.items()})


class Hoards(FirstComeFirstServed):
    """Forgets every fifth request."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return () if event.request.id % 5 == 4 else super().on_request_arrived(event)


class DropsTwice(FirstComeFirstServed):
    def on_request_arrived(self, event: RequestArrived) -> Commands:
        return [Drop(event.request.id, "full"), Drop(event.request.id, "full")]


class Overlaps(FirstComeFirstServed):
    """Takes every worker for idle."""

    def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
        if queue and (worker := self.idle.get(0)):
            return [self._run(now_ns, queue, worker)]
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

    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        RUNS.append(now_ns)
        waiting = [queue for queue in self.queues.values() if queue.model.name in worker.hosts]
        return [self.dispatch(now_ns, waiting[len(RUNS) % len(waiting)], 1, worker)] if waiting else ()


class Raises(FirstComeFirstServed):
    def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
        raise ZeroDivisionError("made to break")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Hoards, r"invariant 1 \(conservation\): \d+ requests were left waiting"),
        (DropsTwice, "invariant 1: request .* is dropped but not queued"),
        (Overlaps, "invariant 2: .* overlaps what is booked on worker 0"),
        (StartsInThePast, "invariant 3: .* starts at"),
        (ReusesBatchIds, "invariant 6: batch id 0 was used before"),
        (Remembers, r"invariant 6 \(determinism\): a second run gave other commands"),
        (IsLate, "invariant 8: .* is due at"),
        (PlansRosily, "invariant 8: .* the profile says"),
        (Raises, "made to break"),
    ],
)
def test_a_bad_policy_is_caught(policy: type[Policy], message: str) -> None:
    with pytest.raises(ConformanceError, match=rf"policy 'bad' in world (\d+) \(seed=\1\): .*{message}"):
        check_policy(PolicySpec("bad", "made to fail", policy))


def test_the_seed_of_a_world_reproduces_its_fault() -> None:
    spec = PolicySpec("bad", "made to fail", Overlaps)
    with pytest.raises(ConformanceError) as first:
        check_policy(spec)
    seed = int(str(first.value).split("seed=")[1].split(")")[0])
    with pytest.raises(ConformanceError) as again:
        check_policy(spec, worlds=1, seed=seed)
    assert str(again.value) == str(first.value)
