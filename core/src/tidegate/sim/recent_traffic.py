"""Recent traffic of an engine: requests that ended, durations of stages. The input of what-if analysis and tuning."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from tidegate.api import Batch, Profile, ProfileKey, Request, Worker
from tidegate.observation import OutcomeListener, StartStage

MAX_REQUESTS: Final = 5_000
"""Number of requests, the latest: more would take longer than users wait."""
MAX_STAGES: Final = 2_000
MAX_LATENCY_RATIO: Final = 20.0
"""Maximum ratio of a stage's duration to its expected latency; longer ones count as this, since the machine stood
still."""


class RecentTraffic(OutcomeListener):
    """The latest requests that ended, with their outcomes, and the latest stages."""

    def __init__(self, *, max_requests: int = MAX_REQUESTS) -> None:
        self._ended: deque[tuple[Request, bool]] = deque(maxlen=max_requests)
        self._stages: deque[tuple[str, int, str, int, int]] = deque(maxlen=MAX_STAGES)
        """Partition, worker id, shape, rows and duration in ns."""

    @property
    def is_full(self) -> bool:
        """Whether older requests are forgotten for new ones."""
        return len(self._ended) == self._ended.maxlen

    def requests(self, since_ns: int = 0, until_ns: int | None = None) -> list[tuple[Request, bool]]:
        """Return requests that were not cancelled, in the order of arrival, each with whether it was on time.

        `since_ns`, `until_ns`: only those that arrived in between; None: up to the latest.
        """
        found = [
            (request, on_time)
            for request, on_time in self._ended
            if request.arrival_ns >= since_ns and (until_ns is None or request.arrival_ns < until_ns)
        ]
        return sorted(found, key=lambda each: each[0].id)

    def factors(self, profiles: Iterable[Profile], workers: Iterable[Worker]) -> dict[ProfileKey, list[float]]:
        """Return ratios of actual to expected stage latency. `profiles`: what is expected; `workers`: known ones."""
        expected = {profile.key: profile for profile in profiles}
        classes = {worker.id: worker.device_class for worker in workers}
        found: dict[ProfileKey, list[float]] = {}
        for partition, worker_id, shape, rows, took_ns in self._stages:
            profile = expected.get((partition, classes.get(worker_id, ""), shape))
            if profile is not None and rows <= profile.max_rows:
                factor = min(MAX_LATENCY_RATIO, took_ns / profile.expected_ns(rows))
                found.setdefault(profile.key, []).append(factor)
        return found

    def clear(self) -> None:
        """Forget everything, since other workers serve now."""
        self._ended.clear()
        self._stages.clear()

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record the response to a batch."""
        self._ended.extend((request, ended_ns <= request.deadline_ns) for request in requests)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a dropped request."""
        self._ended.append((request, False))

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a failed request."""
        self._ended.append((request, False))

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Record the end of a stage."""
        stage = effect.batch.stages[effect.stage]
        self._stages.append((stage.partition, stage.worker_id, effect.shape, effect.rows, ended_ns - started_ns))


def corrected(
    profiles: Iterable[Profile], factors: Mapping[ProfileKey, Sequence[float]]
) -> tuple[list[Profile], list[float]]:
    """Return profiles corrected by observed ratios of stage latency, and the ratios to the corrected ones."""
    means = {key: fmean(of_key) for key, of_key in factors.items()}
    left = [factor / means[key] for key, of_key in factors.items() for factor in of_key]
    return [_scaled(profile, means.get(profile.key, 1.0)) for profile in profiles], left


def _scaled(profile: Profile, factor: float) -> Profile:
    def scaled(table_ns: Iterable[int]) -> tuple[int, ...]:
        return tuple(max(1, round(ns * factor)) for ns in table_ns)

    return replace(profile, expected=scaled(profile.expected), planned=scaled(profile.planned))
