"""What is expected of every partition on every kind of worker: the profiles, kept honest by what is observed."""

from collections.abc import Iterable, Mapping

from tidegate.api import Model, Profile, Worker
from tidegate.engine.learner import ProfileLearner


class Expectations:
    """The profiles by (partition, kind), and a learner for each."""

    def __init__(self, profiles: Iterable[Profile], *, learn: bool) -> None:
        self.profiles = {(profile.partition, profile.kind): profile for profile in profiles}
        """As they stand now."""
        self._learn = learn
        self._learners = {key: ProfileLearner(profile) for key, profile in self.profiles.items()} if learn else {}

    def check(self, workers: Iterable[Worker], models: Mapping[str, Model]) -> None:
        """Raises ValueError where a worker hosts a partition without a profile for each batch size of its model."""
        for worker in workers:
            for partition in worker.hosts:
                profile = self.profiles.get((partition, worker.kind))
                model = models.get(partition)
                if profile is None or (model and profile.max_rows < model.max_rows):
                    raise ValueError(
                        f"no profile of {partition!r} on workers of kind {worker.kind!r}"
                        + (f" for up to {model.max_rows} rows" if model else "")
                    )

    def replace(self, profile: Profile) -> None:
        """Somebody knows better: expect this, and learn from here."""
        key = (profile.partition, profile.kind)
        self.profiles[key] = profile
        if self._learn:
            self._learners[key] = ProfileLearner(profile)

    def extend(self, profiles: Iterable[Profile]) -> None:
        """Expect these where nothing is known yet: what was learned stands."""
        for profile in profiles:
            if (profile.partition, profile.kind) not in self.profiles:
                self.profiles[profile.partition, profile.kind] = profile
                if self._learn:
                    self._learners[profile.partition, profile.kind] = ProfileLearner(profile)

    def observe(self, partition: str, worker: Worker, rows: int, duration_ns: int) -> Profile | None:
        """A leg took this long; returns the profile that is expected from now on, where that has moved."""
        key = (partition, worker.kind)
        learner = self._learners.get(key)
        learned = learner.observe(rows, duration_ns) if learner else None
        if learned is not None:
            self.profiles[key] = learned
        return learned
