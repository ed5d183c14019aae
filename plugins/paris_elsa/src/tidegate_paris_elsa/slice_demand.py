"""How many slices of each size a model needs, in parts of slices (PARIS, Algorithm 1, steps B and C)."""

from collections.abc import Callable, Mapping, Sequence


def work_s(shares: Mapping[int, float], segment: tuple[int, int], throughput_rps: Callable[[int], float]) -> float:
    """R_k: the seconds that slices of one size are busy with their segment, for each request of the model.

    `shares`: {rows: its part of the requests}. `segment`: the first and the last rows. `throughput_rps`: requests of so
    many rows that a slice answers in a second.
    """
    first, last = segment
    return sum(share / throughput_rps(rows) for rows, share in shares.items() if first <= rows <= last)


def instances(gpcs_of: Sequence[int], works_s: Sequence[float], gpcs: int) -> list[float]:
    """N_k = C * R_k: the instances of each size that share so many GPCs as the works are to each other."""
    scale = gpcs / sum(size * work for size, work in zip(gpcs_of, works_s, strict=True))
    return [scale * work for work in works_s]
