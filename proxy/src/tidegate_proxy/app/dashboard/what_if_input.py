"""Input of a what-if simulation, from the latest stimuli: requests, outcomes, stage latencies."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from tidegate.api import Batch, Profile, ProfileKey, Request, Worker
from tidegate.observation import OutcomeListener, Reducer, StartStage
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent

MAX_REQUESTS: Final = 5_000
"""Number of requests, the latest: more would take longer than users wait."""
MAX_FACTORS: Final = 2_000
MAX_LATENCY_RATIO: Final = 20.0
"""Maximum ratio of a stage's duration to its expected latency; longer stages (a stalled machine) count as this
ratio.
"""


class WhatIfInput(OutcomeListener):
    """Collector of the requests that have ended and the deviations of stages from their prediction."""

    def __init__(self, profiles: Mapping[ProfileKey, Profile], workers: Iterable[Worker]) -> None:
        """Create an empty collector. `profiles`: current predictions."""
        self._profiles = profiles
        self._kinds = {worker.id: worker.device_class for worker in workers}
        self._reducer = Reducer(self)
        self._ended: dict[int, tuple[Request, bool]] = {}
        self._factors: dict[ProfileKey, list[float]] = {}

    def feed(self, moments: Iterable[BufferedEvent]) -> None:
        """Add the next stimuli."""
        for moment in moments:
            self._reducer.handled(moment.event, moment.effects)

    @property
    def requests(self) -> list[Request]:
        """Requests that have ended and were not cancelled, in the order of arrival."""
        return [request for request, _ in self._latest()]

    @property
    def on_time(self) -> float | None:
        """Fraction of them that was answered on time, or None if there are none."""
        latest = self._latest()
        return sum(well for _, well in latest) / len(latest) if latest else None

    @property
    def factors(self) -> Sequence[float]:
        """Ratios of actual to predicted stage latency."""
        return [factor for of_key in self._factors.values() for factor in of_key][-MAX_FACTORS:]

    def corrected(self) -> tuple[list[Profile], Sequence[float]]:
        """Return profiles corrected by these stages, and the ratios to them."""
        means = {key: fmean(factors) for key, factors in self._factors.items()}
        profiles = [_times(profile, means.get(key, 1.0)) for key, profile in self._profiles.items()]
        factors = [factor / means[key] for key, of_key in self._factors.items() for factor in of_key]
        return profiles, factors[-MAX_FACTORS:]

    def _latest(self) -> list[tuple[Request, bool]]:
        return [self._ended[request_id] for request_id in sorted(self._ended)[-MAX_REQUESTS:]]

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the response to a batch."""
        for request in requests:
            self._ended[request.id] = (request, ended_ns <= request.deadline_ns)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a dropped request."""
        self._ended[request.id] = (request, False)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a failed request."""
        self._ended[request.id] = (request, False)

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Record the end of a stage."""
        stage = effect.batch.stages[effect.stage]
        kind = self._kinds.get(stage.worker_id, "")
        profile = self._profiles.get((stage.partition, kind, effect.shape))
        if profile is not None and effect.rows <= profile.max_rows:
            factor = min(MAX_LATENCY_RATIO, (ended_ns - started_ns) / profile.expected_ns(effect.rows))
            self._factors.setdefault(profile.key, []).append(factor)


def _times(profile: Profile, factor: float) -> Profile:
    def stretched(table_ns: Iterable[int]) -> tuple[int, ...]:
        return tuple(max(1, round(ns * factor)) for ns in table_ns)

    return replace(profile, expected=stretched(profile.expected), planned=stretched(profile.planned))
