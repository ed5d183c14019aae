"""Conformance tests of policies as a test class, for any framework that collects classes: a test for each invariant."""

import hashlib
from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any, ClassVar
from unittest import SkipTest

from tidegate.api import PolicySpec
from tidegate.engine import InvariantViolation
from tidegate.testing.conformance import (
    ConformanceError,
    ConformanceFault,
    PluginConformance,
    ask_other_process,
    find_faults,
    log_of_world,
)


def find_hash_fault(spec: PolicySpec, *, worlds: int, seed: int, options: Mapping[str, Any]) -> ConformanceFault | None:
    """Return the first world in which a policy answers differently in a process with another hash seed; None if none.

    `worlds`: number of worlds; `seed`: the first one; `options`: of the policy. Raises as `ask_other_process` does.
    """
    arguments = (spec, worlds, seed, dict(options))
    answers = (ask_other_process(digests, arguments, hash_seed) for hash_seed in ("1", "2"))
    for world, one, other in zip(count(seed), *answers, strict=False):
        if one != other:
            why = "under PYTHONHASHSEED=1 and =2 it gives other commands: the order of a set, or a hash, shows"
            return ConformanceFault(spec.name, world, InvariantViolation(6, why))
    return None


def digests(spec: PolicySpec, worlds: int, seed: int, options: Mapping[str, Any]) -> list[str]:
    """Return a digest of a policy's commands in each of `worlds` worlds.

    `seed`: seed of the first world; `options`: of the policy.
    """
    return [hashlib.sha256(_log_of(spec, world, options)).hexdigest() for world in range(seed, seed + worlds)]


def _log_of(spec: PolicySpec, world: int, options: Mapping[str, Any]) -> bytes:
    try:
        return log_of_world(spec, world, options)
    except InvariantViolation as broken:  # another invariant, of which other tests tell
        return str(broken).encode()


class PolicyConformance(PluginConformance):
    """Base class of conformance tests of a policy, as `check_policy` runs them; a subclass names the policy.

    class TestMine(PolicyConformance):
        spec = PolicySpec("mine", "What it does, in a line", Mine)

    All tests share one pass through the worlds. A world ends at the first violation. Invariants that a policy cannot
    violate are not tested: the clock is the driver's (4), events do not contain the future (5), and the engine
    continues without a policy that raises an exception (9).
    """

    spec: ClassVar[PolicySpec]
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the policy; empty: defaults."""
    worlds: ClassVar[int] = 100
    seed: ClassVar[int] = 0
    """Seed of the first world."""

    def test_1_conservation(self) -> None:
        """Check that every accepted request ends exactly once."""
        self._holds(1)

    def test_2_exclusivity(self) -> None:
        """Check that stages on one worker never overlap, and that it hosts their partitions."""
        self._holds(2)

    def test_3_causality(self) -> None:
        """Check that stages are in order, and that nothing starts before it was dispatched."""
        self._holds(3)

    def test_6_determinism(self) -> None:
        """Check that equal seeds and events give equal commands."""
        self._holds(6)

    def test_6_determinism_across_processes(self) -> None:
        """Check that the order of sets and hashes of strings have no effect.

        Raises SkipTest if the class cannot be imported by another process or is broken in a single one, and
        ConformanceError if the commands differ.
        """
        if any(fault.invariant in (None, 6) for fault in self._faults()):
            raise SkipTest(f"policy {self.spec.name!r} is broken already in a single process")
        try:
            fault = find_hash_fault(self.spec, worlds=self.worlds, seed=self.seed, options=self.options)
        except ValueError as error:
            raise SkipTest(str(error)) from error
        if fault:
            raise ConformanceError(str(fault))

    def test_7_parity(self) -> None:
        """Check that replaying a recorded run gives the same commands."""
        self._holds(7)

    def test_8_deadline_honesty(self) -> None:
        """Check that no request is dispatched that is predicted late. Raises SkipTest for a best-effort policy."""
        if self.spec.policy.best_effort:
            raise SkipTest(f"policy {self.spec.name!r} declares itself best-effort")
        self._holds(8)

    def test_10_no_idle_refusal(self) -> None:
        """Check that no request is dropped that an idle worker would answer on time.

        Raises SkipTest if the policy declares an `early_drop_reason`.
        """
        if reason := self.spec.policy.early_drop_reason:
            raise SkipTest(f"policy {self.spec.name!r} declares: {reason}")
        self._holds(10)

    def test_it_never_raises(self) -> None:
        """Check that the policy never raises: the engine would replace it."""
        self._holds(None)

    def test_it_needs_no_options(self) -> None:
        """Check that every option has a default: a name suffices to select the policy. Raises ConformanceError."""
        fields = self.spec.policy.Options.model_fields
        if required := [name for name, field in fields.items() if field.is_required()]:
            raise ConformanceError(f"policy {self.spec.name!r} has options without a default: {', '.join(required)}")

    @classmethod
    @cache
    def _faults(cls) -> list[ConformanceFault]:
        return list(find_faults(cls.spec, worlds=cls.worlds, seed=cls.seed, options=cls.options))

    def _holds(self, invariant: int | None) -> None:
        broken = [fault for fault in self._faults() if fault.invariant == invariant]
        if broken:
            worlds = f"{len(broken)} of {self.worlds} worlds"
            raise ConformanceError(f"{broken[0]} (the first of {worlds})") from broken[0].error
