"""Messages between the proxy in shadow mode and the shadow process: JSON lines."""

from typing import Any

import msgspec

from tidegate.api import Setup


class ShadowSetup(msgspec.Struct, tag="begin", frozen=True):
    """Setup message: sent first and after each change, which empties the window."""

    setup: Setup
    policy: str
    options: dict[str, Any]
    batcher: dict[str, Any]
    """Options of the policy `triton`: how the Tritons' own batchers are configured."""
    guessed: tuple[str, ...]
    """Models of which no profile was measured on some of their workers: nothing is promised with those."""


class BypassedRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request that bypassed scheduling."""

    at_ns: int
    model: str
    rows: int
    merge_key: str
    shape: str


class BypassedResponse(msgspec.Struct, array_like=True, frozen=True):
    """A response to a request that bypassed scheduling."""

    at_ns: int
    """When its request was sent."""
    model: str
    took_ns: int
    ok: bool


class TritonStatistics(msgspec.Struct, array_like=True, frozen=True):
    """Statistics of one model version on one Triton since it was loaded there."""

    model: str
    counters: str
    """Triton and version: counters under the same name continue, or restarted."""
    answered: int
    answered_ns: int
    """From when they had a request until they had its answer, summed over the answered."""
    batches: list[tuple[int, int, int]]
    """Rows of a batch, how many of so many rows were executed, and the sum of what they took, in ns."""


class BypassedTraffic(msgspec.Struct, tag="passed", frozen=True):
    """Requests and responses that bypassed scheduling since the last message."""

    now_ns: int
    seen: list[BypassedRequest]
    ended: list[BypassedResponse]
    report: bool
    """Whether a report is wanted now."""
    executed: list[TritonStatistics] = []
    """Statistics of the Tritons that answered; empty if they were not requested."""


class ShadowEstimate(msgspec.Struct, frozen=True):
    """Result for one model, or (`model` empty) for all with an SLO. Attainments are fractions, 0 to 1."""

    model: str
    requests: int
    measured: float
    """Attainment of what passed."""
    batcher: float
    """The same, simulated: Triton's own batcher."""
    passing: float
    """The same by the clients' clock, so far as that is known: as the policy's is counted."""
    tuned: float
    """Counted as `passing`: Triton's batcher with the best queue delay and queue timeout per model found so far."""
    policy: float
    """Simulated: the policy."""
    error: float
    """`batcher` less `measured`: by how much the simulator is wrong where that can be seen."""
    gain: tuple[float, float] | None
    """95 % interval of what the policy adds to the attainment, widened by `error`; None: nothing is promised."""
    over_tuned: tuple[float, float] | None
    """The same over `tuned`."""
    why: str
    """Why nothing is promised; else empty."""


class ShadowReport(msgspec.Struct, frozen=True):
    """Report on the results for one window."""

    policy: str
    window_s: float
    unsimulated: int
    """Answers to requests that no policy could have scheduled."""
    begin_ms: float | None
    """How long an idle instance of the Tritons takes to begin, as its batches tell; None: nothing was told of them."""
    tuned: str
    """The setting of `ShadowEstimate.tuned`, as fractions of each model's SLO; empty: as the models are configured."""
    estimates: list[ShadowEstimate]
