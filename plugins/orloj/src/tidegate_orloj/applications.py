"""Whose requests wait for a model: the distribution of each application's times, and how often each comes."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.api import ExecutionTimes, Policy, Profile, Request
from tidegate_orloj.batch_latency import BatchLatency, Law, law_of_profile, law_of_times
from tidegate_orloj.priority import Curve

USUAL_DELAY = 0.1
"""The rate of the anticipated delay, per mean time of a request alone: it has to suit models of 3 ms and of 700 ms."""
ANY = -1
"""The application that stands for all of them."""
OWN_ROWS = 0
"""Rows of a batch that is a single request, whatever rows it has."""


class Size(NamedTuple):
    """What sets batches apart whose latencies have one distribution."""

    kind: str
    """The kind of the worker."""
    rows: int
    others: int
    """How many requests are in it besides the one that is asked about."""
    longest: int = ANY
    """The application whose requests take longest alone, of those that it may hold; ANY: it may hold all."""


def alone(kind: str) -> Size:
    """A batch of a single request."""
    return Size(kind, OWN_ROWS, 0)


LOOK_EVERY = 256
"""After so many requests it is seen whether applications come as often as was thought."""
MOVED = 0.05
"""The least by which the share of one has to have moved for that to count."""


class Applications:
    """The applications of one model and shape, by number.

    Number 0 is all requests whose application has no distribution of its own: those are told apart by their shape, for
    which there is a profile. What follows from laws and shares is computed
    when it is asked for, and kept until one of them moves.
    """

    def __init__(self, model: str, shape: str, b: float | None = None, *, quantile: float = Policy.quantile) -> None:
        """`b`: see `Curve`; None: USUAL_DELAY over the mean time of a request alone. `quantile`: see Policy."""
        self._quantile = quantile
        self.model = model
        self.shape = shape
        self.version = 0
        """Another number whenever a law or a share has moved: what was derived from them is to be derived anew."""
        self._given_b = b
        self._b: float | None = b
        self._numbers: dict[str, int] = {}
        self._profiles: dict[str, Profile] = {}
        self._times: dict[tuple[str, str], Law] = {}
        """The laws by (kind of worker, application)."""
        self._counts = np.ones(1)
        self._shares = np.ones(1)
        """How often each comes, never 0: what never came yet may."""
        self._arrived = 0
        self._latencies: dict[Size, BatchLatency] = {}
        self._curves: dict[Size, Curve] = {}
        self._ranks: dict[str, NDArray[np.intp]] = {}

    @property
    def b(self) -> float:
        """How soon a request that is not run now is expected to, per ms; another one only with another version."""
        if self._b is None:
            alone = [self.latency(Size(kind, 1, 0)).mean_ms @ self._shares for kind in self._profiles]
            self._b = USUAL_DELAY / float(min(alone))
        return self._b

    def tell_profile(self, profile: Profile) -> None:
        """What requests of this shape take on a kind of worker."""
        self._profiles[profile.kind] = profile
        self._forget()

    def tell_times(self, times: ExecutionTimes) -> None:
        """What an application's requests take alone on a kind of worker. The empty name: those without one."""
        if times.app and times.app not in self._numbers:
            self._numbers[times.app] = len(self._numbers) + 1
            self._counts = np.append(self._counts, 1.0)
        self._times[times.kind, times.app] = law_of_times(times)
        self._take_stock()

    def number_of(self, request: Request) -> int:
        """The number of a request's application."""
        return self._numbers.get(request.app, 0)

    def count(self, number: int) -> None:
        """One of its requests arrived; old ones weigh ever less."""
        self._counts[number] += 1
        self._arrived += 1
        if self._arrived % LOOK_EVERY == 0:
            counted = self._counts / self._counts.sum()
            if np.abs(counted - self._shares).max() > MOVED:
                self._take_stock()
            self._counts /= 2

    def inherit(self, other: "Applications") -> None:
        """Begin with how often those that both know came to another one."""
        for name, number in self._numbers.items():
            if name in other._numbers:
                self._counts[number] = other._counts[other._numbers[name]]
        self._counts[0] = other._counts[0]
        self._take_stock()

    def ranks(self, kind: str) -> NDArray[np.intp]:
        """The place of each application among all, by what its requests take alone: 0 for the quickest."""
        known = self._ranks.get(kind)
        if known is None:
            order = np.argsort(self.latency(Size(kind, 1, 0)).mean_ms, kind="stable")
            known = self._ranks[kind] = np.argsort(order)
        return known

    def latency(self, size: Size) -> BatchLatency:
        """How long batches of a size take, for each application that the request asked about may be of."""
        known = self._latencies.get(size)
        if known is None:
            kind = size.kind
            unnamed = self._times.get((kind, "")) or law_of_profile(
                self._profiles[kind],
                self._quantile,
                max((law.noise_cv for (on, _), law in self._times.items() if on == kind), default=None),
            )
            laws = [unnamed, *(self._times.get((kind, name), unnamed) for name in self._numbers)]
            shares = self._shares
            if size.longest != ANY:
                ranks = self.ranks(kind)
                shares = np.where(ranks <= ranks[size.longest], shares, 0.0)
            known = self._latencies[size] = BatchLatency(laws, shares / shares.sum(), size.rows, size.others)
        return known

    def curve(self, size: Size) -> Curve:
        """The priority of requests in batches of a size."""
        known = self._curves.get(size)
        if known is None:
            known = self._curves[size] = Curve(self.latency(size), self.b)
        return known

    def expected_ns(self, size: Size) -> NDArray[np.int64]:
        """What batches of a size are expected to take, by the application of the request that is asked about."""
        return self.latency(size).mean_ns

    def alone_ns(self, kinds: Iterable[str], request: Request) -> int:
        """What a request is expected to take alone on the quickest of these kinds of worker."""
        number = self.number_of(request)
        return min(int(self.expected_ns(Size(kind, request.rows, 0))[number]) for kind in kinds)

    def _take_stock(self) -> None:
        self._shares = self._counts / self._counts.sum()
        self._forget()

    def _forget(self) -> None:
        self._b = self._given_b
        self._latencies.clear()
        self._ranks.clear()
        self._curves.clear()
        self.version += 1
