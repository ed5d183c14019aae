"""Kinds of slices that a problem's GPUs offer, and the latency of each model there."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tidegate.api import PlanningError
from tidegate.api.mig import MigProfile
from tidegate_paris_elsa.knees import latency_ms
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile

MIB_PER_GIB = 1024


@dataclass(frozen=True)
class SliceKind:
    """One size of slices of one pool of GPUs."""

    pool: int
    """Index of the pool in the problem."""
    product: str
    mig: MigProfile

    @property
    def name(self) -> str:
        """Name in profiles and workers, e.g. `A100-40GB/3g.20gb`."""
        return f"{self.product}/{self.mig.name}"

    @property
    def gpcs(self) -> int:
        """Number of GPCs of a slice."""
        return self.mig.compute_slices


@dataclass(frozen=True)
class SliceSpeed:
    """Latency of a model on one kind of slice."""

    kind: int
    """Index of the kind of slice."""
    profile: SliceProfile

    def latency_ms(self, rows: int) -> float:
        """Return the latency of a request of `rows` rows in ms."""
        return latency_ms(self.profile, rows)

    def throughput_rps(self, rows: int) -> float:
        """Return the number of requests of `rows` rows per second, one after the other."""
        return 1000 / self.latency_ms(rows)

    def most_rows_within(self, budget_ms: float, most_rows: int) -> int:
        """Return the most rows with at most `budget_ms` latency; 0 if even one row takes longer."""
        return next((rows for rows in range(most_rows, 0, -1) if self.latency_ms(rows) <= budget_ms), 0)


@dataclass(frozen=True)
class SliceOffers:
    """Slices that the GPUs of a problem offer, with the latency of the models."""

    kinds: Sequence[SliceKind]
    """Every kind of slice of the GPUs."""
    speeds: Sequence[Sequence[SliceSpeed]]
    """Latencies on the kinds that can serve every request of a model, by model; slowest first for its largest
    requests.
    """

    @property
    def usable(self) -> list[int]:
        """Indexes of the kinds that can serve any model."""
        return sorted({speed.kind for mine in self.speeds for speed in mine})

    def only(self, usable: Container[int]) -> "SliceOffers":
        """Return the offers restricted to the kinds `usable`, by index."""
        return SliceOffers(self.kinds, [[speed for speed in mine if speed.kind in usable] for mine in self.speeds])

    def by_name(self, model: int) -> dict[str, SliceSpeed]:
        """Return the latencies of a model by name of the kind."""
        return {self.kinds[speed.kind].name: speed for speed in self.speeds[model]}


def offers_of(problem: MigProblem) -> SliceOffers:
    """Return the slices that the GPUs offer, up to the GPCs to use.

    Raises PlanningError if a model fits none, or if a profile names a slice that no GPU has.
    """
    kinds = _kinds_of(problem)
    most = problem.gpcs or max(kind.gpcs for kind in kinds)
    offers = SliceOffers(kinds, [_speeds_of(problem, kinds, model) for model in problem.models])
    within = offers.only([number for number, kind in enumerate(kinds) if kind.gpcs <= most])
    for model, mine in zip(problem.models, within.speeds, strict=True):
        if not mine:
            raise PlanningError(f"gpcs: {most} are fewer than any slice has on which model {model.name!r} was measured")
    return within


def _kinds_of(problem: MigProblem) -> tuple[SliceKind, ...]:
    return tuple(
        SliceKind(number, pool.product, profile)
        for number, pool in enumerate(problem.gpus)
        for profile in pool.geometry.profiles
    )


def _speeds_of(problem: MigProblem, kinds: Sequence[SliceKind], model: MigModel) -> tuple[SliceSpeed, ...]:
    if not isinstance(model.profiles, str):
        _check_known(problem, kinds, model)
    by_kind = {profile.kind: profile for profile in model.measured}
    most_rows = model.most_rows
    found, too_short, too_small = [], [], []
    for number, kind in enumerate(kinds):
        profile = by_kind.get(kind.name) or by_kind.get(kind.mig.name)
        if profile is None:
            continue
        if profile.rows[-1] < most_rows:
            too_short.append(f"{kind.name} up to {profile.rows[-1]}")
        elif model.memory_mib and kind.mig.memory_gib * MIB_PER_GIB < model.memory_mib:
            too_small.append(f"{kind.name} has {kind.mig.memory_gib * MIB_PER_GIB:.0f}")
        else:
            found.append(SliceSpeed(number, profile))
    if not found:
        whats = [
            *([f"its requests have up to {most_rows} rows, measured are {', '.join(too_short)}"] if too_short else []),
            *([f"it takes {model.memory_mib:g} MiB, {', '.join(too_small)}"] if too_small else []),
        ]
        have = ", ".join(kind.name for kind in kinds)
        raise PlanningError(
            f"model {model.name!r}: no slice can serve it: {'; '.join(whats)}: measure more, or plan for smaller ones"
            if whats
            else f"model {model.name!r}: it was not measured on any slice of these GPUs, which have {have}: "
            "`tidegate profile --device-class` measures it on one"
        )
    return tuple(sorted(found, key=lambda speed: (-speed.latency_ms(most_rows), kinds[speed.kind].gpcs)))


def _check_known(problem: MigProblem, kinds: Sequence[SliceKind], model: MigModel) -> None:
    known = {kind.name for kind in kinds} | {kind.mig.name for kind in kinds}
    if strangers := [profile.kind for profile in model.measured if profile.kind not in known]:
        raise PlanningError(
            f"model {model.name!r}: {strangers[0]!r} is no slice of these GPUs: {'; '.join(map(_offers, problem.gpus))}"
        )


def _offers(pool: GpuPool) -> str:
    return f"{pool.product} has {', '.join(profile.name for profile in pool.geometry.profiles)}"
