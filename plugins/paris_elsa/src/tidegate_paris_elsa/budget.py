"""GPC budget: the MIG partitions possible on each GPU, added up over all GPUs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from tidegate.api import PlanningError
from tidegate_paris_elsa.problem import GpuPool, MigProblem
from tidegate_paris_elsa.slices import SliceType

Cut = tuple[int, ...]
"""Partition of a GPU: number of slices of each of the problem's slice types."""


def cuts_of(pool: int, gpus: GpuPool, slice_types: Sequence[SliceType], usable: Sequence[int]) -> tuple[Cut, ...]:
    """Return the partitions of a GPU of a pool into usable slice types, without room for another slice.

    `pool`: index of the pool; `gpus`: the pool; `usable`: indexes of the usable slice types.
    """
    mine = [
        slice_type.mig.name
        for number, slice_type in enumerate(slice_types)
        if number in usable and slice_type.pool == pool
    ]
    found = set()
    for placed in gpus.geometry.configurations(mine) if mine else ():
        names = Counter(instance.profile for instance in placed)
        found.add(tuple(names[slice_type.mig.name] if slice_type.pool == pool else 0 for slice_type in slice_types))
    return tuple(sorted(found, reverse=True))


def parts_of(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """Return the partitions and all their subsets, including the empty one."""
    found: set[Cut] = set()

    def leave_out(cut: Cut) -> None:
        if cut in found:
            return
        found.add(cut)
        for place, count in enumerate(cut):
            if count:
                leave_out((*cut[:place], count - 1, *cut[place + 1 :]))

    for cut in cuts:
        leave_out(cut)
    return tuple(sorted(found))


def spent(cut: Cut, slice_types: Sequence[SliceType]) -> int:
    """Return the number of GPCs of a partition's slices."""
    return sum(count * slice_type.gpcs for count, slice_type in zip(cut, slice_types, strict=True))


class Budget:
    """GPC budget of a problem, with slices of given slice types only."""

    def __init__(self, problem: MigProblem, slice_types: Sequence[SliceType], usable: Sequence[int]) -> None:
        """Compute the budget of a problem. `usable`: indexes of the slice types that may be used."""
        self._problem = problem
        self._slice_types = slice_types
        self.cuts = [cuts_of(number, pool, slice_types, usable) for number, pool in enumerate(problem.gpus)]
        """Divisions of a GPU of each pool that leave no room for one more slice."""
        self._parts = [parts_of(cuts) if cuts else ((0,) * len(slice_types),) for cuts in self.cuts]
        self._sums = [sorted({spent(part, slice_types) for part in parts}) for parts in self._parts]
        self._reach = [1]
        """Sums of GPCs that the last n GPUs can use, as bits; bit 0 is always set."""
        for pool in reversed(self._pools()):
            before = self._reach[-1]
            reached = 0
            for gpcs in self._sums[pool]:
                reached |= before << gpcs
            self._reach.append(reached)

    @property
    def most(self) -> int:
        """Maximum number of GPCs that can be used."""
        return self._reach[-1].bit_length() - 1

    @property
    def gpcs(self) -> int:
        """Number of GPCs to use: the problem's number, otherwise the maximum.

        Raises PlanningError if no partition uses this number.
        """
        wanted = self._problem.gpcs
        if wanted is None:
            return self.most
        if self._can_spend(wanted):
            return wanted
        every = [gpcs for gpcs in range(1, self.most + 1) if self._can_spend(gpcs)]
        below, above = [gpcs for gpcs in every if gpcs < wanted], [gpcs for gpcs in every if gpcs > wanted]
        nearest = " or ".join(map(str, [*below[-1:], *above[:1]])) or "no number at all"
        names = ", ".join(
            sorted({slice_type.mig.name for place, slice_type in enumerate(self._slice_types) if self._is_used(place)})
        )
        have = ", ".join(f"{pool.count} {pool.product}" for pool in self._problem.gpus)
        raise PlanningError(
            f"gpcs: no legal layout of {have} spends {wanted} GPCs with slices of {names or 'none'}: {nearest} would do"
        )

    def draw(self, rng: Random) -> Counter[tuple[int, Cut]]:
        """Return random partitions that use the budget: number of GPUs by (pool, partition).

        One GPU after the other gets a partition that lets the others use the rest, all equally likely. `rng`: random
        generator.
        """
        left, drawn = self.gpcs, Counter[tuple[int, Cut]]()
        for after, pool in zip(range(len(self._reach) - 2, -1, -1), self._pools(), strict=True):
            ways = [
                part
                for part in self._parts[pool]
                if (rest := left - spent(part, self._slice_types)) >= 0 and self._reach[after] >> rest & 1
            ]
            part = rng.choice(ways)
            drawn[pool, part] += 1
            left -= spent(part, self._slice_types)
        return drawn

    def _pools(self) -> list[int]:
        """The pool of every GPU."""
        return [number for number, pool in enumerate(self._problem.gpus) for _ in range(pool.count)]

    def _can_spend(self, gpcs: int) -> bool:
        return bool(self._reach[-1] >> gpcs & 1)

    def _is_used(self, slice_type: int) -> bool:
        return any(cut[slice_type] for cuts in self.cuts for cut in cuts)


def gpus_cut(problem: MigProblem, chosen: Counter[tuple[int, Cut]]) -> Iterator[tuple[int, int, Cut]]:
    """Yield (pool, index of the GPU, partition) for every partitioned GPU."""
    for number in range(len(problem.gpus)):
        index = 0
        for (pool, cut), count in sorted(chosen.items(), reverse=True):
            for _ in range(count if pool == number and any(cut) else 0):
                yield pool, index, cut
                index += 1
