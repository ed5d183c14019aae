"""What the Tritons' statistics say of the batches that were executed between two instants."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.api import Profile
from tidegate.sim.shadow_messages import Ended, Executed

FEWEST: Final = 5
"""Batches of one size, whose mean is believed."""


class Told(NamedTuple):
    """One model: its batches between two instants, and what its requests took on their ways besides."""

    ways_ns: int = 0
    batches: Mapping[int, tuple[int, float]] = MappingProxyType({})
    """How many of so many rows there were, and what they took on average, in ns."""
    before: int = 0
    """How many had been executed before."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows of a batch, and how many of so many there were; empty: nothing is known."""
        return [(rows, count) for rows, (count, _) in self.batches.items()]

    def table_ns(self, profile: Profile) -> tuple[int, ...]:
        """What batches of 1, 2, ... rows take: sizes of which there were none differ from the profile as the others."""
        expected_ns = [profile.expected_ns(rows) for rows in range(1, profile.max_rows + 1)]
        known = {rows: each for rows, each in self.batches.items() if rows <= profile.max_rows}
        if not known:
            return tuple(expected_ns)
        counted = sum(count for count, _ in known.values())
        off_ns = sum(count * (mean_ns - expected_ns[rows - 1]) for rows, (count, mean_ns) in known.items()) / counted
        return tuple(
            max(1, round(known[rows][1] if rows in known and known[rows][0] >= FEWEST else each_ns + off_ns))
            for rows, each_ns in enumerate(expected_ns, 1)
        )


NOTHING_TOLD: Final = Told()


def told(said: Sequence[tuple[int, Executed]], ended: Iterable[Ended]) -> Told:
    """What was said of one model, at these instants: what is between the first and the last; else `NOTHING_TOLD`."""
    if len(said) < 2:
        return NOTHING_TOLD
    (since_ns, first), (until_ns, last) = said[0], said[-1]
    took_ns = [each.took_ns for each in ended if each.ok and since_ns <= each.at_ns < until_ns]
    answered = last.answered - first.answered
    counts, total_ns = Counter[int](), Counter[int]()
    for each, sign in ((last, 1), (first, -1)):
        for rows, count, sum_ns in each.batches:
            counts[rows] += sign * count
            total_ns[rows] += sign * sum_ns
    batches = {rows: (count, total_ns[rows] / count) for rows, count in counts.items() if count > 0}
    if answered <= 0 or not took_ns or not batches:
        return NOTHING_TOLD
    inside_ns = (last.answered_ns - first.answered_ns) / answered
    ways_ns = max(0, round(sum(took_ns) / len(took_ns) - inside_ns))
    return Told(ways_ns, batches, sum(count for _, count, _ in first.batches))
