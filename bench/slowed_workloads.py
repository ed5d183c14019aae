"""Workloads of `bench.recommend_live`: those of `bench.recommend_workloads`, slowed down for two cores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.recommend_workloads import question_of, run_planner, workloads
from tidegate.recommend.query import RecommendQuery
from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate.workload import Scenario, mean_rate_rps

WARMUP_S = 3.0
GPUS_AS_RECORDED, MORE_LOAD = 2, 3.2
"""Number of GPUs for a recording of one, and the factor on the load of each."""


@dataclass(frozen=True)
class Asked:
    """A workload with its true latencies, and its query."""

    question: RecommendQuery
    slower: float
    """Factor by which it is slower than in `bench.recommend_workloads`."""


def live_workloads(requests: int, recording: Path | None = None) -> dict[str, Callable[[], Asked]]:
    """Return functions that make the workloads, by name.

    Args:
        requests: number of requests in each run of the search.
        recording: event log of a server, as a further workload.
    """
    made = workloads(requests)
    recorded = {} if recording is None else {recording.stem: lambda: Asked(_as_recorded(recording, requests), 1)}
    return {
        **recorded,
        "burst": lambda: slowed(made["burst"](), 8),
        "zoo": lambda: slowed(made["zoo"](), 16),
        "lines of text": lambda: Asked(_lines_of_text(requests), 1),
        "split model": lambda: slowed(made["split model"](), 3),
        "split model, tight": lambda: slowed(made["split model, tight"](), 3),
        "slices, nothing merges": lambda: slowed(_alone(made["slices"](), 400), 4),
    }


def slowed(question: RecommendQuery, factor: float) -> Asked:
    """Return a query in which all times are multiplied by `factor`."""
    given = question.scenario.model_dump(mode="json", exclude_defaults=True)
    for model in given["models"]:
        model["slo_ms"] *= factor
        for spec in filter(None, (model.get("profile"), *model.get("profiles", {}).values())):
            for name in ("alpha_ms", "beta_ms"):
                if spec.get(name) is not None:
                    spec[name] *= factor
            if spec.get("points_ms"):
                spec["points_ms"] = {rows: factor * took_ms for rows, took_ms in spec["points_ms"].items()}
    given["arrivals"]["rate_rps"] /= factor
    if "network" in given:
        given["network"]["gbps"] /= factor
    blocks = {name: slowed_blocks(profile, factor, {}) for name, profile in question.blocks.items()}
    scenario = Scenario.model_validate(given | {"warmup_s": WARMUP_S * 2, "duration_s": 60})
    return Asked(replace(question, scenario=scenario, blocks=blocks), factor)


def _alone(question: RecommendQuery, rate_rps: float) -> RecommendQuery:
    """A question about a model of which each request runs by itself: what MIG slices are for."""
    given = question.scenario.model_dump(mode="json", exclude_defaults=True)
    for model in given["models"]:
        model["scheduling"] = "unbatched"
    given["arrivals"]["rate_rps"] = rate_rps
    return replace(question, scenario=Scenario.model_validate(given))


def slowed_blocks(profile: BlockProfile, factor: float, added_ms: dict[str, float]) -> BlockProfile:
    """Return a block profile with latencies multiplied by `factor` plus `added_ms` by device class, as measured
    live.
    """
    return profile.model_copy(
        update={
            "latencies": [
                BlockLatencies(
                    device_class=each.device_class,
                    share=each.share,
                    rows=each.rows,
                    latency_us=[
                        [
                            factor * took_us + 1000 * added_ms.get(each.device_class, 0.0) / len(each.latency_us)
                            for took_us in row
                        ]
                        for row in each.latency_us
                    ],
                )
                for each in profile.latencies
            ]
        }
    )


def _as_recorded(path: Path, requests: int) -> RecommendQuery:
    """The models of a recording, with the times and the shapes that it says, on more GPUs and under more load.

    A cluster is emulated for a scenario, so that its requests are drawn: of the recorded mix, in bursts.
    """
    recorded = question_of(path, requests).scenario
    given = recorded.model_dump(mode="json", exclude_defaults=True)
    kind, rate_rps = recorded.workers[0].gpu, mean_rate_rps(recorded)
    given["workers"] = [{"count": GPUS_AS_RECORDED, "gpu": kind}]
    given["arrivals"] = {"process": "gamma", "shape": 0.5, "rate_rps": MORE_LOAD * GPUS_AS_RECORDED * rate_rps}
    scenario = Scenario.model_validate(given | {"warmup_s": WARMUP_S, "duration_s": 60})
    return RecommendQuery(scenario, requests=requests, run_planner=run_planner)


def _lines_of_text(requests: int) -> RecommendQuery:
    """A recognizer of lines of unlike widths, and the detector before it."""
    widths = {320: 60, 480: 15, 640: 10, 800: 6, 960: 5}
    scenario = Scenario.model_validate(
        {
            "name": "lines of text",
            "warmup_s": WARMUP_S,
            "duration_s": 60,
            "workers": [{"count": 3, "gpu": "T4"}],
            "models": [
                {
                    "name": "detect",
                    "slo_ms": 300,
                    "weight": 1,
                    "profile": {"alpha_ms": 16, "beta_ms": 14, "max_batch": 8},
                },
                {
                    "name": "recognize",
                    "slo_ms": 200,
                    "weight": 4,
                    "profile": {"alpha_ms": 3, "beta_ms": 12, "max_batch": 16},
                    "shapes": [
                        {"shape": f"x:{width}", "weight": share, "latency_factor": width / 320}
                        for width, share in widths.items()
                    ],
                },
            ],
            "arrivals": {"process": "gamma", "shape": 0.5, "rate_rps": 230},
        }
    )
    return RecommendQuery(scenario, requests=requests, run_planner=run_planner)
