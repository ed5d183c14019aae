"""Sub-clusters: how even the planners part 800 models among 20 in 10 s (Symphony, Appendix A.2, Figure 16)."""

import random
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.host import Plugins
from tidegate_symphony.subclusters_plan import SubclusterPlan
from tidegate_symphony.subclusters_problem import PlannedModel, SubclusterProblem

MODELS, SUBCLUSTERS = 800, 20
TIME_LIMIT_S = 10.0
SEEDS = (0, 1, 2)
STATIC_MIB = (14, 17, 20, 31, 44, 77, 98, 171, 230, 343, 528, 549)
"""Weights of image models, from MobileNet to VGG19, in single precision."""
PLANNERS = {"subclusters, highs": "highs", "subclusters, cbc": "cbc", "subclusters-random": "highs"}


def bench_subclusters(console: Console) -> list[dict[str, Any]]:
    """Run and print; a row per planner, with the worst imbalance over the seeds."""
    plugins = Plugins.installed()
    rows: list[dict[str, Any]] = []
    for label, solver in PLANNERS.items():
        run = plugins.planner(label.partition(",")[0]).run
        plans, took_s = [], []
        for seed in SEEDS:
            problem = _problem(seed).model_copy(update={"solver": solver})
            start_s = time.monotonic()
            plan = run(
                problem, time_limit_s=TIME_LIMIT_S, progress=lambda start_s=start_s, **_: time.monotonic() - start_s
            )
            took_s.append(time.monotonic() - start_s)
            assert isinstance(plan, SubclusterPlan)
            plans.append(plan)
        rows.append(
            {
                "planner": label,
                "rate_imbalance": max(plan.rate_imbalance for plan in plans),
                "memory_imbalance": max(plan.memory_imbalance for plan in plans),
                "seconds": max(took_s),
            }
        )
    table = Table("planner", "imbalance of rate", "of memory", "seconds")
    table.title = f"{MODELS} models among {SUBCLUSTERS} sub-clusters, worst of {len(SEEDS)}"
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["planner"], f"{row['rate_imbalance']:.2%}", f"{row['memory_imbalance']:.2%}", f"{row['seconds']:.1f}"
        )
    console.print(table)
    return rows


def _problem(seed: int) -> SubclusterProblem:
    """Exponential rates, as in the paper; limits wide enough for random assignments to keep them."""
    draw = random.Random(seed)
    models = tuple(
        PlannedModel(
            name=f"model{index}",
            rate_rps=draw.expovariate(1 / 100),
            static_mib=draw.choice(STATIC_MIB),
            dynamic_mib=draw.uniform(100, 1000),
        )
        for index in range(MODELS)
    )
    return SubclusterProblem(
        subclusters=SUBCLUSTERS, models=models, max_rate_rps=10_000, max_memory_mib=24_000, seed=seed
    )
