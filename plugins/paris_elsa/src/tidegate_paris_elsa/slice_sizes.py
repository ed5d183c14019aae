"""Order of workers by the size of their slices, or by their latency."""

import re
from collections.abc import Sequence
from math import inf

from tidegate.api import Profile, Worker
from tidegate.schemas import Mig, Mps, WholeDevice

_COMPUTE_SLICES = re.compile(r"(\d+)[cg]\.")
"""The first number of `3g.40gb`; of `1c.3g.40gb` too, which is one of the three of such an instance."""


def smallest_first(workers: Sequence[tuple[Worker, Profile]]) -> list[int]:
    """Return the positions of workers in the order in which ELSA tries them; each has the profile of one model there.

    MIG instances of one product are compared by size, and so are MPS shares of devices or of instances of one profile;
    the whole device is largest. Otherwise workers are compared by the latency of the largest batch: a slower one counts
    as smaller.
    """
    sizes = [_size(worker) for worker, _ in workers]
    units = {unit for unit, _ in sizes if unit}
    products = {worker.device.product if worker.device else "" for worker, _ in workers}
    comparable = len(units) <= 1 and len(products) == 1 and "?" not in units

    def rank(place: int) -> tuple[float, int, int]:
        worker, profile = workers[place]
        return sizes[place][1] if comparable else 0.0, -profile.expected_ns(profile.max_rows), worker.id

    return sorted(range(len(workers)), key=rank)


def _size(worker: Worker) -> tuple[str, float]:
    """The unit of a worker's share of its device, and how many of those it has; `?`: not known."""
    match worker.slice:
        case Mig(profile=profile):
            found = _COMPUTE_SLICES.match(profile)
            return ("g", float(found[1])) if found else ("?", 0.0)
        case Mps(percent=percent, instance=instance):
            return f"% of {instance.profile}" if instance else "%", float(percent)
        case WholeDevice():
            return "", inf
