"""Compares policies on recorded requests: successive halving, with the same requests and stage latencies for each.

Of all candidates the first eighth of the requests is simulated, of the better ones half, of the best ones, and of the
present policy always, all. Small windows have larger parts, since chance decides among few requests. Requests of the
first of eleven equal intervals fill the queues and do not count.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.host import Plugins
from tidegate.sim.tuning.candidates import PolicyCandidate
from tidegate.sim.what_if import WhatIfQuestion, outcomes, renumbered

GAIN_BLOCKS: Final = 10
"""Intervals of the window, whose differences give the confidence interval of a gain."""
HALVING_ROUNDS: Final = ((0.125, 150, 8), (0.5, 300, 3))
"""Fraction of the requests that is simulated, their minimum number, and the number of candidates that go on."""
SIMULATED_NS_PER_REQUEST: Final = 150_000
"""Approximate CPU time in ns of a simulated request."""


class ComparisonJob(msgspec.Struct, frozen=True):
    """Recorded requests, and the policies to compare on them."""

    question: WhatIfQuestion
    """Recorded requests and their setup; the policy in it is not simulated."""
    on_time: Sequence[bool]
    """The measured outcome of each request."""
    candidates: Sequence[PolicyCandidate]
    """Policies to compare, the current one first."""
    seed: int
    cpu_fraction: float
    """Fraction of one CPU core that the simulations may take."""


class CandidateOutcome(msgspec.Struct, frozen=True):
    """Simulated requests on time under one candidate."""

    candidate: PolicyCandidate
    blocks: Sequence[int] = ()
    """Number of requests on time by block; empty if the candidate was eliminated or could not be simulated (`why`)."""
    models: dict[str, float] = {}
    """Attainment by model."""
    why: str = ""
    """Reason why the candidate could not be simulated."""

    @property
    def on_time(self) -> int:
        """Number of requests on time."""
        return sum(self.blocks)


class Comparison(msgspec.Struct, frozen=True):
    """Results of all candidates on the same requests."""

    requests: Sequence[int]
    """Number of requests by block."""
    measured: Sequence[int]
    """Number of requests by block that were on time when they were served."""
    outcomes: Sequence[CandidateOutcome]
    """Outcomes in the order of the candidates."""
    simulated_requests: int
    """Number of requests simulated in total: the cost."""

    @property
    def cpu_ns(self) -> int:
        """CPU time that the comparison took, about."""
        return self.simulated_requests * SIMULATED_NS_PER_REQUEST


def compare(
    job: ComparisonJob,
    plugins: Plugins,
    enough: Callable[[], bool] | None = None,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Simulate the candidates of a job.

    `enough`: called after each event; True ends the present run. `on_run`: called before each run.
    """
    requests, count, simulated = renumbered(job.question.requests), len(job.question.requests), 0
    blocks = block_numbers([request.arrival_ns for request in requests])
    broken: dict[int, str] = {}

    @cache
    def run(number: int, size: int) -> bytearray:
        nonlocal simulated
        candidate = job.candidates[number]
        question = replace(job.question, requests=requests[:size], policy=candidate.policy, options=candidate.options)
        simulated += size
        on_run()
        found = outcomes(question, plugins, seed=job.seed, enough=enough)
        if isinstance(found, str):
            broken[number] = found
            return bytearray(size)
        return found

    racing = [*range(1, len(job.candidates))]
    for fraction, min_requests, survivors in HALVING_ROUNDS:
        if len(racing) > survivors:
            size = min(count, max(min_requests, round(fraction * count)))
            scores = {number: sum(run(number, size)) for number in racing}
            racing = [number for number in racing if number not in broken]
            racing = sorted(racing, key=lambda number: -scores[number])[:survivors]
    full = {number: run(number, count) for number in [0, *racing]}
    models = [request.model for request in requests]
    found = [
        CandidateOutcome(candidate, why=broken[number])
        if number in broken
        else CandidateOutcome(candidate, _by_block(full[number], blocks), _by_model(full[number], blocks, models))
        if number in full
        else CandidateOutcome(candidate)
        for number, candidate in enumerate(job.candidates)
    ]
    return Comparison(_by_block([True] * count, blocks), _by_block(job.on_time, blocks), found, simulated)


def block_numbers(arrivals_ns: Sequence[int]) -> list[int]:
    """Return the block of each arrival, from 0 on; -1: it does not count, since queues were empty at the start."""
    if not arrivals_ns:
        return []
    length_ns = arrivals_ns[-1] + 1
    return [at_ns * (GAIN_BLOCKS + 1) // length_ns - 1 for at_ns in arrivals_ns]


def _by_block(on_time: Sequence[int], blocks: Sequence[int]) -> list[int]:
    counts = [0] * GAIN_BLOCKS
    for well, block in zip(on_time, blocks, strict=True):
        if well and block >= 0:
            counts[block] += 1
    return counts


def _by_model(on_time: Sequence[int], blocks: Sequence[int], models: Sequence[str]) -> dict[str, float]:
    came = Counter(model for model, block in zip(models, blocks, strict=True) if block >= 0)
    well = Counter(model for model, block, each in zip(models, blocks, on_time, strict=True) if each and block >= 0)
    return {model: well[model] / number for model, number in came.items()}
