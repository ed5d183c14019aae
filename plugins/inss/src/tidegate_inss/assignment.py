"""Assignment of models to GPUs: share in units, and batch size."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class AssignedShare(NamedTuple):
    """A process of a model on a share of a GPU."""

    model: int
    """Its number in the problem."""
    gpu: int
    """The number of the GPU, in the order of `ShareProblem.devices`."""
    units: int
    """How much of the GPU it has, of `ShareProblem.units_per_gpu`."""
    batch: int
    """Its batches have no more rows."""
    process: int = 0
    """Shares of one GPU with the same number but 0 are one process, whose models take turns; all have its units."""


def by_gpu(shares: Iterable[AssignedShare], gpus: int) -> list[list[AssignedShare]]:
    """Return the shares of each GPU, in the given order."""
    sorted_out: list[list[AssignedShare]] = [[] for _ in range(gpus)]
    for share in shares:
        sorted_out[share.gpu].append(share)
    return sorted_out


def first_of_processes(shares: Iterable[AssignedShare]) -> list[AssignedShare]:
    """Return one share of each process of one GPU, in order."""
    seen: set[int] = set()
    firsts = []
    for share in shares:
        if share.process not in seen:
            firsts.append(share)
        if share.process:
            seen.add(share.process)
    return firsts


def why_not(
    shares: Sequence[AssignedShare], units: int, memory_mib: float | None, taken_mib: Sequence[float]
) -> str | None:
    """Return the problem with the shares of one GPU; None: none. `taken_mib`: memory of each in MiB."""
    if any(share.units < 1 or share.batch < 1 for share in shares):
        return "a share rounds to nothing"
    if (given := sum(share.units for share in first_of_processes(shares))) > units:
        return f"shares of {given} units, and it has {units}"
    if memory_mib is not None and (taken := sum(taken_mib)) > memory_mib:
        return f"processes that take {taken:.0f} MiB, and it has {memory_mib:.0f}"
    return None
