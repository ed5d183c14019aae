"""Batch statistics of Triton between two times, and profiles of unprofiled models from them: quickest and slowest.

Statistics say how long batches take of the sizes that ran. Larger ones are bounded: each further row costs at least as
much as it did among the sizes that ran, and at most as much as a row of the largest of these.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec.structs import replace

from tidegate.api import NS_PER_MS, Profile, Setup
from tidegate.sim.shadow_messages import BypassedResponse, ShadowSetup, TritonStatistics

MIN_BATCHES: Final = 5
"""Minimum number of batches of one size for a usable mean."""


class TritonBatchStats(NamedTuple):
    """Batches of one model between two times, and the latency of its requests outside batches."""

    network_latency_ns: int = 0
    batches: Mapping[int, tuple[int, float]] = MappingProxyType({})
    """(number, mean duration in ns) of batches by rows."""
    before: int = 0
    """Number of batches that were executed before."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(rows, number of batches) pairs; empty if unknown."""
        return [(rows, count) for rows, (count, _) in self.batches.items()]

    def table_ns(self, profile: Profile) -> tuple[int, ...]:
        """Return the latency in ns of batches of 1, 2, ... rows.

        Sizes that were not observed deviate from the profile as the others do.
        """
        expected_ns = [profile.expected_ns(rows) for rows in range(1, profile.max_rows + 1)]
        known = {rows: each for rows, each in self.batches.items() if rows <= profile.max_rows}
        if not known:
            return tuple(expected_ns)
        counted = sum(count for count, _ in known.values())
        off_ns = sum(count * (mean_ns - expected_ns[rows - 1]) for rows, (count, mean_ns) in known.items()) / counted
        return tuple(
            max(1, round(known[rows][1] if rows in known and known[rows][0] >= MIN_BATCHES else each_ns + off_ns))
            for rows, each_ns in enumerate(expected_ns, 1)
        )


NO_BATCH_STATS: Final = TritonBatchStats()


def batch_stats_between(
    counters: Sequence[tuple[int, Mapping[str, TritonStatistics]]], ended: Iterable[BypassedResponse]
) -> TritonBatchStats:
    """Return the batches of one model that were executed between two times, by its counters, or `NO_BATCH_STATS`.

    `counters`: statistics with their times in ns; `ended`: responses of the period. Between two times only counters
    that were read at both count: a Triton that did not answer or restarted contributes nothing.
    """
    answered, answered_ns = 0, 0
    counts, total_ns, before = Counter[int](), Counter[int](), dict[str, int]()
    known_ns = list[tuple[int, int]]()
    for (since_ns, first), (until_ns, last) in pairwise(counters):
        grown = [name for name in last if name in first and _went_on(first[name], last[name])]
        if grown:
            known_ns.append((since_ns, until_ns))
        for name in grown:
            before.setdefault(name, sum(count for _, count, _ in first[name].batches))
            answered += last[name].answered - first[name].answered
            answered_ns += last[name].answered_ns - first[name].answered_ns
            for each, sign in ((last[name], 1), (first[name], -1)):
                for rows, count, sum_ns in each.batches:
                    counts[rows] += sign * count
                    total_ns[rows] += sign * sum_ns
    took_ns = [
        each.took_ns for each in ended if each.ok and any(since <= each.at_ns < until for since, until in known_ns)
    ]
    batches = {rows: (count, total_ns[rows] / count) for rows, count in counts.items() if count > 0}
    if answered <= 0 or not took_ns or not batches:
        return NO_BATCH_STATS
    network_latency_ns = max(0, round(sum(took_ns) / len(took_ns) - answered_ns / answered))
    return TritonBatchStats(network_latency_ns, batches, sum(before.values()))


def _went_on(first: TritonStatistics, last: TritonStatistics) -> bool:
    """Whether none of these counters fell: else their Triton, or the model on it, has restarted."""
    now = {rows: (count, sum_ns) for rows, count, sum_ns in last.batches}
    pairs = [(first.answered, last.answered), (first.answered_ns, last.answered_ns)]
    for rows, *then in first.batches:
        pairs += zip(then, now.get(rows, (0, 0)), strict=True)
    return all(later >= sooner for sooner, later in pairs)


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
