"""Does a policy keep the contract? The invariants, tried on random worlds."""

import io
import random

from tidegate.api import PolicySpec
from tidegate.engine import Recorder
from tidegate.testing.scenario import Scenario, random_scenario, run_scenario


class ConformanceError(AssertionError):
    """The policy broke an invariant; the message names it and the seed of the world in which it did."""


def check_policy(spec: PolicySpec, *, worlds: int = 100, seed: int = 0) -> None:
    """Try a policy in `worlds` random worlds. Raises ConformanceError at the first broken invariant."""
    for world in range(seed, seed + worlds):
        scenario = random_scenario(random.Random(world), disturbances=world % 2 == 1)
        try:
            check_scenario(spec, scenario)
        except Exception as error:
            raise ConformanceError(f"policy {spec.name!r} in world {world} (seed={world}): {error}") from error


def check_scenario(spec: PolicySpec, scenario: Scenario) -> None:
    """Try a policy in one world: 2, 3 and 8 are the engine's checks, the rest is looked at here."""
    first = _log_of(spec, scenario)
    if first != _log_of(spec, scenario):
        raise ConformanceError("invariant 6 (determinism): a second run gave other commands")


def _log_of(spec: PolicySpec, scenario: Scenario) -> bytes:
    log = io.BytesIO()
    simulation = run_scenario(spec, scenario, recorder=Recorder(log))
    engine = simulation.engine
    if engine.in_flight:
        raise ConformanceError(f"{engine.in_flight} batches never ended")
    if engine.queued:
        raise ConformanceError(f"invariant 1 (conservation): {engine.queued} requests were left waiting for ever")
    if engine.tally.ended != engine.tally.accepted:
        raise ConformanceError(f"invariant 1 (conservation): {engine.tally}")
    return log.getvalue()
