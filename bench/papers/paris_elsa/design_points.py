"""Design points of the paper's section VI: a planner of MIG slices and a policy."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

from bench.papers.paris_elsa.measured import PRODUCT, PROFILES, Case
from tidegate.api import PlanningError
from tidegate.host import Plugins
from tidegate.schemas import MIG_GEOMETRIES, Layout
from tidegate.workload import PolicyChoice

MODEL = "m"
GPUS = {24: 4, 42: 6, 48: 8}
"""Number of A100 GPUs of the paper's servers, by the GPCs of their slices (Table I)."""
HOMOGENEOUS = (1, 2, 3, 7)
FIFS = PolicyChoice(name="fifs", options={"max_rows": 1}, label="FIFS")
ELSA = PolicyChoice(name="elsa", options={"allow_batching": False}, label="ELSA")
PUBLISHED_ELSA = PolicyChoice(name="elsa", options={"allow_batching": False, "drop_late": False}, label="ELSA, paper")
SYMPHONY = PolicyChoice(name="symphony", label="Symphony")
EAGER = PolicyChoice(name="eager", label="eager, merging")
PLAN_WITHIN_S = 20.0


@dataclass(frozen=True)
class Point:
    """A planner of slices and a policy."""

    planner: str
    policy: PolicyChoice
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the planner's problem."""
    merging: bool = False
    """Whether queries may share batches."""

    @property
    def size(self) -> int | None:
        """GPCs of each slice if they are equal, else None."""
        return dict(self.options).get("size")

    @property
    def by_knees(self) -> bool:
        """Whether PARIS segments queries by the paper's knees only."""
        return dict(self.options).get("segments") == "knees"


def homogeneous(size: int, policy: PolicyChoice = FIFS, *, merging: bool = False) -> Point:
    """Return the design point of equal slices of `size` GPCs with a policy; `merging`: queries may share batches."""
    return Point("homogeneous", policy, (("size", size),), merging)


def drawn(seed: int, policy: PolicyChoice) -> Point:
    """Return the design point of random slices with a policy."""
    return Point("heterogeneous-random", policy, (("seed", seed),))


def paris(policy: PolicyChoice, **options: Any) -> Point:  # noqa: ANN401 - a problem's
    """Return the design point of PARIS with a policy and options of the planner."""
    return Point("paris", policy, tuple(options.items()))


def layout_of(case: Case, point: Point, sizes: Mapping[int, float], slo_ms: float) -> Layout:
    """Return the layout of a design point. Raises PlanningError, for example for lack of memory.

    `case`: the model; `point`: the design point; `sizes`: share of the requests by rows; `slo_ms`: SLA.
    """
    gpcs, gpus = _spent(case, point.size)
    measured = [
        {
            "slice_type": PROFILES[size],
            "rows": list(curve.latency_ms),
            "latency_ms": list(curve.latency_ms.values()),
            "utilization": list(curve.utilization.values()) if curve.utilization else None,
        }
        for size, curve in case.curves.items()
    ]
    model = {"name": MODEL, "slo_ms": slo_ms, "sizes": dict(sizes), "profiles": measured}
    spec = _planner(point.planner)
    problem = spec.problem.model_validate(
        {"gpus": [{"product": PRODUCT, "count": gpus}], "models": [model], "gpcs": gpcs, **dict(point.options)}
    )
    began_s = time.monotonic()
    plan = spec.run(problem, time_limit_s=PLAN_WITHIN_S, progress=lambda **_: time.monotonic() - began_s)
    assert spec.layout is not None, "its plans are layouts"
    layout = spec.layout(problem, plan)
    assert isinstance(layout, Layout)
    return layout


def slices_of(layout: Layout) -> dict[int, int]:
    """Return the number of slices by GPCs, in rising order."""
    gpcs = {f"{PRODUCT}/{profile}": size for size, profile in PROFILES.items()}
    return dict(sorted(Counter(gpcs[worker.speed] for worker in layout.workers).items()))


def _spent(case: Case, size: int | None) -> tuple[int, int]:
    """The GPCs that a design point spends, and on how many GPUs.

    Equal slices get as many GPUs as the slices of the paper's Table I need: 14 GPU(3) are more than fit its 6 A100.
    """
    if size is None:
        return case.gpcs, GPUS[case.gpcs]
    gpcs = case.whole_gpcs if size == 7 else case.gpcs
    profile = MIG_GEOMETRIES[PRODUCT].plain(size)
    if profile is None:
        raise PlanningError(f"there is no GPU({size})")
    count = gpcs // size
    return count * size, max(GPUS[case.gpcs], ceil(count / profile.most))


@cache
def _planner(name: str) -> Any:  # noqa: ANN401 - a PlannerSpec, whose problem is the planner's own
    return Plugins.installed().planner(name)
