"""Kinds of slices that a problem's GPUs offer, and the latency of each model there."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from tidegate.api import PlanningError
from tidegate.api.mig import MigProfile
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile

KneeSource = Literal["utilization", "latency", "slo"]
"""Method that found a knee; `slo`: larger requests would be late."""


def knee_of(profile: SliceProfile, *, utilization: float, gain: float) -> tuple[int, KneeSource]:
    """Return the rows at which a slice's utilization, or its throughput, saturates, and the method that found them.

    By utilization, if it was measured: the first rows with the fraction `utilization` of the slice's own maximum
    (overhead of the host keeps some maxima below 1). Otherwise the first rows for which twice as many bring less than
    the relative gain `gain` in throughput. If there are none, the largest measured number.
    """
    if profile.utilization is not None:
        enough = utilization * max(profile.utilization)
        measured = zip(profile.rows, profile.utilization, strict=True)
        return next(rows for rows, used in measured if used >= enough), "utilization"
    for rows in profile.rows:
        if 2 * rows > profile.rows[-1]:
            break
        throughput, doubled = rows / latency_ms(profile, rows), 2 * rows / latency_ms(profile, 2 * rows)
        if doubled < (1 + gain) * throughput:
            return rows, "latency"
    return profile.rows[-1], "latency"


def latency_ms(profile: SliceProfile, rows: int) -> float:
    """Return the latency in ms of a request of `rows` rows, interpolated linearly."""
    points = list(zip(profile.rows, profile.latency_ms, strict=True))
    above = next(index for index, known in enumerate(profile.rows) if known >= rows)
    right, right_ms = points[above]
    if right == rows or above == 0:
        return right_ms
    left, left_ms = points[above - 1]
    return left_ms + (right_ms - left_ms) * (rows - left) / (right - left)


def segments_of(knees: Sequence[int], most_rows: int) -> list[tuple[int, int]]:
    """Return the segments (B_{k-1} + 1, B_k) of slices from small to large; the last ends at `most_rows`.

    Some may be empty.
    """
    ends = [min(end, most_rows) for end in accumulate(knees, max)]
    ends[-1] = most_rows
    return [(before + 1, end) for before, end in zip([0, *ends], ends, strict=False)]


MIB_PER_GIB = 1024


@dataclass(frozen=True)
class SliceType:
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
    """Latency of a model on one slice type."""

    slice_type: int
    """Index of the slice type."""
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

    slice_types: Sequence[SliceType]
    """Every slice type of the GPUs."""
    speeds: Sequence[Sequence[SliceSpeed]]
    """Latencies on the slice types that can serve every request of a model, by model; slowest first for its largest
    requests.
    """

    @property
    def usable(self) -> list[int]:
        """Indexes of the slice types that can serve any model."""
        return sorted({speed.slice_type for mine in self.speeds for speed in mine})

    def only(self, usable: Container[int]) -> "SliceOffers":
        """Return the offers restricted to the slice types `usable`, by index."""
        return SliceOffers(
            self.slice_types, [[speed for speed in mine if speed.slice_type in usable] for mine in self.speeds]
        )

    def by_name(self, model: int) -> dict[str, SliceSpeed]:
        """Return the latencies of a model by name of the slice type."""
        return {self.slice_types[speed.slice_type].name: speed for speed in self.speeds[model]}


def offers_of(problem: MigProblem) -> SliceOffers:
    """Return the slices that the GPUs offer, up to the GPCs to use.

    Raises PlanningError if a model fits none, or if a profile names a slice that no GPU has.
    """
    slice_types = _slice_types_of(problem)
    most = problem.gpcs or max(slice_type.gpcs for slice_type in slice_types)
    offers = SliceOffers(slice_types, [_speeds_of(problem, slice_types, model) for model in problem.models])
    within = offers.only([number for number, slice_type in enumerate(slice_types) if slice_type.gpcs <= most])
    for model, mine in zip(problem.models, within.speeds, strict=True):
        if not mine:
            raise PlanningError(f"gpcs: {most} are fewer than any slice has on which model {model.name!r} was measured")
    return within


def _slice_types_of(problem: MigProblem) -> tuple[SliceType, ...]:
    return tuple(
        SliceType(number, pool.product, profile)
        for number, pool in enumerate(problem.gpus)
        for profile in pool.geometry.profiles
    )


def _speeds_of(problem: MigProblem, slice_types: Sequence[SliceType], model: MigModel) -> tuple[SliceSpeed, ...]:
    if not isinstance(model.profiles, str):
        _check_known(problem, slice_types, model)
    by_slice_type = {profile.slice_type: profile for profile in model.measured}
    most_rows = model.most_rows
    found, too_short, too_small = [], [], []
    for number, slice_type in enumerate(slice_types):
        profile = by_slice_type.get(slice_type.name) or by_slice_type.get(slice_type.mig.name)
        if profile is None:
            continue
        if profile.rows[-1] < most_rows:
            too_short.append(f"{slice_type.name} up to {profile.rows[-1]}")
        elif model.memory_mib and slice_type.mig.memory_gib * MIB_PER_GIB < model.memory_mib:
            too_small.append(f"{slice_type.name} has {slice_type.mig.memory_gib * MIB_PER_GIB:.0f}")
        else:
            found.append(SliceSpeed(number, profile))
    if not found:
        whats = [
            *([f"its requests have up to {most_rows} rows, measured are {', '.join(too_short)}"] if too_short else []),
            *([f"it takes {model.memory_mib:g} MiB, {', '.join(too_small)}"] if too_small else []),
        ]
        have = ", ".join(slice_type.name for slice_type in slice_types)
        raise PlanningError(
            f"model {model.name!r}: no slice can serve it: {'; '.join(whats)}: measure more, or plan for smaller ones"
            if whats
            else f"model {model.name!r}: it was not measured on any slice of these GPUs, which have {have}: "
            "`tidegate profile --device-class` measures it on one"
        )
    return tuple(sorted(found, key=lambda speed: (-speed.latency_ms(most_rows), slice_types[speed.slice_type].gpcs)))


def _check_known(problem: MigProblem, slice_types: Sequence[SliceType], model: MigModel) -> None:
    known = {slice_type.name for slice_type in slice_types} | {slice_type.mig.name for slice_type in slice_types}
    if strangers := [profile.slice_type for profile in model.measured if profile.slice_type not in known]:
        raise PlanningError(
            f"model {model.name!r}: {strangers[0]!r} is no slice of these GPUs: {'; '.join(map(_offers, problem.gpus))}"
        )


def _offers(pool: GpuPool) -> str:
    return f"{pool.product} has {', '.join(profile.name for profile in pool.geometry.profiles)}"


def work_s(shares: Mapping[int, float], segment: tuple[int, int], throughput_rps: Callable[[int], float]) -> float:
    """Return R_k: seconds that slices of one size are busy with their segment, for each request of the model.

    `shares`: {rows: fraction of the requests}. `segment`: first and last rows. `throughput_rps(rows)`: requests of this
    size that a slice answers in a second.
    """
    first, last = segment
    return sum(share / throughput_rps(rows) for rows, share in shares.items() if first <= rows <= last)


def instances(gpcs_of: Sequence[int], works_s: Sequence[float], gpcs: int) -> list[float]:
    """Return N_k = C * R_k: the number of instances of each size that divide `gpcs` GPCs in proportion to the work.

    `gpcs_of`: GPCs of each size; `works_s`: R_k of each size.
    """
    scale = gpcs / sum(size * work for size, work in zip(gpcs_of, works_s, strict=True))
    return [scale * work for work in works_s]
