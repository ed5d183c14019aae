"""Small problems for the planners of slices."""

from typing import Any

from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile

A100 = {1: "1g.5gb", 2: "2g.10gb", 3: "3g.20gb", 4: "4g.20gb", 7: "7g.40gb"}


def sliced(gpcs: int, most_rows: int = 32, *, row_ms: float = 4.0) -> SliceProfile:
    """A slice that does rows in parallel until it is full: 2 ms, and so many per row beyond what its GPCs take."""
    rows = [1 << power for power in range(most_rows.bit_length())]
    latency_ms = [2.0 + row_ms * each / gpcs for each in rows]
    return SliceProfile(slice_type=A100[gpcs], rows=tuple(rows), latency_ms=tuple(latency_ms))


def model(name: str = "m", sizes: dict[int, float] | str | None = None, **more: object) -> MigModel:
    """A model that was measured on every plain slice of an A100-40GB."""
    given: dict[str, Any] = {
        "name": name,
        "sizes": sizes or {1: 5, 2: 8, 4: 9, 8: 7, 16: 3, 32: 1},
        "profiles": tuple(sliced(gpcs) for gpcs in A100),
    }
    return MigModel(**given | more)


def problem(*models: MigModel, count: int = 2, **more: object) -> MigProblem:
    """These models, or one, on so many A100-40GB."""
    given: dict[str, Any] = {"gpus": (GpuPool(product="A100-40GB", count=count),), "models": models or (model(),)}
    return MigProblem(**given | more)


def unhurried(**_: float | None) -> float:
    """A clock that stands still."""
    return 0.0
