"""Small problems."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate_ppipe.columns import Column, LatencyTables, columns_of
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem

GATHER_RPS = 40.0
"""Given with the problem, so that both programs gather alike."""


def columns_in(problem: PpipeProblem, *, exact: bool) -> list[Column]:
    return [
        column
        for number, model in enumerate(problem.models)
        for column in columns_of(
            number, LatencyTables(model, problem), problem, GATHER_RPS, problem.max_partitions, exact=exact
        )
    ]


def profile(
    name: str,
    whole_us: Mapping[str, Sequence[float]],
    *,
    cut_bytes: int = 1000,
    shares: int = 2,
    batches: int = 2,
    memory_mib: list[float] | None = None,
) -> BlockProfile:
    """Of blocks given by their latency at batch 1 on a whole GPU of each class.

    A second row takes 0.6 of the first one, a share of 1/v takes 0.8 v times as long: both pay.
    """
    count = len(next(iter(whole_us.values())))
    return BlockProfile(
        model=name,
        blocks=[f"block {number}" for number in range(count)],
        cut_bytes=[cut_bytes] * (count - 1),
        memory_mib=memory_mib,
        latencies=[
            BlockLatencies(
                device_class=kind,
                share=share,
                rows=list(range(1, batches + 1)),
                latency_us=[
                    [block * (0.4 + 0.6 * rows) * (1 if share == 1 else 0.8 * share) for rows in range(1, batches + 1)]
                    for block in blocks
                ],
            )
            for kind, blocks in whole_us.items()
            for share in range(1, shares + 1)
        ],
    )


def two_classes(**changes: Any) -> PpipeProblem:
    """A cheap class whose GPUs are too slow for the whole model, and a dear one that is three times as fast."""
    model = profile("m", {"fast": [4000, 4000, 4000], "slow": [12000, 14000, 18000]})
    given: dict[str, Any] = {
        "classes": (GpuClass(name="fast", count=2, max_share=2), GpuClass(name="slow", count=4, max_share=2)),
        "models": (PlannedModel(name="m", slo_ms=50, profile=model),),
        "gbps": 10,
        "whole_margin": 0.4,
        "max_batch": 2,
    }
    return PpipeProblem.model_validate({**given, **changes})


def random_problem(seed: int, **changes: Any) -> PpipeProblem:
    """Up to three classes, three models of up to four blocks, and limits that often bind."""
    draw = random.Random(seed)
    names = ["a", "b", "c"][: draw.choice([1, 2, 2, 2, 3])]
    models = []
    for number in range(draw.choice([1, 1, 2, 3])):
        count = draw.randint(1, 4)
        fast = [draw.uniform(1000, 5000) for _ in range(count)]
        speeds = [1.0, *(draw.uniform(1, 4) for _ in names[1:])]
        times = {
            name: [block * speed * draw.uniform(0.7, 1.3) for block in fast]
            for name, speed in zip(names, speeds, strict=True)
        }
        models.append(
            PlannedModel(
                name=f"m{number}",
                slo_ms=sum(fast) / 1000 * draw.uniform(2, 9),
                weight=draw.uniform(0.2, 2),
                rate_rps=draw.uniform(5, 60),
                profile=profile(
                    f"m{number}",
                    times,
                    cut_bytes=draw.randint(1, 300_000),
                    memory_mib=[draw.uniform(10, 300) for _ in fast] if draw.random() < 0.5 else None,
                ),
            )
        )
    classes = tuple(
        GpuClass(
            name=name,
            count=draw.randint(1, 5),
            per_node=draw.randint(1, 2),
            max_share=draw.randint(1, 2),
            memory_mib=draw.choice([None, draw.uniform(300, 1500)]),
            cost=draw.uniform(0.5, 3),
            power_w=draw.uniform(50, 300),
        )
        for name in names
    )
    margin = draw.choice([0, 0.2, 0.4])
    given: dict[str, Any] = {
        "classes": classes,
        "models": tuple(models),
        "gbps": draw.choice([None, 1, 10]),
        "margin": margin,
        "whole_margin": margin,
        "gather": draw.choice([0, 1.3]),
        "max_partitions": draw.randint(1, 3),
        "max_batch": 2,
    }
    return PpipeProblem.model_validate({**given, **changes})


def three_models(seed: int) -> PpipeProblem:
    """Three models of four blocks on 24 GPUs, a quarter of them fast, where few pipelines fill whole GPUs."""
    draw = random.Random(seed)
    models = []
    for number in range(3):
        fast = [draw.uniform(1000, 5000) for _ in range(4)]
        slow = [block * draw.uniform(2, 5) for block in fast]
        models.append(
            PlannedModel(
                name=f"m{number}",
                slo_ms=sum(fast) / 1000 * draw.uniform(4, 6),
                weight=draw.uniform(0.5, 1.5),
                profile=profile(f"m{number}", {"fast": fast, "slow": slow}, cut_bytes=100_000),
            )
        )
    classes = (GpuClass(name="fast", count=6, max_share=2), GpuClass(name="slow", count=18, max_share=2))
    return PpipeProblem(classes=classes, models=tuple(models), gbps=10, max_batch=2)
