"""Applications of a model: the latency distribution of each, and how frequent its requests are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.api import NS_PER_MS, LatencyDistribution, Policy, Profile, Request
from tidegate_orloj.batch_latency import (
    BatchLatency,
    BatchLaw,
    Floats,
    expected_ms,
    law_of_profile,
    law_of_several,
)
from tidegate_orloj.priority import PriorityCurve

USUAL_DELAY = 0.1
"""Rate of the anticipated delay, per mean stand-alone time of a request: suits models of 3 ms and of 700 ms."""
MAX_GROUPS = 8
"""Maximum number of groups of applications, besides unknown ones, because clients name applications."""
LOOK_EVERY = 256
"""Number of requests between two checks of the applications' frequencies."""
MIN_SHARE_CHANGE = 0.05
"""Minimum change of an application's fraction of requests that counts."""


class BatchKind(NamedTuple):
    """Key of batches whose latencies are computed together."""

    device_class: str
    """Device class of the worker."""
    rows: int
    others: int
    """Number of requests in the batch besides the one in question."""


class WorkBudget:
    """Work budget of the current event; among a few hundred requests a unit takes 0.05 ms."""

    UNITS = 28
    QUEUE, SIZE, CURVES = 1, 2, 5
    """Units of work to examine a queue, to examine the batches of a size, and to compute the curves of a size."""
    MOST_CURVES = 4
    FEW_GROUPS = 4
    """Number of groups above which a size counts twice: it has a curve for each pair of groups."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Restore the budget for the next event."""
        self.left, self._curves = self.UNITS, self.MOST_CURVES

    def spend(self, units: int) -> None:
        """Subtract `units` of work from the budget."""
        self.left -= units

    def allows_curves(self, groups: int) -> bool:
        """Whether the curves of one more size of `groups` groups may be computed; if so, they are charged."""
        if self._curves <= 0:
            return False
        self._curves -= 1 if groups <= self.FEW_GROUPS else 2
        self.spend(self.CURVES)
        return True


@dataclass(frozen=True, slots=True)
class ApplicationGroups:
    """Groups of similar applications on a device class; group 0 contains unknown ones."""

    group_of: NDArray[np.intp]
    """Group of each application, by its number."""
    laws: tuple[BatchLaw, ...]
    ranks: NDArray[np.intp]
    """Rank of each group by stand-alone latency; 0: fastest."""
    shares: Floats
    """Fraction of requests of each group."""
    mixtures: Floats
    """Fractions in batches without slower groups than the i-th, in row i."""
    known: int
    """Number of applications with known latency."""
    published: tuple[tuple[tuple[int, int], ...], ...]
    """Version of the times from which the laws were made."""


@dataclass(frozen=True, slots=True)
class BatchCurves:
    """Priority curves of batches of one size on a device class: one for each possible slowest group."""

    version: int
    """Version of the applications from which they were computed."""
    mean_ns: NDArray[np.int64]
    """Expected latency in ns by slowest group of the batch, and by group of the request in question."""
    curve: PriorityCurve
    """Priority curve of requests in such batches."""


