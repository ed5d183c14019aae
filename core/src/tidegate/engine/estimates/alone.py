"""What requests of each application take where they run alone: learned from the batches of one request.

No request is run a second time to learn this. A scheduler knows of a request's time nothing but its application, so
that those of an application that happen to run alone take what all of them do. Batches of several tell what requests
share: one of k that is padded to its longest takes `c0 + k * (longest - c0)`, of which all but c0 is known then.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tidegate.api import ExecutionTimes, Profile, Request

WINDOW = 512
"""How many of the latest legs make a distribution."""
POINTS = 64
"""How many points of a distribution are told."""
MOST_POINTS = 2 * POINTS
"""How many points of several distributions together are looked at."""
FIRST = 8
"""It is told for the first time when so many legs were seen, then at every doubling, then every FURTHER."""
FURTHER = 64
GIVEN = 64
"""What was told by others counts until so many legs were seen."""
MOVED = 0.02
"""It is told anew where its mean, a tenth of it at either end, or what a batch takes, moved by such a share."""
BATCHES = 16
"""So many batches tell what their requests share; before, the profile does."""
EVERY = 8
"""After these, one batch in so many is looked at."""
LARGEST_SHARE = 0.95
"""The most of the shortest time that may be c0."""
FADE = 0.998
"""What the batches before a batch count beside it."""
MOST_APPS = 128
"""The most applications of a model on one kind of worker; of further ones nothing is learned, as clients name them."""

Key = tuple[str, str, str]
"""(model, application, kind of worker)."""


class _Seen:
    """The legs of one key."""

    def __init__(self) -> None:
        self.count = 0
        self.latest_ns: deque[int] = deque(maxlen=WINDOW)
        self.told: ExecutionTimes | None = None
        self.points_ns: tuple[int, ...] = ()
        """What requests take alone, sorted, as was told, or learned and told; empty before that."""
        self.first = FIRST

    @property
    def is_look(self) -> bool:
        """Whether to see if the distribution has moved."""
        if self.count < self.first:
            return False
        return self.count % FURTHER == 0 or (self.count < FURTHER and self.count & (self.count - 1) == 0)


@dataclass(slots=True)
class _Shared:
    """What batches of a model share on a kind of worker, by least squares: `(k - 1) * c0 = k * longest - duration`."""

    seen: int = 0
    weight: float = 0.0
    total_ns: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether to look at the next batch."""
        return self.seen < BATCHES or self.seen % EVERY == 0

    def observe(self, requests: int, longest_ns: float, duration_ns: int) -> None:
        """A batch took so long, of so many requests of which the longest is expected to take that alone."""
        others = requests - 1
        self.seen += 1
        self.total_ns = FADE * self.total_ns + others * (requests * longest_ns - duration_ns)
        self.weight = FADE * self.weight + others * others

    @property
    def fixed_ns(self) -> float | None:
        """The c0 that fits them; None before enough of them were seen."""
        return max(0.0, self.total_ns / self.weight) if self.seen >= BATCHES and self.weight else None


