"""Workloads of `bench.recommend_live`, slow enough for two cores.

A burst of one model, a zoo, lines of text of several widths, a cluster for a split model (with an SLO that all its GPUs
can meet unsplit, and with one that only the fast GPUs can), GPUs that can be partitioned, and a recording, if given.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidegate.api import Plan, PlannerSpec, VersionedDocument
from tidegate.api.late_import import load
from tidegate.observation import read_log
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recording import read_recording, scenario_of_recording
from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate.workload import Scenario, mean_rate_rps

Entries = list[dict[str, Any]]
PLANNING_S, WARMUP_S, WINDOW_S = 1.0, 6.0, 60.0
GPUS_AS_RECORDED, LOAD_FACTOR = 2, 3.2
"""Number of GPUs for a recording of one, and the factor on the load of each."""
ZOO_SLOWDOWN = 16
ZOO = [
    ("DenseNet121", 21, 0.054, 10.546),
    ("ResNet50V2", 20, 0.135, 5.56),
    ("EfficientNetB0", 20, 0.115, 4.326),
    ("ResNet101", 20, 0.284, 8.266),
    ("MobileNetV3Large", 20, 0.196, 4.072),
    ("EfficientNetB1", 20, 0.291, 5.797),
]
"""Models of the Symphony paper's Table 4: SLO in ms, and ms per row and per batch."""
SLICE_SLOWDOWN, SLICE_ROWS = 4, (1, 2, 4, 8, 16, 32)
SLICES = {
    "": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
    "/1g.5gb": [5.1, 6.9, 11, 21, 40, 78],
    "/2g.10gb": [4.7, 5.2, 7.1, 12, 22, 41],
    "/3g.20gb": [4.7, 5.1, 5.9, 8.4, 14, 25],
    "/4g.20gb": [4.7, 5.1, 5.7, 7.6, 12, 22],
    "/7g.40gb": [5.1, 5.3, 5.6, 6.6, 9.3, 14],
}
"""Synthetic latencies of slices in ms by SLICE_ROWS."""
SPLIT_SLOWDOWN = 3
LINE_WIDTHS = {320: 60, 480: 15, 640: 10, 800: 6, 960: 5}
"""Weight by width in pixels."""


