"""Applications whose requests take about as long are of one class, which has a profile of its own: the layer between
learned distributions and whatever policy plans with profiles.

A class is a shape to everybody else: requests of one share no batch with those of another, and what a policy is told of
it is what the engine expects (invariant 8).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import log

import msgspec

from tidegate.api import LatencyDistribution, Model, Policy, Profile, ProfileKey, Request

CLASS_LATENCY_RATIO = 1.5
"""Classes are told apart where requests take so many times as long."""
MAX_STEPS = 8
"""The farthest that a class is from that of the application that was known first, in such factors."""
HYSTERESIS_CLASSES = 0.75
"""An application changes its class where it is so many factors from the center of the one that it had: one between two
does not come and go."""
MIN_CHANGE_FRACTION = 0.1
"""A class is expected to take otherwise where its distributions say so by such a share; less the learner finds."""


class TimeClasses:
    """Latency classes of the applications of each model.

    The application that was known first is the center of its model's middle class, which has no name of its own: what
    takes about as long shares batches with it, and with all of which nothing is known. So a model whose applications
    take alike is left as it is.
    """

    def __init__(self, decides: Callable[[], Policy]) -> None:
        """`decides()`: the policy that does at the moment."""
        self._decides = decides
        self._times: dict[str, dict[tuple[str, str], LatencyDistribution]] = {}
        """The distributions by (kind of worker, application), by model; the one that was known first stands first."""
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
            return  # the two never ran on one kind of worker
        exact = log(times.mean_ns / reference.mean_ns) / log(CLASS_LATENCY_RATIO)
        exact = max(-MAX_STEPS, min(MAX_STEPS, exact))
        key = times.model, times.app
        if abs(exact - self._steps.get(key, 99)) > HYSTERESIS_CLASSES:
            self._steps[key] = round(exact)
        self._stale.add(times.model)

    def applies_to(self, request: Request, model: Model) -> bool:
        """Whether the policy wants a request told apart by its application.

        Where a model's requests are of several shapes, these tell what takes longer; of split models no distribution is
        learned.
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
        """Return profiles of a model's classes that have moved.

        `profiles`: the current ones. None if all requests are of one class.
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
