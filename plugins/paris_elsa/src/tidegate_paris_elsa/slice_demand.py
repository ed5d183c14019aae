"""Number of slices of each size that a model needs, with fractions (PARIS, Algorithm 1, steps B and C)."""

from collections.abc import Callable, Mapping, Sequence


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