def live_workloads(requests: int, recording: Path | None = None) -> dict[str, Callable[[], RecommendQuery]]:
    """Return functions that make the queries, by name.

    `requests`: number of requests in each run of the search; `recording`: event log of a server, as a further workload.
    """

    def asked(workers: Entries, models: Entries, rate_rps: float, **rest: Any) -> RecommendQuery:  # noqa: ANN401
        blocks, shape = rest.pop("blocks", {}), rest.pop("shape", None)
        arrivals = {"rate_rps": rate_rps} | ({"process": "gamma", "shape": shape} if shape else {})
        given = {"warmup_s": WARMUP_S, "duration_s": WINDOW_S, "workers": workers, "models": models, **rest}
        scenario = Scenario.model_validate({**given, "arrivals": arrivals})
        return RecommendQuery(scenario, requests=requests, run_planner=run_planner, blocks=blocks)

    def split(slo_ms: float) -> RecommendQuery:
        """A model that takes a P4 38 ms: with an SLO below that, whole, it can only run on the two L4, 250 a second."""
        tables = {"L4": {1: 10, 2: 16}, "P4": {1: 38, 2: 73}}
        profiles = {kind: {"points_ms": _slowed(table, SPLIT_SLOWDOWN)} for kind, table in tables.items()}
        model = {"name": "detector", "slo_ms": SPLIT_SLOWDOWN * slo_ms, "max_batch": 2, "profiles": profiles}
        gpus = [{"count": 2, "gpu": "L4"}, {"count": 6, "gpu": "P4"}]
        rest = {"network": {"gbps": 6 / SPLIT_SLOWDOWN}, "blocks": {"detector": _detector()}}
        return asked(gpus, [model], 300 / SPLIT_SLOWDOWN, name="split model", **rest)

    def slices() -> RecommendQuery:
        """A model of which each request runs alone: what MIG slices are for."""
        rows = {"distribution": "table", "values": SLICE_ROWS, "weights": [30, 25, 20, 15, 8, 2]}
        profiles = {
            f"A100-40GB{part}": {"points_ms": _slowed(dict(zip(SLICE_ROWS, times, strict=True)), SLICE_SLOWDOWN)}
            for part, times in SLICES.items()
        }
        model = {"name": "resnet50", "slo_ms": SLICE_SLOWDOWN * 30, "max_batch": 32, "rows": rows, "profiles": profiles}
        model["scheduling"] = "unbatched"
        return asked([{"count": 2, "gpu": "A100-40GB"}], [model], 400 / SLICE_SLOWDOWN, name="slices")

    def lines() -> RecommendQuery:
        """A recognizer of lines of unlike widths, and the detector before it."""
        recognizer = _linear("recognize", 200, 3, 12, max_batch=16) | {"weight": 4}
        recognizer["shapes"] = [
            {"shape": f"x:{width}", "weight": weight, "latency_factor": width / 320}
            for width, weight in LINE_WIDTHS.items()
        ]
        models = [_linear("detect", 300, 16, 14, max_batch=8), recognizer]
        return asked([{"count": 3, "gpu": "T4"}], models, 230, name="lines of text", shape=0.5)

    def recorded(path: Path) -> RecommendQuery:
        """The models of a recording, with its times and shapes, on more GPUs and under more load.

        A cluster is emulated for a scenario, so that its requests are drawn: of the recorded mix, in bursts.
        """
        header, entries = read_log(path.read_bytes().splitlines(keepends=True))
        _recording, document = read_recording(header.setup, entries)
        scenario = scenario_of_recording(document, path.stem)
        given = scenario.model_dump(mode="json", exclude_defaults=True)
        gpus = [{"count": GPUS_AS_RECORDED, "gpu": scenario.workers[0].gpu}]
        rate_rps = LOAD_FACTOR * GPUS_AS_RECORDED * mean_rate_rps(scenario)
        return asked(gpus, given["models"], rate_rps, shape=0.5)

    zoo = [
        _linear(name, *(ZOO_SLOWDOWN * each for each in (slo_ms, alpha_ms, beta_ms)))
        for name, slo_ms, alpha_ms, beta_ms in ZOO
    ]
    burst = [_linear("resnet50", 8 * 25, 8 * 1.053, 8 * 5.072)]
    return {
        **({} if recording is None else {recording.stem: lambda: recorded(recording)}),
        "burst": lambda: asked([{"count": 4, "gpu": "1080Ti"}], burst, 2100 / 8, name="burst", shape=0.3),
        "zoo": lambda: asked([{"count": 4, "gpu": "A100"}], zoo, 3000 / ZOO_SLOWDOWN, name="zoo"),
        "lines of text": lines,
        "split model": lambda: split(42),
        "split model, tight": lambda: split(36),
        "slices, unbatched": slices,
    }


def run_planner(planner: PlannerSpec, problem: VersionedDocument) -> Plan:
    """Run a planner with a time limit of one second."""
    load(planner.run)
    begun = time.perf_counter()

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        return time.perf_counter() - begun

    return planner.run(problem, time_limit_s=PLANNING_S, progress=progress)


def with_added(profile: BlockProfile, added_ms: dict[str, float]) -> BlockProfile:
    """Return a block profile with what live adds to a whole model, by device class, spread over its blocks."""
    latencies = [
        each.model_copy(
            update={
                "latency_us": [
                    [us + 1000 * added_ms.get(each.device_class, 0.0) / len(each.latency_us) for us in row]
                    for row in each.latency_us
                ]
            }
        )
        for each in profile.latencies
    ]
    return profile.model_copy(update={"latencies": latencies})


def _linear(name: str, slo_ms: float, alpha_ms: float, beta_ms: float, *, max_batch: int = 64) -> dict[str, Any]:
    profile = {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": max_batch}
    return {"name": name, "slo_ms": slo_ms, "profile": profile}


def _slowed(points_ms: Mapping[int, float], factor: float) -> dict[int, float]:
    return {rows: factor * took_ms for rows, took_ms in points_ms.items()}


def _detector() -> BlockProfile:
    """As in plugins/ppipe/README.md, slowed down."""
    tables: dict[tuple[str, int], list[list[int]]] = {
        ("L4", 1): [[3000, 4500], [4000, 6500], [3000, 5000]],
        ("L4", 2): [[4800], [6200], [4700]],
        ("P4", 1): [[7000, 13000], [15000, 29000], [16000, 31000]],
    }
    return BlockProfile(
        model="detector",
        blocks=["stem", "body", "head"],
        cut_bytes=[600_000, 150_000],
        latencies=[
            BlockLatencies(
                device_class=kind,
                share=share,
                rows=list(range(1, 1 + len(table[0]))),
                latency_us=[[SPLIT_SLOWDOWN * us for us in row] for row in table],
            )
            for (kind, share), table in tables.items()
        ],
    )
