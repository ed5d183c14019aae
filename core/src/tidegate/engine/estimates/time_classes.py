"""Latency classes of applications: those whose requests take about equally long share a class with its own profile.

A class appears to policies as a shape: requests of different classes share no batch, and the profile that the policy
gets is the engine's own expectation (invariant 8).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import log

import msgspec

from tidegate.api import LatencyDistribution, Model, Policy, Profile, ProfileKey, Request

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
