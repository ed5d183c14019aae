"""Workloads of `bench.recommend_live`, before they are slowed down.

Six: a burst of one model, a zoo, OCR with requests of many rows (from an event log), a cluster for a split model (with
an SLO that all its GPUs can meet unsplit, and with one that only the fast GPUs can), and GPUs that can be partitioned.
"""

import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tidegate.api import Plan, PlannerSpec, VersionedDocument
from tidegate.api.late_import import load
from tidegate.observation import Recorder, read_log
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recording import read_recording, scenario_of_recording
from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

PLANNING_S = 1.0
ZOO = [
    ("DenseNet121", 21, 0.054, 10.546),
    ("ResNet50V2", 20, 0.135, 5.56),
    ("EfficientNetB0", 20, 0.115, 4.326),
    ("ResNet101", 20, 0.284, 8.266),
    ("MobileNetV3Large", 20, 0.196, 4.072),
    ("EfficientNetB1", 20, 0.291, 5.797),
]
"""Models of the Symphony paper's Table 4: SLO in ms, and ms per row and per batch."""
SLICES = {
    "": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
    "/1g.5gb": [5.1, 6.9, 11, 21, 40, 78],
    "/2g.10gb": [4.7, 5.2, 7.1, 12, 22, 41],
    "/3g.20gb": [4.7, 5.1, 5.9, 8.4, 14, 25],
    "/4g.20gb": [4.7, 5.1, 5.7, 7.6, 12, 22],
    "/7g.40gb": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
}
"""Synthetic latencies of slices in ms for 1, 2, 4, 8, 16 and 32 rows."""


def workloads(requests: int, recording: Path | None = None) -> dict[str, Callable[[], RecommendQuery]]:
    """Return functions that make the queries, by name.

    Args:
        requests: number of requests in each run of the search.
        recording: event log of a server, as a further workload.
    """

    def asked(given: dict[str, Any], **more: Any) -> RecommendQuery:  # noqa: ANN401 - fields of a question
        scenario = Scenario.model_validate({"warmup_s": 1, "duration_s": 20, **given})
        return RecommendQuery(scenario, requests=requests, run_planner=run_planner, **more)

    recorded = {} if recording is None else {recording.stem: lambda: question_of(recording, requests)}
    return {
        **recorded,
        "burst": lambda: asked(
            {
                "name": "burst",
                "workers": [{"count": 4, "gpu": "1080Ti"}],
                "models": [_linear("resnet50", 25, 1.053, 5.072)],
                "arrivals": {"process": "gamma", "shape": 0.3, "rate_rps": 2100},
            }
        ),
        "zoo": lambda: asked(
            {
                "name": "zoo",
                "workers": [{"count": 4, "gpu": "A100"}],
                "models": [_linear(*each) for each in ZOO],
                "arrivals": {"process": "poisson", "rate_rps": 3000},
            }
        ),
        "ocr, recorded": lambda: _ocr(requests),
        "split model": lambda: asked(_split(slo_ms=42), blocks={"detector": _detector()}),
        "split model, tight": lambda: asked(_split(slo_ms=36), blocks={"detector": _detector()}),
        "slices": lambda: asked(
            {
                "name": "slices",
                "workers": [{"count": 2, "gpu": "A100-40GB"}],
                "models": [
                    {
                        "name": "resnet50",
                        "slo_ms": 30,
                        "max_batch": 32,
                        "rows": {
                            "distribution": "table",
                            "values": [1, 2, 4, 8, 16, 32],
                            "weights": [30, 25, 20, 15, 8, 2],
                        },
                        "profiles": {
                            f"A100-40GB{part}": {"points_ms": dict(zip((1, 2, 4, 8, 16, 32), times, strict=True))}
                            for part, times in SLICES.items()
                        },
                    }
                ],
                "arrivals": {"process": "poisson", "rate_rps": 600},
            }
        ),
    }


def run_planner(planner: PlannerSpec, problem: VersionedDocument) -> Plan:
    """Run a planner with a time limit of one second."""
    load(planner.run)
    begun = time.perf_counter()

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        return time.perf_counter() - begun

    return planner.run(problem, time_limit_s=PLANNING_S, progress=progress)


def _linear(name: str, slo_ms: float, alpha_ms: float, beta_ms: float) -> dict[str, Any]:
    return {
        "name": name,
        "slo_ms": slo_ms,
        "profile": {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": 64},
    }


def _split(slo_ms: float) -> dict[str, Any]:
    """A model that takes a P4 38 ms: with an SLO below that, whole, it can only run on the two L4, 250 a second."""
    return {
        "name": "split model",
        "workers": [{"count": 2, "gpu": "L4"}, {"count": 6, "gpu": "P4"}],
        "network": {"gbps": 6},
        "models": [
            {
                "name": "detector",
                "slo_ms": slo_ms,
                "max_batch": 2,
                "profiles": {"L4": {"points_ms": {1: 10, 2: 16}}, "P4": {"points_ms": {1: 38, 2: 73}}},
            }
        ],
        "arrivals": {"process": "poisson", "rate_rps": 300},
    }


def _detector() -> BlockProfile:
    """As in plugins/ppipe/README.md."""
    tables: list[list[list[float]]] = [
        [[3000, 4500], [4000, 6500], [3000, 5000]],
        [[4800], [6200], [4700]],
        [[7000, 13000], [15000, 29000], [16000, 31000]],
    ]
    l4, half, p4 = tables
    return BlockProfile(
        model="detector",
        blocks=["stem", "body", "head"],
        cut_bytes=[600_000, 150_000],
        latencies=[
            BlockLatencies(device_class="L4", share=1, rows=[1, 2], latency_us=l4),
            BlockLatencies(device_class="L4", share=2, rows=[1], latency_us=half),
            BlockLatencies(device_class="P4", share=1, rows=[1, 2], latency_us=p4),
        ],
    )


def _ocr(requests: int) -> RecommendQuery:
    """Pages, each one to find lines in and many lines to read, recorded while they were served first come first."""
    lines = {"distribution": "lognormal", "mean": 6, "cv": 0.8}
    served = Scenario.model_validate(
        {
            "name": "ocr, recorded",
            "warmup_s": 0,
            "duration_s": 16 * max(2.0, requests / 300),
            "workers": [{"count": 4, "gpu": "T4"}],
            "models": [
                {**_linear("detect", 120, 11, 9), "weight": 1},
                {**_linear("recognize", 80, 1.6, 6), "weight": 2, "rows": lines},
            ],
            "arrivals": {"process": "gamma", "shape": 0.5, "rate_rps": 130},
        }
    )
    log = BytesIO()
    simulate(RunSpec(served, PolicyChoice(name="fifs"), seed=7), observers=[Recorder(log)])
    return _question(log.getvalue().splitlines(keepends=True), served.name, requests)


def question_of(path: Path, requests: int) -> RecommendQuery:
    """Return a query from an event log. Raises RecordingError, OSError.

    `requests`: number of requests in each run of the search.
    """
    return _question(path.read_bytes().splitlines(keepends=True), path.stem, requests)


def _question(lines: Sequence[bytes], name: str, requests: int) -> RecommendQuery:
    header, entries = read_log(lines)
    recording, given = read_recording(header.setup, entries)
    return RecommendQuery(scenario_of_recording(given, name), recording, requests=requests, run_planner=run_planner)