class AloneTimes:
    """The distributions as they stand, by (model, application, kind). Requests without an application have none."""

    def __init__(self, given: Iterable[ExecutionTimes]) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._apps: dict[tuple[str, str], int] = {}
        self._shared: dict[tuple[str, str], _Shared] = {}
        """What batches share, by (model, kind of worker)."""
        for times in given:
            seen = self._see((times.model, times.app, times.kind))
            if seen:
                seen.told = times
                seen.first = GIVEN
                # Batches of them tell at once what requests share: by the time the first one is learned, it is known.
                seen.points_ns = tuple(round(times.fixed_ns + times.scale * time_ns) for time_ns in times.times_ns)

    @property
    def known(self) -> tuple[ExecutionTimes, ...]:
        """What was told last."""
        return tuple(seen.told for seen in self._seen.values() if seen.told)

    def observe(self, request: Request, kind: str, duration_ns: int, profile: Profile) -> ExecutionTimes | None:
        """A request of an application ran alone on a worker of this kind; returns the distribution where it has moved.

        `profile`: what is expected of its partition there, from which the law of batches follows.
        """
        seen = self._see((request.model, request.app, kind))
        if seen is None:
            return None
        seen.count += 1
        seen.latest_ns.append(duration_ns)
        if not seen.is_look:
            return None
        latest_ns = sorted(seen.latest_ns)
        points = min(POINTS, len(latest_ns))
        seen.points_ns = tuple(latest_ns[(2 * rank + 1) * len(latest_ns) // (2 * points)] for rank in range(points))
        times = self._law(request.model, request.app, kind, seen.points_ns)
        if times is None:  # no batches have told yet what requests share
            scale = 1 - profile.fixed_cost_ns / profile.expected_ns(1)
            times = ExecutionTimes(request.model, request.app, kind, seen.points_ns, profile.fixed_cost_ns, scale)
        if seen.told and not _moved(seen.told, times):
            return None
        seen.told = times
        return times

    def observe_batch(self, requests: Sequence[Request], kind: str, duration_ns: int) -> Sequence[ExecutionTimes]:
        """Several requests, of a row each and of applications, ran together.

        Returns the distributions of theirs that have moved by what batches share: of a model that is busy no request
        may ever run alone again.
        """
        shared = self._shared.setdefault((requests[0].model, kind), _Shared())
        if not shared.is_due:
            shared.seen += 1
            return ()
        counts: Counter[tuple[int, ...]] = Counter()
        for request in requests:
            seen = self._seen.get((request.model, request.app, kind))
            if seen is None or not seen.points_ns or request.rows != 1:
                return ()
            counts[seen.points_ns] += 1
        shared.observe(len(requests), _longest_ns(counts), duration_ns)
        moved = []
        for app in dict.fromkeys(request.app for request in requests):
            seen = self._seen[requests[0].model, app, kind]
            times = self._law(requests[0].model, app, kind, seen.points_ns) if seen.count >= seen.first else None
            if times and seen.told and _moved(seen.told, times):
                seen.told = times
                moved.append(times)
        return moved

    def _see(self, key: Key) -> _Seen | None:
        seen = self._seen.get(key)
        if seen is None:
            place = key[0], key[2]
            if self._apps.get(place, 0) >= MOST_APPS:
                return None
            self._apps[place] = self._apps.get(place, 0) + 1
            seen = self._seen[key] = _Seen()
        return seen

    def _law(self, model: str, app: str, kind: str, alone_ns: tuple[int, ...]) -> ExecutionTimes | None:
        """The distribution of which these are the points, as batches have shown what requests share; None before that.

        Told are c1 = 1 - c0 / mean, and times of which c1 is what is beyond c0: stretched about the mean, so that
        `c0 + c1 * k * max` is what batches take.
        """
        shared = self._shared.get((model, kind))
        fixed_ns = shared.fixed_ns if shared else None
        if fixed_ns is None:
            return None
        fixed_ns = min(fixed_ns, LARGEST_SHARE * alone_ns[0])
        scale = 1 - fixed_ns / (sum(alone_ns) / len(alone_ns))
        times_ns = tuple(max(1, round((time_ns - fixed_ns) / scale)) for time_ns in alone_ns)
        return ExecutionTimes(model, app, kind, times_ns, fixed_ns, scale)


def _longest_ns(counts: Mapping[tuple[int, ...], int]) -> float:
    """The expected maximum of independent times: so many of each of these distributions, as sorted points.

    Of the points of many distributions some are enough: everybody waits while this is found out.
    """
    expected_ns = before = 0.0
    all_ns = sorted({time_ns for points_ns in counts for time_ns in points_ns})
    every = ceil(len(all_ns) / MOST_POINTS)
    for time_ns in all_ns[(len(all_ns) - 1) % every :: every]:  # the longest among them
        share = 1.0
        for points_ns, count in counts.items():
            share *= (bisect_right(points_ns, time_ns) / len(points_ns)) ** count
        expected_ns += time_ns * (share - before)
        before = share
    return expected_ns


def _moved(told: ExecutionTimes, now: ExecutionTimes) -> bool:
    def figures(times: ExecutionTimes) -> tuple[float, ...]:
        tenth = len(times.times_ns) // 10
        return times.mean_ns, times.times_ns[tenth], times.times_ns[-1 - tenth], times.expected_batch_ns(FIRST)

    return any(abs(new / old - 1) > MOVED for old, new in zip(figures(told), figures(now), strict=True))
