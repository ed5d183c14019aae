"""Classes of requests, few enough to learn each: by shape, and by the latency of their application.

Applications whose requests take about equally long share a class with its own profile. A class appears to policies as a
shape: requests of different classes share no batch, and the profile that the policy gets is the engine's own
expectation (invariant 8).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import ceil, log, prod

import msgspec

from tidegate.api import LatencyDistribution, Model, Policy, Profile, ProfileKey, Request
from tidegate.api.model import read_sizes

MAX_SHAPES = 32
"""Maximum number of shapes of a model with a class of their own; others share a class by number of elements."""
CLASSES_PER_DOUBLING = 4
"""Number of shared classes per doubling of elements: within one class, elements differ by less than a fifth."""

FURTHER_SHAPES_PREFIX = "~"
"""Prefix of the names of classes for further shapes; the number of elements follows."""
MAX_ELEMENTS = 10**15
"""Maximum number of elements of a plausible shape; larger shapes are ignored."""
SIMILAR_ELEMENTS_RATIO = 1.05
"""Ratio of elements up to which two shapes do not show how latency grows with elements."""


def elements_of(shape: str) -> int:
    """Return the elements per row of the varying tensors: `x:3,48,320;y:7` has 46087; 0 if unknown.

    For a class of further shapes, `~46080`: those of its largest shape.
    """
    total = 0
    for part in shape.removeprefix(FURTHER_SHAPES_PREFIX).split(";"):
        sizes = read_sizes(part.rpartition(":")[2])
        if sizes is None:
            return 0
        total += prod(sizes)
    return total if total <= MAX_ELEMENTS else 0


class ShapeClasses:
    """Shape classes by model. A shape's class never changes, so its requests share a queue."""

    def __init__(self) -> None:
        self._of_model: dict[str, dict[str, None]] = {}
        """The classes of a model, by its name: the first shapes, each a class of its own, and the further ones."""
        self._known_shapes: set[tuple[str, str]] = set()
        """Every (model, shape) that is a class of its own whenever it is met."""

    def tell_apart(self, model: str, shape: str) -> None:
        """Give a shape that is known before its first request a class of its own, if classes are left."""
        if len(self._of_model.get(model, ())) < MAX_SHAPES:
            self._known_shapes.add((model, shape))

    def class_of(self, model: str, shape: str) -> tuple[str, bool]:
        """Return the class of a request's shape, and whether it is new."""
        if not shape:
            return "", False
        known = self._of_model.setdefault(model, {})
        if shape in known:
            return shape, False
        if len(known) >= MAX_SHAPES and (model, shape) not in self._known_shapes:
            elements = elements_of(shape)
            steps = ceil(CLASSES_PER_DOUBLING * log(elements, 2)) if elements else 0
            shape = f"{FURTHER_SHAPES_PREFIX}{round(2 ** (steps / CLASSES_PER_DOUBLING))}" if elements else "other"
            if shape in known:
                return shape, False
        known[shape] = None
        return shape, True

    def of(self, model: str) -> Iterable[str]:
        """Return the classes of requests of a model."""
        return self._of_model.get(model, ())


def profile_of_new(shape: str, base: Profile, known: Sequence[Profile]) -> Profile:
    """Return a first profile of a new shape, before any of its stages was observed.

    `known`: profiles of the same partition and device class that were observed or measured. A straight line over the
    elements per row is fitted to them, near shapes counting more; a single profile is used unchanged. If the elements
    are unknown, the result is the median profile; without known profiles it is `base`.
    """
    if not known:
        return base.of_shape(shape)
    elements = elements_of(shape)
    sized = sorted(((size, profile) for profile in known if (size := elements_of(profile.shape))), key=lambda e: e[0])
    if not elements or not sized:
        ranked = sorted(known, key=lambda profile: profile.expected_ns(1))
        return ranked[len(ranked) // 2].of_shape(shape)
    nearest_size, nearest = min(sized, key=lambda entry: abs(log(entry[0] / elements)))
    if sized[-1][0] < SIMILAR_ELEMENTS_RATIO * sized[0][0]:
        return nearest.of_shape(shape)
    weights = [1 / size**2 for size, _ in sized]  # relative deviations count
    least = min(1.0, elements / nearest_size)

    def expected_ns(rows: int) -> float:
        line = _line([size for size, _ in sized], [profile.expected_ns(rows) for _, profile in sized], weights)
        return max(1.0, line[0] + line[1] * elements, least * nearest.expected_ns(rows))

    alike = nearest.up_to(min(profile.max_rows for _, profile in sized))
    expected = tuple(accumulate(map(round, map(expected_ns, alike.every_size)), max))
    planned = accumulate(
        (
            round(taken_ns * promised_ns / nearest_ns)
            for taken_ns, promised_ns, nearest_ns in zip(expected, alike.planned, alike.expected, strict=True)
        ),
        max,
    )
    return Profile(base.partition, base.device_class, expected, tuple(map(max, expected, planned)), shape, alike.sizes)


def least_of_new(guess: Profile, known: Sequence[Profile]) -> Profile:
    """Return a lower bound for a new shape, below the guess of `profile_of_new` from the same profiles.

    A smaller shape than the nearest one may be faster in proportion to its elements; a larger one is not. If the
    elements are unknown, a shape may be as fast as the fastest.
    """
    elements = elements_of(guess.shape)
    sized = [(size, profile) for profile in known if (size := elements_of(profile.shape))]
    if elements and sized:
        size, nearest = min(sized, key=lambda entry: abs(log(entry[0] / elements)))
        least = nearest.scaled(min(1.0, elements / size))
    else:
        least = Profile.quickest([guess, *known])
    least = Profile.quickest([guess, least])
    return msgspec.structs.replace(least, device_class=guess.device_class, shape=guess.shape)


def _line(xs: Sequence[int], ys: Sequence[int], weights: Sequence[float]) -> tuple[float, float]:
    """Offset and slope of the weighted least squares; the slope is not negative."""
    total = sum(weights)
    mean_x = sum(weight * x for weight, x in zip(weights, xs, strict=True)) / total
    mean_y = sum(weight * y for weight, y in zip(weights, ys, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, x in zip(weights, xs, strict=True))
    slope = max(0.0, sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, xs, ys, strict=True)) / spread)
    return mean_y - slope * mean_x, slope


