"""Which workers are smaller than others: by the sizes of their slices, or by how slow they are."""

import re
from collections.abc import Iterable
from math import inf

from tidegate.api import Profile, Worker
from tidegate.documents import Mig, Mps, Whole

_COMPUTE_SLICES = re.compile(r"(\d+)[cg]\.")
"""The first number of `3g.40gb`; of `1c.3g.40gb` too, which is one of the three of such an instance."""


def smallest_first(workers: Iterable[tuple[Worker, Profile]]) -> list[Worker]:
    """Workers, each with the profile of one model there, in the order in which ELSA asks them.

    Slices of one product are compared by size, if all are MIG instances or all MPS shares; the whole device is largest.
    Others are compared by how long the largest batch takes: what is slower counts as smaller.
    """
    listed = list(workers)
    sizes = [_size(worker) for worker, _ in listed]
    units = {unit for unit, _ in sizes if unit}
    products = {worker.device.product if worker.device else "" for worker, _ in listed}
    comparable = len(units) <= 1 and len(products) == 1 and "?" not in units
    ranked = sorted(
        (
            (size if comparable else 0.0, -profile.expected_ns(profile.max_rows), worker.id, worker)
            for (worker, profile), (_, size) in zip(listed, sizes, strict=True)
        ),
        key=lambda each: each[:3],
    )
    return [worker for *_, worker in ranked]


def _size(worker: Worker) -> tuple[str, float]:
    """The unit of a worker's share of its device, and how many of those it has; `?`: not known."""
    match worker.slice:
        case Mig(profile=profile):
            found = _COMPUTE_SLICES.match(profile)
            return ("g", float(found[1])) if found else ("?", 0.0)
        case Mps(percent=percent):
            return "%", float(percent)
        case Whole():
            return "", inf
