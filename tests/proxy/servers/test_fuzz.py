"""A part of what `python -m bench.fuzz` sends: always the same inputs; `make fuzz` sends others."""

import pytest
from rich.console import Console

from bench.fuzz import fuzz
from bench.fuzz_inputs import make_input

ITS_OWN = ("GRPC_CALL_ERROR_TOO_MANY_OPERATIONS", "HandleCancellation called even when the context was not cancelled")
"""What Triton 2.51 says when it aborts or crashes now and then, presumably as two of its threads end one stream.

On a busy machine it does so in several of a hundred runs, and did twice in a row.
"""
TRIES = 4
SEED = 6258521
"""With it Triton 2.51 ended before Tidegate kept such inputs from it."""


@pytest.mark.parametrize("inputs", [1000, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("start_triton")  # which skips where there is no tritonserver
def test_malformed_input_is_answered_or_closed(inputs: int) -> None:
    for _ in range(TRIES):
        findings = fuzz(inputs, SEED, Console(quiet=True))
        died = [wrong for wrong in findings.wrong if wrong.startswith("Triton died")]
        if not any(own in wrong for wrong in died for own in ITS_OWN):
            break
    assert not findings.wrong, f"python -m bench.fuzz --seed {SEED} --inputs {inputs}: {findings.wrong}"
    assert sum(findings.outcomes.values()) >= inputs


@pytest.mark.parametrize("seed", range(3))
def test_inputs_are_made_again_from_their_numbers(seed: int) -> None:
    made = [make_input(seed, number) for number in range(300)]
    assert made == [make_input(seed, number) for number in range(300)]
    assert len({attempt.way for attempt in made}) == 4