class Applications:
    """Applications of one model and shape, by number.

    Number 0 stands for all requests whose application has no distribution of its own; they are described by the profile
    of their shape. Results that depend on laws and frequencies are computed on demand, a few curves for each event, and
    reused while groups stay the same; older curves are used until new ones are computed.
    """

    def __init__(
        self,
        model: str,
        shape: str,
        delay_rate: float | None = None,
        *,
        quantile: float = Policy.quantile,
        budget: WorkBudget | None = None,
    ) -> None:
        """Create the applications of a model and shape, without distributions.

        `delay_rate`: see `PriorityCurve`, per ms; None: USUAL_DELAY over the mean stand-alone time. `quantile`: see
        `Policy.quantile`. `budget`: work budget of an event; None: one of its own.
        """
        self.model = model
        self.shape = shape
        self._quantile = quantile
        self._budget = budget or WorkBudget()
        self._version = 0
        """Another number whenever a law or a share has moved."""
        self._given_b = delay_rate
        self._numbers: dict[str, int] = {}
        self._profiles: dict[str, Profile] = {}
        self._times: dict[str, dict[int, LatencyDistribution]] = {}
        """Stand-alone times by device class and application number."""
        self._published: dict[tuple[str, int], int] = {}
        """How often each was published."""
        self._stock_taken = 0
        self._is_named = False
        """Whether requests name their application, which may be unknown yet."""
        self._counts = np.ones(1)
        self._shares = np.ones(1)
        """How often each comes, never 0: what never came yet may."""
        self._arrived = 0
        self._groups: dict[str, ApplicationGroups] = {}
        self._grouped: dict[str, int] = {}
        """The versions of the groups, by device class."""
        self._alone_ns: dict[tuple[str, int], NDArray[np.int64]] = {}
        self._curves: dict[BatchKind, BatchCurves] = {}
        self._b: float | None = delay_rate

    @property
    def delay_rate(self) -> float:
        """Rate of the anticipated delay per ms: how soon a request that does not run now is expected to run."""
        if self._b is None:
            self._b = USUAL_DELAY / min(self._mean_ms(device_class) for device_class in self._profiles)
        return self._b

    def tell_profile(self, profile: Profile) -> None:
        """Set the profile of requests of this shape on a device class."""
        self._profiles[profile.device_class] = profile
        self._forget()

    def tell_times(self, times: LatencyDistribution) -> None:
        """Set the stand-alone times of an application's requests on a device class.

        An empty name stands for requests without an application.
        """
        if times.app and times.app not in self._numbers:
            self._numbers[times.app] = len(self._numbers) + 1
            self._counts = np.append(self._counts, 1.0)
        number = self._numbers.get(times.app, 0)
        self._times.setdefault(times.device_class, {})[number] = times
        self._published[times.device_class, number] = self._published.get((times.device_class, number), 0) + 1
        self._shares = self._counts / self._counts.sum()
        self._forget()

    def number_of(self, request: Request) -> int:
        """Return the number of a request's application."""
        return self._numbers.get(request.app, 0)

    def count(self, request: Request) -> None:
        """Count an arrival; older ones lose weight."""
        number = self.number_of(request)
        if request.app and not self._is_named:
            self._is_named = True
            self._forget()
        self._counts[number] += 1
        self._arrived += 1
        if self._arrived % LOOK_EVERY == 0:
            counted = self._counts / self._counts.sum()
            if np.abs(counted - self._shares).max() > MIN_SHARE_CHANGE:
                self._take_stock()
            self._counts /= 2

    def inherit(self, other: "Applications") -> None:
        """Take over the counts of applications that `other` knows, too."""
        for name, number in self._numbers.items():
            if name in other._numbers:
                self._counts[number] = other._counts[other._numbers[name]]
        self._counts[0] = other._counts[0]
        self._take_stock()

    def groups(self, device_class: str) -> ApplicationGroups:
        """Return the groups of applications on a device class `device_class`."""
        if self._grouped.get(device_class) != self._version:
            self._regroup(device_class)
        return self._groups[device_class]

    def curves(self, sizes: Sequence[BatchKind]) -> dict[BatchKind, BatchCurves]:
        """Return the curves of batches of these sizes on a device class, without those not computed yet.

        As many are computed as the budget of an event allows: single requests first, then missing sizes, the largest
        first, then the oldest.
        """
        groups = len(self.groups(sizes[0].device_class).laws)  # which drops curves that are no longer true
        known = self._curves
        old = [size for size in sizes if size not in known or known[size].version != self._version]

        def order(size: BatchKind) -> tuple[int, int, int]:
            return min(1, size.others), known[size].version if size in known else -1, -size.rows

        for size in sorted(old, key=order):
            if not self._budget.allows_curves(groups):
                break
            latency = self.latency(size)
            known[size] = BatchCurves(self._version, latency.mean_ns, PriorityCurve(latency, self.delay_rate))
        return {size: known[size] for size in sizes if size in known}

    def latency(self, size: BatchKind) -> BatchLatency:
        """Return the latency of batches of a size, by their slowest group and that of the request in question."""
        groups = self.groups(size.device_class)
        mixtures = groups.mixtures if size.others else groups.shares[None, :]
        return BatchLatency(groups.laws, mixtures, size.rows, size.others)

    def alone_ns(self, device_class: str, rows: int) -> NDArray[np.int64]:
        """Return the expected stand-alone latency in ns of requests of `rows` rows on a device class, by group."""
        laws = self.groups(device_class).laws
        known = self._alone_ns.get((device_class, rows))
        if known is None:
            taken_ms = [law.mean_ms(rows) for law in laws]
            known = self._alone_ns[device_class, rows] = (np.asarray(taken_ms) * NS_PER_MS).astype(np.int64)
        return known

    def quickest_alone_ns(self, kinds: Iterable[str], request: Request) -> int:
        """Return the expected stand-alone latency in ns of a request on the fastest of the device classes `kinds`."""
        number = self.number_of(request)
        return min(
            int(self.alone_ns(device_class, request.rows)[self.groups(device_class).group_of[number]])
            for device_class in kinds
        )

    def expected_ms(self, device_class: str, rows: int, members: Iterable[int]) -> float:
        """Return the expected latency in ms of a batch of `rows` rows on device class `device_class`.

        `members`: application number of each request.
        """
        groups = self.groups(device_class)
        return expected_ms((groups.laws[groups.group_of[member]] for member in members), rows)

    def _regroup(self, device_class: str) -> None:
        """Make the laws of groups again; and the groups, where more applications are known."""
        self._grouped[device_class] = self._version
        known, before = self._times.get(device_class, {}), self._groups.get(device_class)
        if before and len(before.group_of) == len(self._shares) and before.known == len(known):
            group_of = before.group_of
        else:
            group_of, before = self._group(device_class), None
            for size in [size for size in self._curves if size.device_class == device_class]:
                del self._curves[size]
        laws = self._laws(device_class, group_of, before)
        ranks = np.argsort(np.argsort([law.mean_ms(1) for law in laws], kind="stable"))
        shares: Floats = np.bincount(group_of, self._shares, len(laws)).astype(np.float64)
        mixtures: Floats = np.where(ranks <= ranks[:, None], shares, 0.0)
        mixtures = mixtures / mixtures.sum(axis=1, keepdims=True)
        published = tuple(self._published_of(device_class, group_of))
        self._groups[device_class] = ApplicationGroups(
            group_of, tuple(laws), ranks, shares, mixtures, len(known), published
        )

    def _group(self, device_class: str) -> NDArray[np.intp]:
        """The group of each application: 0 is that of all of which nothing is known on this device class."""
        known = self._times.get(device_class, {})
        named = sorted(number for number in known if number)
        means_ns = [known[number].fixed_ns + known[number].scale * known[number].mean_ns for number in named]
        group_of = np.zeros(len(self._shares), np.intp)
        group_of[named] = 1 + np.asarray(_alike(means_ns, self._shares[named].tolist()), np.intp)
        return group_of

    def _published_of(self, device_class: str, group_of: NDArray[np.intp]) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield what was published, and when, of each group: the law of those that have not changed stands."""
        published: list[list[tuple[int, int]]] = [[] for _ in range(int(group_of.max()) + 1)]
        for number in self._times.get(device_class, {}):
            published[group_of[number]].append((number, self._published[device_class, number]))
        for each in published:
            yield (*each, (-1, self._stock_taken))

    def _laws(self, device_class: str, group_of: NDArray[np.intp], before: ApplicationGroups | None) -> list[BatchLaw]:
        known = self._times.get(device_class, {})
        noise_cv = max((times.noise_cv for number, times in known.items() if number), default=0.0)
        laws = []
        for group, published in enumerate(self._published_of(device_class, group_of)):
            if group == 0 and 0 not in known:
                laws.append(
                    law_of_profile(
                        self._profiles[device_class], self._quantile, noise_cv if known or self._is_named else None
                    )
                )
            elif before and before.published[group] == published:
                laws.append(before.laws[group])
            else:
                members = [number for number, _ in published if number >= 0]
                shares = [float(self._shares[number]) for number in members]
                laws.append(law_of_several([known[number] for number in members], shares))
        return laws

    def _mean_ms(self, device_class: str) -> float:
        groups = self.groups(device_class)
        return float(groups.shares @ [law.mean_ms(1) for law in groups.laws])

    def _take_stock(self) -> None:
        self._shares = self._counts / self._counts.sum()
        self._stock_taken += 1
        self._forget()

    def _forget(self) -> None:
        self._alone_ns.clear()
        self._b = self._given_b
        self._version += 1


def _alike(means_ns: Sequence[float], shares: Sequence[float]) -> list[int]:
    """The groups of applications, numbered from the quickest on: those next to each other that differ least are one.

    What is lost by taking two for one grows with how far apart they are and how often both come (Ward).
    """
    order = sorted(range(len(means_ns)), key=means_ns.__getitem__)
    runs = [[number] for number in order]
    centers = [log(max(1.0, means_ns[number])) for number in order]
    weights = [shares[number] for number in order]

    def lost(at: int) -> float:
        one, other = weights[at], weights[at + 1]
        return one * other / (one + other) * (centers[at + 1] - centers[at]) ** 2

    losses = [lost(at) for at in range(len(runs) - 1)]
    while len(runs) > MAX_GROUPS:
        at = losses.index(min(losses))
        both = weights[at] + weights[at + 1]
        centers[at] = (weights[at] * centers[at] + weights[at + 1] * centers[at + 1]) / both
        weights[at] = both
        runs[at] += runs[at + 1]
        del runs[at + 1], centers[at + 1], weights[at + 1], losses[at]
        for changed in (at - 1, at):
            if 0 <= changed < len(losses):
                losses[changed] = lost(changed)
    groups = [0] * len(means_ns)
    for group, run in enumerate(runs):
        for number in run:
            groups[number] = group
    return groups
