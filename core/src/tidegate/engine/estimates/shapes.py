"""Shape classes of requests, few enough to learn each, and the first profile of a new class."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, log, prod

import msgspec

from tidegate.api import Profile
from tidegate.api.shape import read_sizes

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
