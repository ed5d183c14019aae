"""Profiles of unprofiled models from the batch statistics of their Tritons: the quickest and the slowest.

Statistics say how long batches take of the sizes that ran. Larger ones are bounded: each further row costs at least as
much as it did among the sizes that ran, and at most as much as a row of the largest of these.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from tidegate.api import NS_PER_MS, Profile, Setup
from tidegate.sim.shadow_messages import ShadowSetup
from tidegate.sim.triton_batch_stats import MIN_BATCHES, TritonBatchStats

FIXED_COST_ROWS: Final = 10.0
"""A batch of which one size ran has a fixed cost of at most this many rows' cost, as the guess of the proxy has."""


class ProfileBounds(NamedTuple):
    """Setups with the quickest and the slowest profiles that the statistics allow, and what is doubtful about them."""

    quick: Setup
    slow: Setup
    doubts: dict[str, str]
    """Sentence by model whose profiles were derived."""
    unknown: frozenset[str]
    """Models without a measured profile and without statistics."""

    @property
    def differ(self) -> bool:
        """Whether both setups give different results."""
        return self.quick.profiles != self.slow.profiles


def profile_bounds(begin: ShadowSetup, batch_stats: Mapping[str, TritonBatchStats]) -> ProfileBounds:
    """Return the setup with profiles for the models without a measured one. `batch_stats`: by model."""
    quick, slow = dict[str, dict[int, float]](), dict[str, dict[int, float]]()
    doubts = dict[str, str]()
    for model in begin.setup.models:
        stats = batch_stats.get(model.name)
        if model.name not in begin.guessed or stats is None or not stats.batches:
            continue
        known = _known_ms(stats)
        quick[model.name], slow[model.name] = _bounds_ms(known, model.max_rows)
        largest = max(known)
        doubts[model.name] = f"No profile of {model.name} was measured: batches take what its Triton's statistics say"
        if largest < model.merged_rows:
            bounds = f"{quick[model.name][model.max_rows]:.3g} and {slow[model.name][model.max_rows]:.3g} ms"
            doubts[model.name] += f", which end at {largest} rows: one of {model.max_rows} takes between {bounds}"
        doubts[model.name] += "."
    return ProfileBounds(
        _with_profiles(begin.setup, quick),
        _with_profiles(begin.setup, slow),
        doubts,
        frozenset(begin.guessed).difference(quick),
    )


def _known_ms(stats: TritonBatchStats) -> dict[int, float]:
    """Return the latency in ms of the batch sizes that ran often enough, or of the most frequent one."""
    often = {rows: mean_ns for rows, (count, mean_ns) in stats.batches.items() if count >= MIN_BATCHES}
    if not often:
        rows = max(stats.batches, key=lambda rows: stats.batches[rows][0])
        often = {rows: stats.batches[rows][1]}
    return {rows: (mean_ns + stats.network_latency_ns) / NS_PER_MS for rows, mean_ns in sorted(often.items())}


def _bounds_ms(known: Mapping[int, float], max_rows: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return the quickest and the slowest latencies in ms that agree with the known ones, by rows."""
    smallest, largest = min(known), max(known)
    points = {rows: took_ms for rows, took_ms in known.items() if rows <= max_rows}
    if largest >= max_rows:
        return points, points
    if smallest == largest:
        slope_ms = known[largest] / (FIXED_COST_ROWS + largest)
    else:
        slope_ms = max(0.0, (known[largest] - known[smallest]) / (largest - smallest))
    slowest_ms = known[largest] * max_rows / largest
    quickest_ms = min(slowest_ms, known[largest] + slope_ms * (max_rows - largest))
    return {**points, max_rows: quickest_ms}, {**points, max_rows: slowest_ms}


def _with_profiles(setup: Setup, points_ms: Mapping[str, Mapping[int, float]]) -> Setup:
    profiles = [
        Profile.from_points(
            profile.partition,
            points_ms[profile.partition],
            max_rows=profile.max_rows,
            device_class=profile.device_class,
            shape=profile.shape,
        )
        if profile.partition in points_ms
        else profile
        for profile in setup.profiles
    ]
    return replace(setup, profiles=tuple(profiles))
