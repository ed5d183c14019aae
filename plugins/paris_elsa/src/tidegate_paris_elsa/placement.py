"""Placement of slices: every slice of a plan on a GPU, at a legal start slot, for one model."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from tidegate.schemas import Device
from tidegate_paris_elsa.budget import gpus_cut
from tidegate_paris_elsa.plan import PlannedGpu, PlannedSlice
from tidegate_paris_elsa.problem import GpuPool, MigProblem
from tidegate_paris_elsa.program import SliceCounts
from tidegate_paris_elsa.slices import SliceKind


def place(problem: MigProblem, kinds: Sequence[SliceKind], counts: SliceCounts) -> tuple[PlannedGpu, ...]:
    """Return the GPUs with slices, those of each pool from the first one on.

    Slices of one kind are dealt to the models in rotation, so the loss of a machine or a GPU affects several models a
    little.
    """
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)
    for kind in range(len(kinds)):
        left = +Counter({model: count for (model, its), count in counts.slices.items() if its == kind})
        while left:
            for model in sorted(left):
                waiting[kind].append(model)
            left -= Counter(dict.fromkeys(left, 1))
    gpus = []
    for pool, number, cut in gpus_cut(problem, counts.cuts):
        owners = {
            kind: [waiting[kind].popleft() for _ in range(count) if waiting[kind]] for kind, count in enumerate(cut)
        }
        names = [kinds[kind].mig.name for kind, mine in owners.items() for _ in mine]
        placed = problem.gpus[pool].geometry.place(names)
        assert placed is not None, "what is left of a legal cut is legal"
        by_name = {kinds[kind].mig.name: iter(mine) for kind, mine in owners.items() if mine}
        slices = tuple(
            PlannedSlice(
                profile=instance.profile,
                start=instance.start,
                model=problem.models[next(by_name[instance.profile])].name,
            )
            for instance in placed
        )
        if slices:
            gpus.append(PlannedGpu(device=device_of(problem.gpus[pool], number), slices=slices))
    return tuple(gpus)


def device_of(pool: GpuPool, number: int) -> Device:
    """Return the device of a pool's GPU, by index, with its node."""
    node, index = divmod(number, pool.per_node)
    return Device(f"{pool.product}-node-{node}", index, pool.product, pool.memory_mib)
