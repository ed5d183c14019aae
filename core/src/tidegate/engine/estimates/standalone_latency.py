"""Stand-alone latency of each application's requests, learned from batches of one request.

No request runs a second time to learn this. Requests that happen to run alone represent all requests of their
application. Batches of several requests (`batch_law.py`) give the fixed cost and the shared noise, which published
distributions do not contain.

Probes are requests that run alone so that their application's latency is learned. In a busy model every batch has
several requests, so an infrequent application would never run alone and would be taken for the mixture of all
applications. A few of its requests, each executed once like any other, run alone instead (`ProbeCounts`).

Where a feature of the requests explains their latency better than names do, latency levels take the place of
applications (`feature_law.py`).
"""

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, log, sqrt

import msgspec

from tidegate.api import LatencyDistribution, Profile, Request
from tidegate.engine.estimates.batch_law import MIN_BATCHES, BatchLaw, StandaloneTimes
from tidegate.engine.estimates.feature_law import FeatureLaw, FeatureSample, is_level

WINDOW_STAGES = 512
"""Number of latest stages that make a distribution."""
DISTRIBUTION_POINTS = 64
"""Number of points of a published distribution."""
MAX_POINTS = 2 * DISTRIBUTION_POINTS
"""Number of points of several distributions from which the latency of batches is computed."""
FIRST_REPORT_STAGES = 8
"""Number of stages before the first publication; the next ones follow at every doubling, then at a fixed interval."""
REPORT_INTERVAL_STAGES = 64
PRIOR_VALID_STAGES = 64
"""Stages after which a distribution from elsewhere no longer counts."""
MIN_CHANGE_FRACTION = 0.02
"""Minimum relative change of the mean, of either tail, of the noise or of batch latency that is published."""
BATCH_SAMPLING_INTERVAL = 8
"""After enough batches, one of this many is evaluated."""
MAX_SHARE = 0.95
"""Maximum fraction of the shortest time that the fixed cost c0 may be."""
MAX_APPS = 128
"""Maximum number of applications of a model on one device class; further ones are not learned, because clients name
them. As many levels are learned beside them.
"""

LEVELS_PER_REQUEST = 4
"""Number of levels that are published with one request that ran alone, because the event loop waits for it."""

Key = tuple[str, str, str]
"""(model, application, device class)."""


class _Seen:
    """The stages of one key."""

    def __init__(self) -> None:
        self.count = 0
        self.latest_ns: deque[int] = deque(maxlen=WINDOW_STAGES)
        self.published: LatencyDistribution | None = None
        self.points_ns: tuple[int, ...] = ()
        """Sorted standalone times of requests, noise included, given or learned; empty before that."""
        self.alone = StandaloneTimes(0, 0.0, 0.0)
        """The mean and the scatter of that."""
        self.first = FIRST_REPORT_STAGES

    @property
    def is_look(self) -> bool:
        """Whether to see if the distribution has moved."""
        if self.count < self.first:
            return False
        return self.count % REPORT_INTERVAL_STAGES == 0 or (
            self.count < REPORT_INTERVAL_STAGES and self.count & (self.count - 1) == 0
        )

    @property
    def is_learned(self) -> bool:
        """Whether what is known of it was learned, rather than known beforehand."""
        return self.count >= self.first and bool(self.points_ns)

    def know(self, points_ns: tuple[int, ...], count: int) -> None:
        """Set the standalone latency of requests, as learned from this many of them."""
        mean_ns = sum(points_ns) / len(points_ns)
        cv2 = sum((each / mean_ns - 1) ** 2 for each in points_ns) / len(points_ns)
        self.points_ns, self.alone = points_ns, StandaloneTimes(count, mean_ns, cv2)


