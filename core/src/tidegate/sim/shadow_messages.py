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
    """Options of the policy `triton` that describe the Tritons' own batchers."""
    guessed: tuple[str, ...]
    """Models without a measured profile on some of their workers: the statistics of their Tritons count instead."""
    assumed: tuple[str, ...] = ()
    """Models that are batched here, and would not be if they were scheduled with the current configuration."""


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
    """Time in ns at which the request was sent."""
    model: str
    took_ns: int
    ok: bool


class TritonStatistics(msgspec.Struct, array_like=True, frozen=True):
    """Statistics of one model version on one Triton since it was loaded there."""

    model: str
    counters: str
    """Name of Triton and version: counters with the same name continue, or were reset."""
    answered: int
    answered_ns: int
    """Sum over answered requests of the time in ns from arrival at Triton to response."""
    batches: list[tuple[int, int, int]]
    """For each batch size (rows, number of executed batches, sum of their durations in ns)."""


class BypassedTraffic(msgspec.Struct, tag="passed", frozen=True):
    """Requests and responses that bypassed scheduling since the last message."""

    now_ns: int
    seen: list[BypassedRequest]
    ended: list[BypassedResponse]
    report: bool
    """Whether a report is requested."""
    executed: list[TritonStatistics] = []
    """Statistics of the Tritons that answered; empty if they were not requested."""


class ShadowEstimate(msgspec.Struct, frozen=True):
    """Result for one model, or (`model` empty) for all with an SLO. Attainments are fractions, 0 to 1."""

    model: str
    requests: int
    measured: float
    """Measured attainment of bypassed requests."""
    batcher: float
    """Simulated attainment with Triton's own batcher."""
    passing: float
    """Measured attainment at the client, as far as response latency is known: comparable with `policy`."""
    tuned: float
    """Attainment, counted like `passing`, of Triton's batcher with the best settings per model found so far."""
    policy: float
    """Simulated attainment with the policy."""
    error: float
    """`batcher` minus `measured`: the visible error of the simulator."""
    gain: tuple[float, float] | None
    """95 % interval of the policy's gain in attainment, widened by `error`; None: no gain is reported."""
    over_tuned: tuple[float, float] | None
    """The same interval relative to `tuned`."""
    why: str
    """Why no gain is reported; empty otherwise."""
    doubt: str = ""
    """Assumptions of the estimate that are neither measured nor configured, as sentences; empty: none."""


class ShadowReport(msgspec.Struct, frozen=True):
    """Report on the results for one window."""

    policy: str
    window_s: float
    unsimulated: int
    """Number of responses to requests that no policy could have scheduled."""
    begin_ms: float | None
    """Wake-up time of an idle Triton instance in ms, fitted to its batches; None: unknown."""
    tuned: str
    """Setting of `ShadowEstimate.tuned`, as fractions of each model's SLO; empty: the models' own configuration."""
    estimates: list[ShadowEstimate]
