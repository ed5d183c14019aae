"""Determinism across processes: other hash seeds change the order of sets, which must have no effect."""

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

from tidegate.api import PolicySpec
from tidegate.engine import InvariantViolation
from tidegate.testing.conformance import ConformanceFault, log_of_world

_PROGRAM = """
import pickle, sys
from tidegate.testing.hash_seeds import digests
print(*digests(*pickle.load(sys.stdin.buffer)))
"""


def find_hash_fault(spec: PolicySpec, *, worlds: int, seed: int, options: Mapping[str, Any]) -> ConformanceFault | None:
    """Return the first world in which a policy answers differently in a process with another hash seed; None if none.

    `worlds`: number of worlds; `seed`: the first one; `options`: of the policy. Raises ValueError for a policy that
    another process cannot import, RuntimeError if that process fails.
    """
    try:
        asked = pickle.dumps((spec, worlds, seed, dict(options)))
    except (AttributeError, pickle.PicklingError) as error:
        raise ValueError(f"policy {spec.name!r} cannot be imported by another process: {error}") from error
    for world, one, other in zip(count(seed), *(_ask(asked, hash_seed) for hash_seed in ("1", "2")), strict=False):
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


def _ask(asked: bytes, hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=asked, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a process of its own could not try the policy:\n{done.stderr.decode(errors='replace')}")
    return done.stdout.decode().split()
