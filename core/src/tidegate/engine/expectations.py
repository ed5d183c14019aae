"""What is expected of every partition on every kind of worker: the profiles, kept honest by what is observed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidegate.api import Batch, Model, Profile, Request, Worker
from tidegate.engine.learner import ProfileLearner

Key = tuple[str, str]
"""(partition, kind of worker)."""
PATIENCE_NS = 1_000_000_000
PATIENCE_LEGS = 10
"""How long, and for how many legs of one row as expected, nothing of a key runs before its expectation is doubted.

So a partition that is truly too slow has its workers for at most about a tenth of the time. Until something runs the
expectation falls further, once in PATIENCE_NS.
"""


@dataclass(slots=True)
class _Tracked:
    """What is known of a key besides its profile."""

    base: Profile
    learner: ProfileLearner
    running: int = 0
    """Legs that were started and have not ended."""
    quiet_since_ns: int = 0
    """When the last leg ended, or the expectation was doubted."""
    doubted: bool = False
    """No leg was observed since."""


class Expectations:
    """The profiles by (partition, kind), and a learner for each.

    What is expected decides what runs, and what runs decides what is expected. Where that ends with nothing running,
    because policies drop requests that seem hopeless, the expectation is doubted until something runs again.
    """

    def __init__(self, profiles: Iterable[Profile], *, learn: bool) -> None:
        self.profiles = {(profile.partition, profile.kind): profile for profile in profiles}
        """As they stand now."""
        self._learn = learn
        self._tracked: dict[Key, _Tracked] = {}
        self._keys_of: dict[str, dict[Key, None]] = {}
        """The keys that legs of a model have had."""
        self._running: dict[int, Key] = {}
        """By batch."""
        self._warm: dict[int, set[str]] = {}
        """The partitions that have run, by worker."""
        for profile in self.profiles.values():
            self._track(profile)

    def check(self, workers: Iterable[Worker], models: Mapping[str, Model]) -> None:
        """Raises ValueError where a worker hosts a partition without a profile for each batch size of its pipelines."""
        rows: dict[str, int] = {}
        for model in models.values():
            for path in model.paths:
                for partition in path.partitions:
                    rows[partition] = max(path.max_rows, rows.get(partition, 0))
        for worker in workers:
            for partition in worker.hosts:
                profile = self.profiles.get((partition, worker.kind))
                if profile is None or profile.max_rows < rows.get(partition, 0):
                    raise ValueError(
                        f"no profile of {partition!r} on workers of kind {worker.kind!r}"
                        + (f" for up to {rows[partition]} rows" if partition in rows else "")
                    )

    def replace(self, profile: Profile) -> None:
        """Somebody knows better: expect this, and learn from here."""
        self.profiles[profile.partition, profile.kind] = profile
        self._track(profile)

    def extend(self, profiles: Iterable[Profile]) -> None:
        """Expect these where nothing is known yet, or not of batches as large: what was learned stands."""
        for profile in profiles:
            known = self.profiles.get((profile.partition, profile.kind))
            if known is None or known.max_rows < profile.max_rows:
                self.replace(profile)

    def leg_started(self, batch: Batch, leg: int, kind: str) -> None:
        """A leg of a batch runs from now on, on a worker of this kind."""
        key = (batch.legs[leg].partition, kind)
        if tracked := self._tracked.get(key):
            tracked.running += 1
            self._running[batch.id] = key
            self._keys_of.setdefault(batch.model, {})[key] = None

    def leg_ended(self, now_ns: int, batch_id: int) -> None:
        """The leg of a batch that ran does so no more, however that came."""
        if key := self._running.pop(batch_id, None):
            tracked = self._tracked[key]
            tracked.running -= 1
            tracked.quiet_since_ns = now_ns

    def observe(self, partition: str, worker: Worker, rows: int, duration_ns: int) -> Profile | None:
        """A leg took this long; returns the profile that is expected from now on, where that has moved.

        The first leg of a partition on a worker warms it up, which may take many times as long and passes.
        """
        key = (partition, worker.kind)
        tracked = self._tracked.get(key)
        if tracked is None:
            return None
        warm = self._warm.setdefault(worker.id, set())
        if partition not in warm:
            warm.add(partition)
            return None
        tracked.doubted = False
        learned = tracked.learner.observe(rows, duration_ns)
        if learned is not None:
            self.profiles[key] = learned
        return learned

    def worker_lost(self, worker_id: int) -> None:
        """Should it come back, it starts cold."""
        self._warm.pop(worker_id, None)

    def doubt(self, now_ns: int, dropped: Request) -> Iterator[Profile]:
        """What is expected from each moment on, where too long an expectation may be why a request was dropped."""
        for key in self._keys_of.get(dropped.model, ()):
            tracked = self._tracked[key]
            legs = 0 if tracked.doubted else PATIENCE_LEGS
            patience_ns = max(PATIENCE_NS, legs * self.profiles[key].latency_ns(1))
            if tracked.running or now_ns - tracked.quiet_since_ns < patience_ns:
                continue
            if dropped.deadline_ns - dropped.arrival_ns < tracked.base.latency_ns(dropped.rows):
                continue  # as short a time as that tells nothing
            if (profile := tracked.learner.doubt()) is not None:
                tracked.quiet_since_ns, tracked.doubted = now_ns, True
                self.profiles[key] = profile
                yield profile

    def _track(self, profile: Profile) -> None:
        """Learn from this profile on."""
        if self._learn:
            key = (profile.partition, profile.kind)
            if tracked := self._tracked.get(key):  # legs of it may be running
                tracked.base, tracked.learner = profile, ProfileLearner(profile)
            else:
                self._tracked[key] = _Tracked(profile, ProfileLearner(profile))
