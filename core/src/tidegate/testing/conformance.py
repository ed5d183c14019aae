"""Conformance tests of policies: the invariants, checked in random worlds."""

import io
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from tidegate.api import PolicySpec
from tidegate.control import ControllerSpec
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


class PluginConformance:
    """Base class of the test classes of plugins: tests of what `tidegate plugins` lists, and of options."""

    spec: ClassVar[PolicySpec | ControllerSpec]

    @classmethod
    def _plugin(cls) -> tuple[str, type[BaseModel]]:
        """Return what messages call the plugin, and the class of its options."""
        if isinstance(cls.spec, PolicySpec):
            return f"policy {cls.spec.name!r}", cls.spec.policy.Options
        return f"controller {cls.spec.name!r}", cls.spec.controller.Options

    def test_it_has_a_summary_of_one_line(self) -> None:
        """Check the summary that `tidegate plugins` lists. Raises ConformanceError."""
        if not self.spec.summary.strip() or "\n" in self.spec.summary:
            raise ConformanceError(f"{self._plugin()[0]}: its summary is not one line: {self.spec.summary!r}")

    def test_every_option_is_described(self) -> None:
        """Check that each option has a `Field(description=...)`. Raises ConformanceError."""
        name, options = self._plugin()
        if bare := [option for option, field in options.model_fields.items() if not field.description]:
            raise ConformanceError(f"{name} has options without description: {', '.join(bare)}")

    def test_unknown_options_are_refused(self) -> None:
        """Check that unknown options are errors. Raises ConformanceError."""
        name, options = self._plugin()
        try:
            options.model_validate({"_".join(["unknown", *options.model_fields]): 0})
        except ValidationError as error:
            if "extra_forbidden" in {wrong["type"] for wrong in error.errors()}:
                return
        raise ConformanceError(f"{name} takes options that it does not have")


def ask_other_process(function: Callable[..., list[str]], arguments: tuple[Any, ...], hash_seed: str) -> list[str]:
    """Return what a module's function answers in a process with `hash_seed` as its PYTHONHASHSEED.

    `arguments`: of the function, the spec of a plugin first. Raises ValueError for a plugin that another process cannot
    import, RuntimeError if that process fails.
    """
    try:
        asked = pickle.dumps((function, arguments))
    except (AttributeError, pickle.PicklingError) as error:
        spec = arguments[0]
        word = "policy" if isinstance(spec, PolicySpec) else "controller"
        raise ValueError(f"{word} {spec.name!r} cannot be imported by another process: {error}") from error
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=asked, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a process of its own could not try it:\n{done.stderr.decode(errors='replace')}")
    return done.stdout.decode().split()


_PROGRAM = """
import pickle, sys
function, arguments = pickle.load(sys.stdin.buffer)
print(*function(*arguments))
"""


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
