"""Applications of a model: latency of batches of the fastest ones only, and of all."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from tidegate.api import LatencyDistribution, Profile, Request
from tidegate_symphony.latency_bounds import LatencyBounds

MAX_GROUPS = 8
"""Maximum number of groups of applications; clients name applications."""
MAX_POINTS = 640
"""Approximate number of points of all groups' distributions together."""
POINTS_PER_EVENT = MAX_POINTS // 2
"""Approximate number of points evaluated for one event; old groups are used until all are computed again."""
MIN_LATENCY_RATIO = 1.1
"""Minimum ratio between the latency of the largest batch of all applications and of the fastest ones to separate them.

A smaller difference may be chance.
"""
LOOK_EVERY = 256
"""Number of requests between two checks of the applications' frequencies."""
MIN_SHARE_CHANGE = 0.05
"""Minimum change of an application's fraction of requests that counts."""


@dataclass(frozen=True, slots=True)
class SimilarRequests:
    """Similar requests of one queue, considered for a batch of their own, with its latency bounds."""

    promises: LatencyBounds
    apps: frozenset[str] | None = None
    """Their applications; None: all requests, of whatever application."""

    def of(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests of a queue that are in this group, in order."""
        apps = self.apps
        return list(requests) if apps is None else [request for request in requests if request.app in apps]


class Mixed(NamedTuple):
    """Profile of batches of several applications."""

    profile: Profile
    apps: frozenset[str] | None
    """Names of the applications; None: all."""
    points: int
    """Approximate number of evaluated points of their distributions."""


class Applications:
    """Applications of one model whose stand-alone latency is known."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], LatencyDistribution] = {}
        """The distributions by (device class, application)."""
        self._counts: dict[str, float] = {}
        """How often each comes, never 0: what never came yet may. Old requests weigh ever less."""
        self._shares: dict[str, float] = {}
        """Shares computed from these counts."""
        self._arrived = 0
        self._like: tuple[Profile, float] | None = None
        """The largest profile and the quantile that groups were last made for."""
        self._mixed: tuple[Mixed, ...] = ()
        """The groups, as of when they were last made; none where all take about the same."""
        self.is_stale = False
        """Whether a distribution or a share has moved since the groups began to be made."""
        self._mixing: Iterator[Mixed] | None = None
        """Groups made to follow them; None: those are up to date, or none has begun."""
        self._followers: list[Mixed] = []
        """The groups among them that are made."""

    def tell(self, times: LatencyDistribution) -> None:
        """Set the stand-alone times of an application's requests on a device class."""
        self._times[times.device_class, times.app] = times
        self._counts.setdefault(times.app, 1.0)
        self._take_stock()

    def count(self, app: str) -> bool:
        """Count the arrival of an application's request; return True if frequencies have moved enough to regroup."""
        if app not in self._counts:
            return False
        self._counts[app] += 1
        self._arrived += 1
        if self._arrived % LOOK_EVERY:
            return False
        total = sum(self._counts.values())
        moved = any(abs(count / total - self._shares[each]) > MIN_SHARE_CHANGE for each, count in self._counts.items())
        if moved:
            self._take_stock()
        for each in self._counts:
            self._counts[each] /= 2
        return moved

    def alike(self, profile: Profile, max_rows: int, quantile: float) -> tuple[SimilarRequests, ...]:
        """Return the groups of a queue: the fastest applications, these and the next faster ones, and so on, at last
        all.

        They are those of the last complete `refresh`. `profile`: of the queue, which gives the lower bound; `max_rows`:
        largest batch; `quantile`: of the upper latency. Empty if fewer than two applications are known on that device
        class, or all take about the same time.
        """
        like, before = profile.up_to(max_rows), self._like
        if before is None or (before[0].key, before[0].max_rows, before[1]) != (like.key, max_rows, quantile):
            self._like, self._mixing, self._followers, self.is_stale = (like, quantile), None, [], False
            self._mixed = _told_apart([*self._mix(like, quantile)])
        least = profile.lower_bound()
        return tuple(
            SimilarRequests(LatencyBounds.of(Profile.slowest((each.profile, least)), quantile), each.apps)
            for each in self._mixed
        )

    def refresh(self, points: int) -> tuple[int, bool]:
        """Compute groups again, as far as the budget of an event allows.

        `points`: approximate number of points to evaluate. Returns how many are left, and whether all groups are
        complete.
        """
        if self._mixing is None and self.is_stale and self._like:
            self.is_stale, self._mixing = False, self._mix(*self._like)
        while self._mixing and points > 0:
            follower = next(self._mixing, None)
            if follower is None:
                self._mixed, self._followers, self._mixing = _told_apart(self._followers), [], None
            else:
                self._followers.append(follower)
                points -= follower.points
        return points, self._mixing is None

    def _mix(self, like: Profile, quantile: float) -> Iterator[Mixed]:
        known = [
            times for (device_class, app), times in self._times.items() if device_class == like.device_class and app
        ]
        ranked = sorted(known, key=lambda times: (times.fixed_ns + times.scale * times.mean_ns, times.app))
        if len(ranked) < 2:
            return
        step = ceil(len(ranked) / MAX_GROUPS)
        lasts = range(len(ranked) - step * ((len(ranked) - 1) // step), len(ranked) + 1, step)
        points = min(256, MAX_POINTS // len(lasts))
        for last in lasts:
            among = ranked[:last]
            apps = None if last == len(ranked) else frozenset(times.app for times in among)
            profile = LatencyDistribution.profile_of_batches(among, self._shares, like, quantile, most_points=points)
            yield Mixed(profile, apps, min(points, sum(len(times.times_ns) for times in among)))

    def _take_stock(self) -> None:
        total = sum(self._counts.values())
        self._shares = {app: count / total for app, count in self._counts.items()}
        self.is_stale = True


def _told_apart(groups: Sequence[Mixed]) -> tuple[Mixed, ...]:
    """The groups; none where all take about the same."""
    if not groups:
        return ()
    quickest, every = groups[0].profile, groups[-1].profile
    rows = every.max_rows
    return tuple(groups) if every.expected_ns(rows) >= MIN_LATENCY_RATIO * quickest.expected_ns(rows) else ()
