"""Measured latencies of models on MIG slices of an A100, and the sizes of requests.

`parvagpu_a100_80gb.csv` is from ParvaGPU (SC 2024; model, gpc, batch, procs, latency_ms). `migperf_a100_infer.csv` is
from MIGPerf, with the slices' utilization (gpu, gpc, model, seq_len, batch, latency_ms, gract). Neither is a part of
this project: docs/results/paris_elsa.md has their sources.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import NormalDist

PRODUCT = "A100-80GB"
PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
"""Plain MIG profile by number of GPCs."""
PARVAGPU, MIGPERF = "parvagpu_a100_80gb.csv", "migperf_a100_infer.csv"


@dataclass(frozen=True)
class Curve:
    """Latencies of a model on one slice size."""

    latency_ms: dict[int, float]
    """Latency in ms by rows, in rising order; batches that ran out of memory are missing."""
    utilization: dict[int, float] | None = None


@dataclass(frozen=True)
class Case:
    """A model, and the GPCs that the paper gives to a model of its size (Table I)."""

    title: str
    gpcs: int
    whole_gpcs: int
    """GPCs used for whole GPUs, a multiple of seven."""
    curves: dict[int, Curve]
    """Latencies by GPCs of a slice."""


LIGHT, MEDIUM, HEAVY = (24, 28), (48, 56), (42, 42)
"""GPCs of slices and of whole GPUs: ShuffleNet and MobileNet; ResNet and Conformer; BERT."""
_PARVAGPU = {
    "mobilenetv2": LIGHT,
    "densenet121": LIGHT,
    "densenet169": LIGHT,
    "densenet201": LIGHT,
    "resnet50": MEDIUM,
    "resnet101": MEDIUM,
    "resnet152": MEDIUM,
    "inceptionv3": MEDIUM,
    "vgg16": MEDIUM,
    "vgg19": MEDIUM,
    "bert-large-seq128": HEAVY,
}
_MIGPERF = {("resnet50", ""): MEDIUM, ("vision_transformer", ""): MEDIUM, ("bert-base", "64"): HEAVY}


def read_cases(folder: Path) -> list[Case]:
    """Return the compared models of both files. Raises OSError, and KeyError for a file with other columns."""
    parvagpu: dict[str, dict[int, dict[int, float]]] = {}
    for row in _rows(folder / PARVAGPU):
        if row["procs"] == "1":
            by_gpcs = parvagpu.setdefault(row["model"], {})
            by_gpcs.setdefault(int(row["gpc"]), {})[int(row["batch"])] = float(row["latency_ms"])
    cases = [
        Case(model, *gpcs, {size: Curve(_rising(curve)) for size, curve in sorted(parvagpu[model].items())})
        for model, gpcs in _PARVAGPU.items()
    ]
    migperf: dict[tuple[str, str], dict[int, dict[int, tuple[float, float]]]] = {}
    for row in _rows(folder / MIGPERF):
        if row["gpu"] == PRODUCT:
            by_gpcs_too = migperf.setdefault((row["model"], row["seq_len"]), {})
            points = by_gpcs_too.setdefault(int(row["gpc"]), {})
            points[int(row["batch"])] = float(row["latency_ms"]), float(row["gract"])
    for (model, length), gpcs in _MIGPERF.items():
        curves = {
            size: Curve(
                _rising({rows: latency for rows, (latency, _) in points.items()}),
                {rows: used for rows, (_, used) in sorted(points.items())},
            )
            for size, points in sorted(migperf[model, length].items())
        }
        cases.append(Case(f"{model}{length and '-seq'}{length} (MIGPerf)", *gpcs, curves))
    return cases


def sizes_of_requests(largest: int) -> dict[int, float]:
    """Return the share of requests by rows: log-normal, truncated to 1 and `largest`.

    The limits are two standard deviations from the median, the root of `largest`; the paper gives neither.
    """
    bell = NormalDist(log(largest) / 2, log(largest) / 4)
    weights = {rows: bell.cdf(log(rows + 0.5)) - bell.cdf(log(rows - 0.5)) for rows in range(1, largest + 1)}
    total = sum(weights.values())
    return {rows: weight / total for rows, weight in weights.items()}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as lines:
        yield from csv.DictReader(lines)


def _rising(curve: dict[int, float]) -> dict[int, float]:
    """Latencies of more rows are never below those of fewer: what falls was measured with noise."""
    rising, longest = {}, 0.0
    for rows, latency in sorted(curve.items()):
        rising[rows] = longest = max(longest, latency)
    return rising
