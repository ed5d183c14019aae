"""What requests of each application take where they run alone: learned from the batches of one request."""

from collections import deque
from collections.abc import Iterable

from tidegate.api import ExecutionTimes, Profile, Request

WINDOW = 512
"""How many of the latest legs make a distribution."""
POINTS = 64
"""How many points of a distribution are told."""
FIRST = 8
"""It is told for the first time when so many legs were seen, then at every doubling, then every FURTHER."""
FURTHER = 64
MOVED = 0.02
"""It is told anew where its mean, or a tenth of it at either end, moved by such a share."""
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

    @property
    def is_look(self) -> bool:
        """Whether to see if the distribution has moved."""
        return self.count % FURTHER == 0 or (FIRST <= self.count < FURTHER and self.count & (self.count - 1) == 0)


class AloneTimes:
    """The distributions as they stand, by (model, application, kind). Requests without an application have none."""

    def __init__(self, given: Iterable[ExecutionTimes]) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._apps: dict[tuple[str, str], int] = {}
        for times in given:
            seen = self._see((times.model, times.app, times.kind))
            if seen:
                seen.told = times

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
        times = self._told(request, kind, sorted(seen.latest_ns), profile)
        if seen.told and not _moved(seen.told, times):
            return None
        seen.told = times
        return times

    def _see(self, key: Key) -> _Seen | None:
        seen = self._seen.get(key)
        if seen is None:
            place = key[0], key[2]
            if self._apps.get(place, 0) >= MOST_APPS:
                return None
            self._apps[place] = self._apps.get(place, 0) + 1
            seen = self._seen[key] = _Seen()
        return seen

    @staticmethod
    def _told(request: Request, kind: str, latest_ns: list[int], profile: Profile) -> ExecutionTimes:
        count = len(latest_ns)
        points = min(POINTS, count)
        times_ns = tuple(latest_ns[(2 * rank + 1) * count // (2 * points)] for rank in range(points))
        alone_ns = profile.expected_ns(1)
        return ExecutionTimes(
            request.model, request.app, kind, times_ns, profile.fixed_cost_ns, 1 - profile.fixed_cost_ns / alone_ns
        )


def _moved(told: ExecutionTimes, now: ExecutionTimes) -> bool:
    def figures(times: ExecutionTimes) -> tuple[float, ...]:
        tenth = len(times.times_ns) // 10
        return times.mean_ns, times.times_ns[tenth], times.times_ns[-1 - tenth]

    return any(abs(new / old - 1) > MOVED for old, new in zip(figures(told), figures(now), strict=True))
