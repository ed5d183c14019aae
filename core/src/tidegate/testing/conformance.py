"""Conformance tests of policies: the invariants, checked in random worlds."""

import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.api import PolicySpec
from tidegate.engine import InvariantViolation
from tidegate.host import make_policy
from tidegate.observation import Recorder, read_log
from tidegate.sim.policy_frames import policy_frame
from tidegate.sim.replay import replay
from tidegate.testing.world import ConformanceWorld, random_world, run_world


class ConformanceError(AssertionError):
    """Error: the policy violated an invariant; the message names it and the world's seed."""


@dataclass(frozen=True)
class ConformanceFault:
    """Violation of an invariant by a policy in one world, which ended with it."""

    policy: str
    world: int
    """Seed of the world: `check_policy(spec, worlds=1, seed=world)` runs that world alone."""
    error: Exception
    frame: str = ""
    """Place in the policy's own file, as in `policy_frame`; "": none."""

    @property
    def invariant(self) -> int | None:
        """Number of the violated invariant; None if the policy raised an exception."""
        return self.error.number if isinstance(self.error, InvariantViolation) else None

    def __str__(self) -> str:
        raised = "" if self.invariant else f"it raised {type(self.error).__name__}: "
        again = f"; again: check_policy(spec, worlds=1, seed={self.world})"
        return (
            f"policy {self.policy!r} in world {self.world} (seed={self.world}): {raised}{self.error}{self.frame}{again}"
        )


def check_policy(
    spec: PolicySpec, *, worlds: int = 100, seed: int = 0, options: Mapping[str, Any] | None = None
) -> None:
    """Test a policy in `worlds` random worlds from `seed` on. Raises ConformanceError at the first violation.

    `options`: the policy's options; None: defaults.
    """
    for fault in find_faults(spec, worlds=worlds, seed=seed, options=options):
        raise ConformanceError(str(fault)) from fault.error


def find_faults(
    spec: PolicySpec, *, worlds: int = 100, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Iterator[ConformanceFault]:
    """Test a policy in `worlds` random worlds, and yield at most one violation of each.

    Every second world has failures, slow and lost workers. `seed`: seed of the first world; `options`: of the policy,
    None: defaults.
    """
    for number in range(seed, seed + worlds):
        try:
            check_world(spec, _world(spec, number), options)
        except Exception as error:
            # Whatever a stranger's policy raises: it is its fault.
            yield ConformanceFault(spec.name, number, error, policy_frame(error, spec.policy))


def check_world(spec: PolicySpec, world: ConformanceWorld, options: Mapping[str, Any] | None = None) -> None:
    """Test a policy in one world. Raises InvariantViolation, or the policy's exception, at the first fault.

    The engine checks invariants 2, 3 and 8, the world 10, this function the others. `options`: of the policy; None:
    defaults.
    """
    recorded = _ended_log(spec, world, options)
    if recorded != _ended_log(spec, world, options):
        raise InvariantViolation(6, "a second run gave other commands")
    header, entries = read_log(recorded.splitlines())
    if difference := replay(header, entries, make_policy(spec, header.setup, header.options)).difference:
        raise InvariantViolation(7, f"replayed from its log it answers otherwise: {difference}")


def log_of_world(spec: PolicySpec, seed: int, options: Mapping[str, Any] | None = None) -> bytes:
    """Return the event log of a policy in the world of this seed. Raises as `check_world` does.

    `options`: of the policy; None: defaults.
    """
    return _ended_log(spec, _world(spec, seed), options)


def _world(spec: PolicySpec, seed: int) -> ConformanceWorld:
    # Of four worlds in a row two are disturbed, and two have split models if the policy takes them.
    pipelines = spec.policy.runs_pipelines and seed % 4 >= 2
    return random_world(random.Random(seed), disturbances=seed % 2 == 1, pipelines=pipelines)


def _ended_log(spec: PolicySpec, world: ConformanceWorld, options: Mapping[str, Any] | None) -> bytes:
    log = io.BytesIO()
    engine = run_world(spec, world, options=options, recorder=Recorder(log)).engine
    if engine.in_flight:
        raise InvariantViolation(1, f"{engine.in_flight} batches never ended")
    if engine.queued:
        raise InvariantViolation(1, f"{engine.queued} requests were left waiting for ever")
    if engine.tally.ended != engine.tally.accepted:
        raise InvariantViolation(1, f"not every request ended once: {engine.tally}")
    return log.getvalue()
