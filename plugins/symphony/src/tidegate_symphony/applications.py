"""The applications of a model: what batches take that hold the quickest of them only, and those that hold all."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from tidegate.api import LatencyDistribution, Profile, Request
from tidegate_symphony.latency_bounds import Promises

MOST_GROUPS = 8
"""So many groups of applications are told apart at most; clients name applications."""
MOST_POINTS = 640
"""About so many points of all groups' distributions together are looked at."""
DIFFERENT = 1.1
"""Applications are worth telling apart where the largest batch of all takes so many times what one of the quickest
does: less may be chance, and who names applications may do so for other reasons."""
LOOK_EVERY = 256
"""After so many requests it is seen whether applications come as often as was thought."""
MOVED = 0.05
"""The least by which the share of one has to have moved for that to count."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Requests of one queue that are considered for a batch of their own, and what such batches promise."""

    promises: Promises
    apps: frozenset[str] | None = None
    """Their applications; None: all requests, of whatever application."""

    def of(self, requests: Iterable[Request]) -> list[Request]:
        """The requests of a queue that are alike, in its order."""
        apps = self.apps
        return list(requests) if apps is None else [request for request in requests if request.app in apps]


class Applications:
    """The applications of one model of which it is known how long their requests run alone."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], LatencyDistribution] = {}
        """The distributions by (kind of worker, application)."""
        self._counts: dict[str, float] = {}
        """How often each comes, never 0: what never came yet may. Old requests weigh ever less."""
        self._shares: dict[str, float] = {}
        """What was made of that."""
        self._arrived = 0
        self._mixed: dict[tuple[str, str, int], tuple[tuple[Profile, frozenset[str] | None], ...]] = {}
        """The groups by (kind of worker, shape, largest batch), until a distribution or a share has moved."""

    def tell(self, times: LatencyDistribution) -> None:
        """What an application's requests take alone on a kind of worker."""
        self._times[times.kind, times.app] = times
        self._counts.setdefault(times.app, 1.0)
        self._take_stock()

    def count(self, app: str) -> bool:
        """A request of an application arrived; True where the shares have moved, so that groups take otherwise."""
        if app not in self._counts:
            return False
        self._counts[app] += 1
        self._arrived += 1
        if self._arrived % LOOK_EVERY:
            return False
        total = sum(self._counts.values())
        moved = any(abs(count / total - self._shares[each]) > MOVED for each, count in self._counts.items())
        if moved:
            self._take_stock()
        for each in self._counts:
            self._counts[each] /= 2
        return moved

    def alike(self, profile: Profile, max_rows: int, quantile: float) -> tuple[Alike, ...]:
        """The groups of a queue: the quickest applications, these and the next quicker ones, and so on, at last all.

        `profile`: of the queue; nobody may promise less than it says that a batch takes at least. None where fewer than
        two applications are known on that kind of worker, or all take about the same.
        """
        key = profile.kind, profile.shape, max_rows
        mixed = self._mixed.get(key)
        if mixed is None:
            mixed = tuple(self._mix(profile, max_rows, quantile))
            if mixed and mixed[-1][0].expected_ns(max_rows) < DIFFERENT * mixed[0][0].expected_ns(max_rows):
                mixed = ()
            self._mixed[key] = mixed
        least = profile.lower_bound()
        return tuple(Alike(Promises.of(Profile.slowest((each, least)), quantile), apps) for each, apps in mixed)

    def _mix(self, profile: Profile, max_rows: int, quantile: float) -> Iterable[tuple[Profile, frozenset[str] | None]]:
        known = [times for (kind, app), times in self._times.items() if kind == profile.kind and app]
        ranked = sorted(known, key=lambda times: (times.fixed_ns + times.scale * times.mean_ns, times.app))
        if len(ranked) < 2:
            return
        step = ceil(len(ranked) / MOST_GROUPS)
        lasts = range(len(ranked) - step * ((len(ranked) - 1) // step), len(ranked) + 1, step)
        for last in lasts:
            among = ranked[:last]
            apps = None if last == len(ranked) else frozenset(times.app for times in among)
            like, points = profile.up_to(max_rows), min(256, MOST_POINTS // len(lasts))
            yield LatencyDistribution.profile_of_batches(among, self._shares, like, quantile, most_points=points), apps

    def _take_stock(self) -> None:
        total = sum(self._counts.values())
        self._shares = {app: count / total for app, count in self._counts.items()}
        self._mixed.clear()
