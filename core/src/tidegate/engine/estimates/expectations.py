"""Expected latency of every partition on every device class: the profiles, corrected by observations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidegate.api import Batch, Model, Policy, Profile, ProfileKey, Request, Worker
from tidegate.api.profile import MAX_SURPRISE_FACTOR
from tidegate.engine.estimates.learner import KNOWN_STAGES, ProfileLearner
from tidegate.engine.estimates.shapes import ShapeClasses, least_of_new, profile_of_new

PATIENCE_NS = 500_000_000
"""Time in ns without a stage of a profile, while workers are idle, after which the profile is doubted."""
MAX_PROBES = 4
PATIENCE_STAGES = 10
"""Spacing of probes: after this many successive probes that took as long as expected, as many one-row stages must pass.

So a partition that is truly too slow uses at most about a tenth of the time of workers that others need.
"""


@dataclass(slots=True)
class _Tracked:
    """The state of a key besides its profile."""

    base: Profile
    """Profile to use while the learned one is in doubt."""
    learner: ProfileLearner
    probe: Profile
    """Profile under which the latest probe runs: the base, or a lower one that few stages have confirmed."""
    confirmed: int = 0
    """How many stages on warm workers took about as long as the base says."""
    active_ns: int = -PATIENCE_NS
    """When a stage last started or ended, or the expectation was doubted."""
    awaits_probe: bool = False
    """Whether `probe` is expected, as no stage has started yet."""
    probing: bool = False
    """Whether no stage was observed since it was doubted."""
    probes: int = 0
    """How often it was doubted since a stage took much less than was expected."""

    @property
    def tries_less(self) -> bool:
        """Whether the probe that is awaited, or runs, was let through with less than the expected time."""
        return self.probing and self.probe is not self.base


class Expectations:
    """Current profiles by (partition, class, shape), with a learner for each.

    Every (partition, device class) has a profile of the empty shape. A new shape gets its first profile from the known
    shapes (`meet`).

    A profile that is too long can prevent its own correction: policies drop the requests, so no stage shows the true
    latency. Then the profile is doubted: one stage, the probe, runs under the base profile, and its duration decides
    what is expected from then on. A profile derived from other shapes is a guess. It is doubted at the first request
    that is dropped because of it, and its lower bound is expected. A measured or configured profile is doubted if it
    lets nothing run and hardly a stage has confirmed it: it may come from another machine.
    """

    def __init__(self, profiles: Iterable[Profile], *, learn: bool, quantile: float = Policy.quantile) -> None:
        """Create expectations from given profiles.

        `learn`: whether observations change them. `quantile`: fraction of stages that end within the learned upper
        latency.
        """
        self.profiles = {profile.key: profile for profile in profiles}
        """The profiles as they stand now."""
        self.version = 0
        """A number that is another one whenever a profile has changed."""
        self._fastest: dict[tuple[str, int], tuple[int, int]] = {}
        """Expected time of rows of a partition, with the version of the profiles that it is from."""
        self._learn = learn
        self._quantile = quantile
        self._shapes = ShapeClasses()
        self._guessed: set[ProfileKey] = set()
        """The keys whose base was derived from other shapes."""
        self._learners: dict[tuple[str, str], dict[str, ProfileLearner]] = {}
        """Learners of profiles, by (partition, class) and then by shape."""
        self._tracked: dict[ProfileKey, _Tracked] = {}
        self._keys_of: dict[tuple[str, str], dict[ProfileKey, None]] = {}
        """The keys that stages of a model and a shape may have."""
        self._running: dict[int, ProfileKey] = {}
        """The keys of stages that run, by batch."""
        self._warm: dict[int, set[str]] = {}
        """The partitions that have run, by worker."""
        for profile in self.profiles.values():
            self._shapes.tell_apart(profile.partition, profile.shape)
            self._track(profile)

    def check(self, workers: Iterable[Worker], models: Mapping[str, Model]) -> None:
        """Raise ValueError if a worker hosts a partition without a profile for each batch size of its pipelines."""
        rows: dict[str, int] = {}
        for model in models.values():
            for path in model.paths:
                for partition in path.partitions:
                    rows[partition] = max(path.max_rows, rows.get(partition, 0))
        for worker in workers:
            for partition in worker.hosts:
                profile = self.profiles.get((partition, worker.device_class, ""))
                if profile is None or profile.max_rows < rows.get(partition, 0):
                    raise ValueError(
                        f"no profile of {partition!r} on workers of device class {worker.device_class!r}"
                        + (f" for up to {rows[partition]} rows" if partition in rows else "")
                    )

    def fastest_ns(self, partition: str, rows: int) -> int:
        """Return the expected time in ns of `rows` rows of a partition on the fastest device class; 1 if unknown."""
        version, ns = self._fastest.get((partition, rows), (-1, 1))
        if version != self.version:
            known = [profile for key, profile in self.profiles.items() if key[0] == partition and not key[2]]
            ns = min((profile.expected_ns(min(rows, profile.max_rows)) for profile in known), default=1)
            self._fastest[partition, rows] = self.version, ns
        return ns

    def cover(self, quantile: float) -> None:
        """Set the quantile that upper latencies cover; profiles move with the next stages."""
        self._quantile = quantile
        for of_shapes in self._learners.values():
            for learner in of_shapes.values():
                learner.quantile = quantile

    def replace(self, profile: Profile) -> None:
        """Replace a profile by a better known one, and learn from there."""
        self._guessed.discard(profile.key)
        self._expect(profile.key, profile)
        self._track(profile)

    def extend(self, profiles: Iterable[Profile], models: Iterable[Model]) -> list[Profile]:
        """Add profiles that are unknown or known for smaller batches only; learned ones stay.

        `models`: the current models; each known shape gets profiles. Returns the new profiles of shapes.
        """
        for profile in profiles:
            known = self.profiles.get(profile.key)
            if known is None or known.max_rows < profile.max_rows:
                self._shapes.tell_apart(profile.partition, profile.shape)
                self.replace(profile)
        return [
            profile
            for model in models
            for shape in ("", *self._shapes.of(model.name))
            for profile in self._meet(shape, model)
        ]

    def meet(self, request: Request, model: Model) -> tuple[Request, list[Profile]]:
        """Return an arriving request with its shape class, and the profiles that are new with it."""
        shape, is_new = self._shapes.class_of(model.name, request.shape)
        if shape != request.shape:
            request = msgspec.structs.replace(request, shape=shape)
        return request, self._meet(shape, model) if is_new else []

    def _meet(self, shape: str, model: Model) -> list[Profile]:
        """The profiles of a shape that the partitions of a model lack, on every device class, from now on."""
        partitions = {partition for path in model.paths for partition in path.partitions}
        bases = [profile for profile in self.profiles.values() if profile.partition in partitions and not profile.shape]
        met = ((base, self.profiles.get((base.partition, base.device_class, shape))) for base in bases)
        new = [self._begin(shape, base) for base, known in met if known is None or known.max_rows < base.max_rows]
        if self._learn:
            keys = self._keys_of.setdefault((model.name, shape), {})
            keys.update(((base.partition, base.device_class, shape), None) for base in bases)
        return new

    def stage_started(self, now_ns: int, batch: Batch, stage: int, kind: str, shape: str) -> ProfileKey | None:
        """Record that stage number `stage` of a batch runs.

        `kind`: the worker's device class; `shape`: the batch's shape. For a probe of a doubted profile it returns the
        key whose old profile is restored until the probe ends (`recall`), otherwise None.
        """
        key = (batch.stages[stage].partition, kind, shape)
        tracked = self._tracked.get(key)
        if tracked is None:
            return None
        self._running[batch.id] = key
        tracked.active_ns = now_ns
        if not tracked.awaits_probe:
            return None
        tracked.awaits_probe = False
        return key

    def recall(self, key: ProfileKey) -> Profile:
        """Restore the doubted profile, or the one learned since; return it for the policy."""
        tracked = self._tracked[key]
        if not tracked.awaits_probe:
            self._expect(key, tracked.learner.published)
        return self.profiles[key]

    def stage_ended(self, now_ns: int, batch_id: int) -> None:
        """Record that a stage of a batch has ended."""
        if key := self._running.pop(batch_id, None):
            self._tracked[key].active_ns = now_ns

    def observe(self, partition: str, worker: Worker, shape: str, rows: int, duration_ns: int) -> Profile | None:
        """Add the duration in ns of a stage of `rows` rows and this shape; return the new profile if it has moved.

        The first stage of a partition on a worker warms it up and may take many times as long, so it does not make a
        profile longer.
        """
        key = (partition, worker.device_class, shape)
        tracked = self._tracked.get(key)
        if tracked is None:
            return None
        warm = self._warm.setdefault(worker.id, set())
        if partition not in warm:
            warm.add(partition)
            if tracked.tries_less and duration_ns < tracked.base.expected_ns(rows):
                return self._rescale(key, tracked, rows, duration_ns)
            hearsay = tracked.learner.observe_warming(rows, duration_ns)
            if hearsay is None or tracked.awaits_probe:
                return None
            self._expect(key, hearsay)
            return hearsay
        base_ns = tracked.base.expected_ns(rows)
        if tracked.tries_less and duration_ns < base_ns:
            return self._rescale(key, tracked, rows, duration_ns)
        tracked.confirmed += base_ns <= MAX_SURPRISE_FACTOR * duration_ns <= MAX_SURPRISE_FACTOR**2 * base_ns
        if tracked.probing:
            tracked.probing = False
            if 2 * duration_ns < tracked.learner.published.upper_ns(rows):
                tracked.probes = 0
        learned = tracked.learner.observe(rows, duration_ns)
        if learned is not None:
            tracked.awaits_probe = False
            self._expect(key, learned)
        return learned

    def worker_lost(self, worker_id: int) -> None:
        """Forget that a lost worker is warm."""
        self._warm.pop(worker_id, None)

    def doubt(self, now_ns: int, dropped: Request, idle: Callable[[str, str], Sequence[Worker]]) -> list[ProfileKey]:
        """Return the keys of profiles that may be too long and so be the reason why a request is dropped.

        These profiles change once the policy gets them (`expect_after_doubt`). `idle(partition, class)` returns the
        workers that could run a stage now.
        """
        keys = self._keys_of.get((dropped.model, dropped.shape), {})
        budget_ns = dropped.deadline_ns - dropped.arrival_ns
        if 2 * sum(self._upper_ns(self.profiles[key], dropped) for key in keys) < budget_ns:
            return []  # most of its time went elsewhere
        doubted = []
        for key in keys:
            tracked = self._tracked[key]
            hearsay = tracked.learner.is_hearsay
            if tracked.awaits_probe or (now_ns - tracked.active_ns < PATIENCE_NS and not hearsay):
                continue
            probe = tracked.base
            if budget_ns < MAX_SURPRISE_FACTOR * self._upper_ns(probe, dropped) and tracked.confirmed < MAX_PROBES:
                probe = probe.scaled(budget_ns / (MAX_SURPRISE_FACTOR * len(keys) * self._upper_ns(probe, dropped)))
            if budget_ns < self._upper_ns(probe, dropped):
                continue  # so short a time is no evidence
            workers = idle(key[0], key[1])
            if not workers and not self._is_mere_guess(key):
                continue
            if now_ns - tracked.active_ns < self._patience_ns(key, workers) and not hearsay:
                continue
            if tracked.learner.doubt(probe):
                tracked.probe = probe
                tracked.active_ns, tracked.awaits_probe, tracked.probing = now_ns, True, True
                tracked.probes += 1
                doubted.append(key)
        return doubted

    def expect_after_doubt(self, key: ProfileKey) -> Profile:
        """Set the profile that lets the probe run, unless it was sent already; return it for the policy."""
        tracked = self._tracked[key]
        if tracked.awaits_probe:
            self._expect(key, tracked.probe)
        return self.profiles[key]

    def _rescale(self, key: ProfileKey, tracked: _Tracked, rows: int, duration_ns: int) -> Profile:
        """Scale a profile that is too long overall by what the probe took."""
        profile = tracked.base.scaled(duration_ns / tracked.base.expected_ns(rows))
        self.replace(profile)
        return profile

    def _patience_ns(self, key: ProfileKey, idle: Sequence[Worker]) -> int:
        """A worker that hosts nothing else has nothing better to do than to probe."""
        if self._tracked[key].probes < MAX_PROBES or any(len(worker.hosts) == 1 for worker in idle):
            return PATIENCE_NS
        return max(PATIENCE_NS, PATIENCE_STAGES * self.profiles[key].upper_ns(1))

    def _is_mere_guess(self, key: ProfileKey) -> bool:
        """Whether no stage was seen of a shape whose profile was derived from others."""
        return key in self._guessed and not self._tracked[key].learner.seen

    @staticmethod
    def _upper_ns(profile: Profile, request: Request) -> int:
        """Return the upper latency of a request alone, or of a part of it where a pipeline is narrower."""
        return profile.upper_ns(min(request.rows, profile.max_rows))

    def _expect(self, key: ProfileKey, profile: Profile) -> None:
        self.profiles[key] = profile
        self.version += 1

    def _begin(self, shape: str, base: Profile) -> Profile:
        """Expect of a shape what follows from those that are known; returns that."""
        known = [
            profile
            for key, profile in self.profiles.items()
            if key[:2] == base.key[:2] and profile.max_rows >= base.max_rows and self._is_known(key)
        ]
        profile = profile_of_new(shape, base, known)
        self._guessed.add(profile.key)
        self._expect(profile.key, profile)
        self._track(profile, least_of_new(profile, known))
        return profile

    def _is_known(self, key: ProfileKey) -> bool:
        """Whether more is known of a shape than what was derived from others; of the empty one, its own stages."""
        tracked = self._tracked.get(key)
        if tracked and tracked.learner.seen >= KNOWN_STAGES:
            return True
        return bool(key[2]) and key not in self._guessed

    def _track(self, profile: Profile, least: Profile | None = None) -> None:
        """Learn from this profile on; `least`: what a probe is let through under, if it is not the profile itself."""
        if not self._learn:
            return
        key, others = profile.key, self._learners.setdefault(profile.key[:2], {})
        learner = ProfileLearner(profile, self._quantile, others, guessed=key in self._guessed)
        others[profile.shape] = learner
        if tracked := self._tracked.get(key):  # stages of it may be running
            tracked.base, tracked.learner, tracked.awaits_probe = least or profile, learner, False
            tracked.probe, tracked.probing, tracked.confirmed = tracked.base, False, 0
        else:
            self._tracked[key] = _Tracked(least or profile, learner, least or profile)
