"""How many examples hypothesis tries: a few, in `make test-all` many, always the same; in `make explore` new ones.

What a change is judged by must not depend on luck: a fault that one example in ten thousand shows is no less a fault of
the commit before. It is looked for by itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

# How long an example takes, and how long drawing it does, says nothing on a busy machine.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("quick", _PATIENT, max_examples=30, derandomize=True, database=None)
settings.register_profile("thorough", _PATIENT, max_examples=60, derandomize=True, database=None)
settings.register_profile("explore", _PATIENT, max_examples=1000, print_blob=True)
settings.load_profile("quick")
# Hypothesis draws constants of the modules that a process has loaded, too: which they are depends on the tests before.
providers._get_local_constants = Constants


def examples(share: float) -> int:
    """The number of examples for a test whose examples cost 1 / `share` times as much as usual."""
    return max(1, round(settings().max_examples * share))


def few(values: Iterable[Any], count: int = 1, ids: Sequence[str] | None = None) -> list[Any]:
    """Return values of one parameter of which `make test` tries the first `count`, and `make test-all` all."""
    given = list(values)
    names = given if ids is None else ids
    return [
        pytest.param(value, id=str(name), marks=() if number < count else pytest.mark.slow)
        for number, (value, name) in enumerate(zip(given, names, strict=True))
    ]