class StandaloneLatency:
    """Current distributions by (model, application, device class); none for requests without an application."""

    def __init__(self, given: Iterable[LatencyDistribution]) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._counts: Counter[tuple[str, str, bool]] = Counter()
        """Number of applications, and of levels, by (model, device class, whether they are levels)."""
        self._laws: dict[tuple[str, str], BatchLaw] = {}
        """Laws of batches by (model, device class)."""
        self._max_noise_cv2: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        """Upper bound of the noise by what was learned of each application, by (model, device class)."""
        self._unpublished: dict[str, Iterator[LatencyDistribution | None]] = {}
        """Levels of each model that are yet to be published."""
        self._features: dict[str, FeatureLaw] = {}
        """Laws of latency over the requests' feature, by model."""
        for times in given:
            seen = self._see((times.model, times.app, times.device_class), is_level=is_level(times.app))
            if seen:
                seen.published = times
                seen.first = PRIOR_VALID_STAGES
                # Batches of them tell at once what requests share: by the time the first one is learned, it is known.
                seen.know(
                    tuple(round(times.fixed_ns + times.scale * time_ns) for time_ns in times.times_ns),
                    PRIOR_VALID_STAGES,
                )
                self._law_of(times.model, times.device_class).know(times.app, seen.alone)

    @property
    def known(self) -> tuple[LatencyDistribution, ...]:
        """Distributions published last, one for each application."""
        return tuple(seen.published for seen in self._seen.values() if seen.published)

    def with_level(self, request: Request) -> Request:
        """Return the request with its latency level as application, if a feature explains the latency better."""
        law = self._features.get(request.model)
        if law is None:
            law = self._features[request.model] = FeatureLaw()
        if not law.applies_to(request.shape):
            return request
        level = law.level_of(request.feature, request.app)
        return msgspec.structs.replace(request, app=level, client_app=request.app) if level else request

    def samples_wanted(self, request: Request) -> int:
        """Return how many requests of the model should run alone to find out what their feature says."""
        law = self._features.get(request.model)
        return law.samples_wanted if law and request.feature else 0

    def observe(
        self, request: Request, device_class: str, duration_ns: int, profile: Profile
    ) -> Sequence[LatencyDistribution]:
        """Add a request that ran alone; return the distributions of applications, or levels, that have moved.

        `device_class`: that of the worker. `duration_ns`: latency of the request. `profile`: that of the partition,
        which gives the law of batches. A request of several rows counts by its time per row.
        """
        if request.rows > 1:
            fixed_ns = self._law_of(request.model, device_class).fixed_ns(profile.fixed_cost_ns)
            shared_ns = min(fixed_ns, MAX_SHARE * duration_ns)
            duration_ns = round(shared_ns + (duration_ns - shared_ns) / request.rows)
        moved: list[LatencyDistribution] = []
        if request.feature and (law := self._features.get(request.model)):
            sample = FeatureSample(request.feature, _client_app(request), device_class, log(max(1, duration_ns)))
            is_look = law.add(sample, request.arrival_ns)
            # Before batches have shown their fixed cost, levels could make a policy run every request alone, for good.
            if is_look and (law.has_levels or self._law_of(request.model, device_class).seen >= MIN_BATCHES):
                self._unpublished[request.model] = self._published_levels(request.model, law, profile)
            levels = islice(self._unpublished.get(request.model, ()), LEVELS_PER_REQUEST)
            moved += [times for times in levels if times]
        if request.app or request.feature:
            times = self._observe_application(request, device_class, duration_ns, profile)
            moved += [times] if times else []
        return moved

    def _observe_application(
        self, request: Request, device_class: str, duration_ns: int, profile: Profile
    ) -> LatencyDistribution | None:
        """Add a request that ran alone to those of its application, not to a level's.

        What requests without a name take is not published: batches of them show the fixed cost.
        """
        app = _client_app(request)
        seen = self._see((request.model, app, device_class))
        if seen is None:
            return None
        seen.count += 1
        seen.latest_ns.append(duration_ns)
        if not seen.is_look:
            return None
        latest_ns = sorted(seen.latest_ns)
        points = min(DISTRIBUTION_POINTS, len(latest_ns))
        points_ns = tuple(latest_ns[(2 * rank + 1) * len(latest_ns) // (2 * points)] for rank in range(points))
        seen.know(points_ns, len(latest_ns))
        if app and app == request.app:
            return self._publish(request.model, app, device_class, seen, profile)
        self._know(request.model, app, device_class, seen)
        return None

    def _published_levels(
        self, model: str, features: FeatureLaw, profile: Profile
    ) -> Iterator[LatencyDistribution | None]:
        """Publish the levels, on all device classes; yield None for one that has not moved.

        Requests are placed in levels after that. `profile`: as in `observe`.
        """
        for device_class in features.device_classes:
            for level, points_ns in features.levels(device_class):
                if seen := self._see((model, level, device_class), is_level=True):
                    seen.count = max(seen.count, seen.first)
                    seen.know(points_ns, features.samples)
                    yield self._publish(model, level, device_class, seen, profile)
        features.has_levels = True

    def _publish(
        self, model: str, app: str, device_class: str, seen: _Seen, profile: Profile
    ) -> LatencyDistribution | None:
        """Return the distribution of what has just been learned, if it has moved."""
        law = self._know(model, app, device_class, seen)
        times = _times(
            model, app, device_class, seen, law.mean_ns(app), law.fixed_ns(profile.fixed_cost_ns), law.noise_cv
        )
        if seen.published and not _moved(seen.published, times):
            return None
        seen.published = times
        return times

    def _know(self, model: str, app: str, device_class: str, seen: _Seen) -> BatchLaw:
        """Pass what has just been learned to the law of batches, and return it."""
        law = self._law_of(model, device_class)
        law.know(app, seen.alone)
        learned = self._max_noise_cv2[model, device_class]
        learned[app] = seen.alone.max_noise_cv2
        law.max_noise_cv = sqrt(min(learned.values()))
        return law

    def observe_batch(
        self, requests: Sequence[Request], device_class: str, duration_ns: int
    ) -> Sequence[LatencyDistribution]:
        """Add a batch of several requests; return the distributions that moved with the law of batches.

        `device_class`: that of the worker. `duration_ns`: latency of the batch. In a busy model requests may never run
        alone again.
        """
        model = requests[0].model
        if (features := self._features.get(model)) and all(request.feature for request in requests):
            rows = sum(request.rows for request in requests)
            features.add_batch([request.feature for request in requests], rows, device_class, log(max(1, duration_ns)))
        law = self._law_of(model, device_class)
        if law.seen >= MIN_BATCHES and law.seen % BATCH_SAMPLING_INTERVAL:
            law.seen += 1
            return ()
        counts: Counter[tuple[int, ...]] = Counter()
        longest, longest_mean_ns = "", 0.0
        for request in requests:
            seen = self._seen.get((model, request.app, device_class))
            if seen is None or not seen.points_ns:
                return ()
            counts[seen.points_ns] += 1
            if seen.alone.mean_ns > longest_mean_ns:
                longest, longest_mean_ns = request.app, seen.alone.mean_ns
        rows = sum(request.rows for request in requests)
        law.observe(longest, rows, *_longest_ns(counts), duration_ns)
        if law.seen < MIN_BATCHES:
            return ()
        fixed_ns, noise_cv = law.fixed_ns(0.0), law.noise_cv
        moved = []
        for app in dict.fromkeys(request.app for request in requests):
            seen = self._seen[model, app, device_class]
            if seen.is_learned and seen.published:
                times = _times(model, app, device_class, seen, law.mean_ns(app), fixed_ns, noise_cv)
                if _moved(seen.published, times):
                    seen.published = times
                    moved.append(times)
        return moved

    def _law_of(self, model: str, device_class: str) -> BatchLaw:
        law = self._laws.get((model, device_class))
        if law is None:
            law = self._laws[model, device_class] = BatchLaw()
        return law

    def _see(self, key: Key, *, is_level: bool = False) -> _Seen | None:
        seen = self._seen.get(key)
        if seen is None:
            counted = key[0], key[2], is_level
            if self._counts[counted] >= MAX_APPS:
                return None
            self._counts[counted] += 1
            seen = self._seen[key] = _Seen()
        return seen


def _times(
    model: str, app: str, device_class: str, seen: _Seen, mean_ns: float, fixed_ns: float, noise_cv: float
) -> LatencyDistribution:
    """The distribution of an application's own times, where batches share such a fixed cost and such a noise.

    Policies get c1 = 1 - c0 / mean, and times of which c1 is what is beyond c0: stretched about the mean, so that
    `c0 + c1 * k * max` is what batches take.
    """
    own = seen.alone.own_fraction(noise_cv)
    alone_ns = [mean_ns + own * (time_ns - seen.alone.mean_ns) for time_ns in seen.points_ns]
    fixed_ns = max(0.0, min(fixed_ns, MAX_SHARE * alone_ns[0]))
    scale = 1 - fixed_ns / mean_ns
    times_ns = tuple(max(1, round((time_ns - fixed_ns) / scale)) for time_ns in alone_ns)
    return LatencyDistribution(model, app, device_class, times_ns, fixed_ns, scale, noise_cv)


def _longest_ns(counts: Mapping[tuple[int, ...], int]) -> tuple[float, float]:
    """The mean and the variance of the maximum of independent times: this many of each distribution, as sorted points.

    Of the points of many distributions some are enough, since the event loop waits for this.
    """
    mean_ns = square_ns2 = before = 0.0
    all_ns = sorted({time_ns for points_ns in counts for time_ns in points_ns})
    every = ceil(len(all_ns) / MAX_POINTS)
    for time_ns in all_ns[(len(all_ns) - 1) % every :: every]:  # the longest among them
        share = 1.0
        for points_ns, count in counts.items():
            share *= (bisect_right(points_ns, time_ns) / len(points_ns)) ** count
        mean_ns += time_ns * (share - before)
        square_ns2 += time_ns * time_ns * (share - before)
        before = share
    return mean_ns, max(0.0, square_ns2 - mean_ns * mean_ns)


def _moved(before: LatencyDistribution, now: LatencyDistribution) -> bool:
    """Whether times alone, batches or the noise differ: c0 by itself makes no difference."""

    def figures(times: LatencyDistribution) -> tuple[float, ...]:
        tenth = len(times.times_ns) // 10
        ends_ns = [times.fixed_ns + times.scale * times.times_ns[at] for at in (tenth, -1 - tenth)]
        return times.mean_ns, *ends_ns, times.expected_batch_ns(FIRST_REPORT_STAGES), 1 + times.noise_cv

    return any(abs(new / old - 1) > MIN_CHANGE_FRACTION for old, new in zip(figures(before), figures(now), strict=True))


UNKNOWN_PROBE_INTERVAL = 4
"""Number of an unknown application's requests of which one runs alone."""
KNOWN_PROBE_INTERVAL = WINDOW_STAGES
"""Number of a known application's requests, none of which ran alone, after which one does, to correct a wrong
estimate.
"""
MAX_SEEN = 1 << 16
"""Number of requests that ran alone up to which they are counted."""
MODEL_PROBE_INTERVAL = 16
"""Number of a model's requests, of all applications, of which at most one runs alone as a probe."""


@dataclass(slots=True)
class _Application:
    seen: int = 0
    """Its requests that ran alone, up to MAX_SEEN."""
    arrived: int = 0
    """Its requests since the last one that did, or was to."""

    def is_due(self, wanted: int) -> bool:
        """Whether a request is to run alone; `wanted`: how many are at first."""
        return self.arrived >= (UNKNOWN_PROBE_INTERVAL if self.seen < wanted else KNOWN_PROBE_INTERVAL)


class ProbeCounts:
    """Counts of arrived requests and those that ran alone, by model and application."""

    def __init__(self) -> None:
        self._applications: dict[str, dict[str, _Application]] = {}
        """Counts by model and name; "": all requests of the model with a feature."""
        self._arrived: dict[str, int] = {}
        """The requests of each model since the last one that was to run alone."""

    def wants(self, request: Request, samples: int = 0) -> bool:
        """Count a request; return whether it should run alone.

        `samples`: how many requests of the model should run alone first, for a law over their feature.
        """
        model = request.model
        self._arrived[model] = self._arrived.get(model, 0) + 1
        due = []
        for known, wanted in self._counted(request, samples):
            known.arrived += 1
            if known.is_due(wanted):
                due.append(known)
        if not due or self._arrived[model] < MODEL_PROBE_INTERVAL:
            return False
        self._arrived[model] = 0
        for known in due:
            known.arrived = 0
        return True

    def ran_alone(self, request: Request) -> None:
        """Count a request that ran alone."""
        for known, _ in self._counted(request, 1):
            known.arrived = 0
            known.seen = min(MAX_SEEN, known.seen + 1)

    def _counted(self, request: Request, samples: int) -> Iterator[tuple[_Application, int]]:
        """Yield what a request counts for, and how many are wanted; names no more than there is room for."""
        of_model = self._applications.setdefault(request.model, {})
        name = _client_app(request)
        wanted_of = {name: FIRST_REPORT_STAGES} if name else {}
        if request.feature and samples:
            wanted_of[""] = samples
        for each, wanted in wanted_of.items():
            if each in of_model or len(of_model) < MAX_APPS:
                yield of_model.setdefault(each, _Application()), wanted


def _client_app(request: Request) -> str:
    """Return the application that the client named: a latency level is learned from all requests of the model."""
    return request.client_app if request.feature and is_level(request.app) else request.app
