"""What padding gains where batches pay: the goodput of text lines as wide as they are, and padded, simulated.

    python -m bench.padding [--seeds N]

The lines are those of `bench.dynamic_models`, of as many widths. A line of 320 pixels takes as long as a picture takes
ResNet50 on a 1080Ti (Table 2 of the Symphony paper: 1.053 ms, and 5.072 ms for each batch); the time of each row grows
with its width, that of each batch does not. Two workers, SLO 50 ms, Poisson arrivals, at most one request of a hundred
late or dropped.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.dynamic_models.ocr import AS_THEY_ARE, HEIGHT, write_lines
from tidegate.sim.goodput import Goodput, GoodputQuery, search_goodput, summarise_searches
from tidegate.sim.run import RunSpec, choose_policies
from tidegate.workload import Scenario

ALPHA_MS, BETA_MS = 1.053, 5.072
STEPS = (None, 32, 64, 160, 320)
"""Pixels from one common width to the next; None: lines are not padded."""


def padded(widths: Mapping[int, int], step: int | None) -> Counter[int]:
    """How many lines run in which width."""
    run: Counter[int] = Counter()
    for width, lines in widths.items():
        run[width if step is None else -(-width // step) * step] += lines
    return run


def scenario_of(widths: Mapping[int, int], *, duration_s: float = 20) -> Scenario:
    """Lines that run in these widths."""
    shapes = [
        {
            "shape": f"x:3,{HEIGHT},{width}",
            "share": lines,
            "profile": {"alpha_ms": ALPHA_MS * width / AS_THEY_ARE.shortest, "beta_ms": BETA_MS},
        }
        for width, lines in sorted(widths.items())
    ]
    profile = {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS}
    return Scenario.model_validate(
        {
            "name": "padding",
            "warmup_s": 2,
            "duration_s": duration_s,
            "workers": [{"count": 2}],
            "models": [{"name": "reader", "slo_ms": 50, "max_batch": 64, "profile": profile, "shapes": shapes}],
            "arrivals": {"rate_rps": 600},
            "policies": [{"name": "symphony"}],
        }
    )


def goodput_of(scenario: Scenario, seeds: int, precision: float) -> Goodput:
    """Of the default policy."""
    (choice,) = choose_policies(scenario, ())
    questions = [GoodputQuery(RunSpec(scenario, choice, seed), precision=precision) for seed in range(1, seeds + 1)]
    (found,) = summarise_searches([search_goodput(question) for question in questions])
    return found


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.padding", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    table = Table("widths every", "widths", "mean width", "goodput /s", "least", "most", title=f"{seeds} seeds")
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        write_lines(Path(folder), AS_THEY_ARE)
        widths = Counter(int(np.load(path, mmap_mode="r").shape[2]) for path in Path(folder).iterdir())
    for step in STEPS:
        run = padded(widths, step)
        found = goodput_of(scenario_of(run), seeds, precision=0.02)
        mean = sum(width * lines for width, lines in run.items()) / run.total()
        figures = (found.median_rps, found.min_rps, found.max_rps)
        name = "not padded" if step is None else f"{step} px"
        table.add_row(name, str(len(run)), f"{mean:.0f}", *(f"{rate:.0f}" for rate in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
