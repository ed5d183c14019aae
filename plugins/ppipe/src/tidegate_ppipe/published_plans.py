"""The paper's problems and plans, read from a folder with the artifact's data; none of it is part of this package."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tidegate.schemas import BlockLatencies, BlockProfile, DocumentError
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem

PUBLISHED_PLANNER_NAMES = {"np": "NP", "dart-r": "DART-r", "ppipe": "PPipe"}
"""Names of planners in the data, by the names here."""
PUBLISHED_MARGIN = 0.4
"""SLO margin of the paper for pipelines of any length."""


@dataclass(frozen=True)
class PublishedProblem:
    """A problem of the paper, and the results of its planners."""

    cluster: str
    group: str
    workload: str
    problem: PpipeProblem
    normalized_min_rps: dict[str, float]
    """Normalized rates in requests per second, by planner."""
    throughput_rps: dict[str, tuple[float, ...]]

    @property
    def name(self) -> str:
        """Name of the problem in tables."""
        return f"{self.cluster} {self.group} {self.workload}"


def read_published(folder: Path) -> Iterator[PublishedProblem]:
    """Read every problem in the folder. Raises DocumentError."""
    profiles: dict[str, BlockProfile] = {}
    files = sorted((folder / "plans").glob("*.json"))
    if not files:
        raise DocumentError(f"{folder}: it has no plans/*.json: give the folder with the artifact's data")
    for path in files:
        given = _read(path)
        for model in given["models"]:
            if model not in profiles:
                profiles[model] = read_profile(folder / "models" / f"{model}.json")
        for workload, found in given["workloads"].items():
            # The artifact spells this key in the British way.
            rates_rps = next(value for key, value in found.items() if key.endswith("_min_rps"))
            yield PublishedProblem(
                given["cluster"],
                given["group"],
                workload,
                _problem(given, found, profiles),
                {ours: rates_rps[theirs] for ours, theirs in PUBLISHED_PLANNER_NAMES.items()},
                {ours: tuple(found["throughput_rps"][theirs]) for ours, theirs in PUBLISHED_PLANNER_NAMES.items()},
            )


def read_profile(path: Path) -> BlockProfile:
    """Read a model's block timings as a block profile. Raises DocumentError."""
    given = _read(path)
    count = given["num_blocks"]
    return BlockProfile(
        model=given["model"],
        blocks=[f"block {number}" for number in range(count)],
        cut_bytes=given["cut_bytes_fp16"],
        latencies=[
            BlockLatencies(device_class=gpu, share=int(share), rows=list(range(1, len(table[0]) + 1)), latency_us=table)
            for gpu, shares in given["latency_us"].items()
            for share, table in shares.items()
        ],
    )


def _problem(given: dict[str, Any], found: dict[str, Any], profiles: dict[str, BlockProfile]) -> PpipeProblem:
    classes = [
        GpuClass(name=name, count=count, per_node=per_node, max_share=levels)
        for (name, count), per_node, levels in zip(
            given["gpus"].items(), found["gpus_per_server"], found["vgpu_levels"], strict=True
        )
    ]
    models = [
        PlannedModel(name=name, slo_ms=slo_us / 1000, weight=weight, profile=profiles[name])
        for name, slo_us, weight in zip(given["models"], given["slo_us"], found["weights"], strict=True)
    ]
    return PpipeProblem(
        classes=tuple(classes),
        models=tuple(models),
        gbps=given["bw_gbps"],
        margin=PUBLISHED_MARGIN,
        whole_margin=PUBLISHED_MARGIN,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: {error}") from error
