"""Assignment of models to GPUs: share in units, and batch size."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class AssignedShare(NamedTuple):
    """A process of a model on a share of a GPU."""

    model: int
    """Index of the model in the problem."""
    gpu: int
    """Index of the GPU in `ShareProblem.devices`."""
    units: int
    """Size of the share in units, of `ShareProblem.units_per_gpu`."""
    batch: int
    """Maximum batch size in rows."""
    process: int = 0
    """Number of the process; shares of one GPU with the same number other than 0 are one process with serialized
    models.

    All of its models have the units of the process.
    """


def by_gpu(shares: Iterable[AssignedShare], gpus: int) -> list[list[AssignedShare]]:
    """Return the shares of each of `gpus` GPUs, in the given order."""
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
    """Return the problem with the shares of one GPU, as text; None if they fit.

    `units`: units of the GPU; `memory_mib`: its memory in MiB, None: unknown; `taken_mib`: memory of each share in MiB.
    """
    if any(share.units < 1 or share.batch < 1 for share in shares):
        return "a share rounds to nothing"
    if (given := sum(share.units for share in first_of_processes(shares))) > units:
        return f"shares of {given} units, and it has {units}"
    if memory_mib is not None and (taken := sum(taken_mib)) > memory_mib:
        return f"processes that take {taken:.0f} MiB, and it has {memory_mib:.0f}"
    return None