CLASS_LATENCY_RATIO = 1.5
"""Ratio of latency between neighboring classes."""
MAX_STEPS = 8
"""Maximum number of classes between an application and the first known one."""
HYSTERESIS_CLASSES = 0.75
"""Distance from the center of its class, in classes, from which an application moves, so that it does not alternate."""
MIN_CHANGE_FRACTION = 0.1
"""Minimum relative change of the distributions that changes a class's profile; smaller ones are left to the learner."""


class TimeClasses:
    """Latency classes of the applications of each model.

    The first known application is the center of its model's middle class, which has an empty name. Applications that
    take about as long, and unknown ones, share batches with it. So a model whose applications take equally long is
    unchanged.
    """

    def __init__(self, decides: Callable[[], Policy]) -> None:
        """Create an empty set of classes. `decides()` returns the current policy."""
        self._decides = decides
        self._times: dict[str, dict[tuple[str, str], LatencyDistribution]] = {}
        """The distributions by (device class, application), by model; the one that was known first stands first."""
        self._steps: dict[tuple[str, str], int] = {}
        """The class of each (model, application), in factors from the middle one."""
        self._counts: dict[str, Counter[str]] = {}
        """How often each application came, by model."""
        self._shapes: dict[str, str | None] = {}
        """The shape of a model's requests; None: they have several."""
        self._stale: set[str] = set()
        """The models of which another distribution is known than when their profiles were made."""
        self._made: dict[ProfileKey, Profile] = {}
        """The profiles that were made last."""

    def tell(self, times: LatencyDistribution) -> None:
        """Set the stand-alone times of an application on a device class."""
        known = self._times.setdefault(times.model, {})
        known[times.device_class, times.app] = times
        first = next(iter(known.values()))
        reference = known.get((times.device_class, first.app))
        if reference is None:
            return  # the two never ran on one device class
        exact = log(times.mean_ns / reference.mean_ns) / log(CLASS_LATENCY_RATIO)
        exact = max(-MAX_STEPS, min(MAX_STEPS, exact))
        key = times.model, times.app
        if abs(exact - self._steps.get(key, 99)) > HYSTERESIS_CLASSES:
            self._steps[key] = round(exact)
        self._stale.add(times.model)

    def applies_to(self, request: Request, model: Model) -> bool:
        """Whether the policy wants requests of this model separated by application.

        False if the model's requests have several shapes, because these explain the latency, and for split models, for
        which no distribution is learned.
        """
        if not request.app or model.pipelines or not self._decides().separate_applications(model.name):
            return False
        if self._shapes.setdefault(model.name, request.shape) != request.shape:
            self._shapes[model.name] = None
        return self._shapes[model.name] is not None

    def classify(self, request: Request) -> Request:
        """Return the request with its class in its shape, if its application is known."""
        step = self._steps.get((request.model, request.app))
        if step is None:
            return request
        self._counts.setdefault(request.model, Counter())[request.app] += 1
        return msgspec.structs.replace(request, shape=_name(request.shape, step)) if step else request

    def moved(self, model: Model, profiles: Mapping[ProfileKey, Profile]) -> list[Profile]:
        """Return the profiles of a model's classes that have moved; empty if all its requests are of one class.

        `profiles`: the current ones.
        """
        shape = self._shapes[model.name]
        if model.name not in self._stale or shape is None:
            return []
        self._stale.discard(model.name)
        known, counts = self._times[model.name], self._counts.get(model.name, Counter())
        among: dict[ProfileKey, list[LatencyDistribution]] = {}
        for (kind, app), times in known.items():
            step = self._steps.get((model.name, app))
            if step is not None and (model.name, kind, "") in profiles:
                among.setdefault((model.name, kind, _name(shape, step)), []).append(times)
        if len({name for _, _, name in among}) < 2:
            return []
        quantile = self._decides().quantile
        shares = {app: 1.0 + counts[app] for _, app in known}
        made = []
        for key, members in among.items():
            like = profiles[model.name, key[1], ""].of_shape(key[2])
            profile = LatencyDistribution.profile_of_batches(members, shares, like, quantile)
            if key not in self._made or _differ(self._made[key], profile):
                self._made[key] = profile
                made.append(profile)
        return made


def _name(shape: str, step: int) -> str:
    """Return the name of a latency class, used as a shape in metrics and reports."""
    return f"{shape}{', ' if shape else ''}{CLASS_LATENCY_RATIO**step:.3g}x as long" if step else shape


def _differ(one: Profile, other: Profile) -> bool:
    if one.max_rows != other.max_rows:
        return True
    return any(
        abs(one.upper_ns(rows) / other.upper_ns(rows) - 1) > MIN_CHANGE_FRACTION
        or abs(one.expected_ns(rows) / other.expected_ns(rows) - 1) > MIN_CHANGE_FRACTION
        for rows in (1, other.max_rows)
    )
