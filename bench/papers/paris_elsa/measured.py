"""How long models take on MIG slices of an A100, as others measured it, and the sizes of requests.

`parvagpu_a100_80gb.csv`: of ParvaGPU (SC 2024; model, gpc, batch, procs, latency_ms). `migperf_a100_infer.csv`: of
MIGPerf, with the slices' utilization (gpu, gpc, model, seq_len, batch, latency_ms, gract). Neither is a part of this
project: docs/results/paris_elsa.md says where they come from.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import NormalDist

PRODUCT = "A100-80GB"
PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
"""The plain MIG profile with so many GPCs."""
PARVAGPU, MIGPERF = "parvagpu_a100_80gb.csv", "migperf_a100_infer.csv"


@dataclass(frozen=True)
class Curve:
    """A model on one kind of slice."""

    latency_ms: dict[int, float]
    """By rows, rising; those that ran out of memory are missing."""
    utilization: dict[int, float] | None = None


@dataclass(frozen=True)
class Case:
    """A model, and the GPCs that the paper gives to one like it (Table I)."""

    title: str
    gpcs: int
    whole_gpcs: int
    """For whole GPUs, of which the former are no multiple."""
    curves: dict[int, Curve]
    """By the GPCs of a slice."""


LIGHT, MEDIUM, HEAVY = (24, 28), (48, 56), (42, 42)
"""ShuffleNet and MobileNet; ResNet and Conformer; BERT."""
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
    """Every model of both files that is compared. Raises OSError, and KeyError for a file with other columns."""
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


def sizes_of_requests(largest: int, spread: float = 1.0) -> dict[int, float]:
    """{rows: share of the requests}: log-normal, cut off at 1 and `largest`.

    With a spread of 1 those are two standard deviations from the middle, the root of `largest`; the paper says neither.
    """
    bell = NormalDist(log(largest) / 2, spread * log(largest) / 4)
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
