"""Deferred against eager batching on a sample of the 5880 synthetic workloads of the Symphony paper (section 3.4.2).

    python -m bench.papers.synthetic_workloads --sample 200 --seed 1 --json synthetic.json

Takes half an hour on one core, so it is not in `make bench`. A sample and a seed give the same figures in every
process.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.common import console_of, parser_of, print_table, run_all, write_json
from tidegate.sim.goodput import GoodputQuery, GoodputSearch, search_goodput
from tidegate.sim.run import RunSpec
from tidegate.workload import PolicyChoice, Scenario, stream

PROFILES = Path(__file__).parents[2] / "scenarios" / "profiles_1080ti.csv"
"""Table 3 of the paper, whose beta/alpha range from 9.7 to 0.02 over Table 1's models."""
MODELS = ("DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT")
SLOS_MS = (20.0, 25.0, 30.0, 40.0, 50.0)
COPIES = (8, 16, 24, 32, 48, 64)
WORKERS_PER_MODEL = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
SHAPES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MOST_WORKERS = 128
MIXED = "mixed"
MAX_BATCH = 64

POLICIES = (
    PolicyChoice(name="eager", label="eager"),
    PolicyChoice(name="eager", label="eager window", options={"batch_formation": "skip_head"}),
    PolicyChoice(name="symphony", label="frontrun", options={"deferral": "frontrun"}),
    PolicyChoice(name="symphony", label="symphony"),
)
RATIOS = {
    "symphony / better eager": ("symphony", ("eager", "eager window")),
    "frontrun / better eager": ("frontrun", ("eager", "eager window")),
    "frontrun / eager": ("frontrun", ("eager",)),
    "frontrun / eager window": ("frontrun", ("eager window",)),
    "symphony / best of the others": ("symphony", ("eager", "eager window", "frontrun")),
}
"""Ratios of goodput: numerator, and policies of whose goodput the maximum is the denominator."""
PAPER = {"at least 0.95": "almost all", "at least 1.5": "16 %", "at least 2": "extreme cases"}

SEED = 1
"""Seed of the arrivals, the same for every policy."""
TOLERANCE = 0.015
REQUESTS_PER_MODEL, LEAST_REQUESTS = 500, 10_000
"""Requests per model in the window, and the minimum of all: a model may lose five, and its miss rate is known to
0.4 %.
"""
PILOT_SHARE, PILOT_TOLERANCE = 0.25, 0.1
"""Share of the requests, and relative tolerance, of the first search, which sets the length of the window."""
WARMUP_SLOS = 4
"""Warm-up as a multiple of the longest SLO; no queued request is older than one SLO."""


@dataclass(frozen=True)
class Workload:
    """A workload of the grid."""

    model: str
    """Model of all copies; `mixed`: every model of Table 3 once, with its own SLO."""
    slo_ms: float | None
    """SLO in ms; None: each model's own."""
    shape: float
    """Shape of the gamma-distributed gaps: 1 is Poisson, less is burstier."""
    models: int
    workers: int


def grid() -> list[Workload]:
    """Return the 5880 workloads of Table 1, by model, SLO, burstiness, copies and workers.

    The product of the table's columns is 7560; it is 5880 without SLOs below 2*l(1), at which requests cannot wait for
    each other, and without more than 128 workers. The paper does not say what it left out.
    """
    profiles = {row["name"]: row for row in _profiles()}
    return [
        Workload(model, slo_ms, shape, copies, round(copies * ratio))
        for model, slo_ms, shape, copies, ratio in product(MODELS, SLOS_MS, SHAPES, COPIES, WORKERS_PER_MODEL)
        if 2 * (float(profiles[model]["alpha_ms"]) + float(profiles[model]["beta_ms"])) <= slo_ms
        and copies * ratio <= MOST_WORKERS
    ]


def mixed_grid() -> list[Workload]:
    """Return workloads with the 35 models of Table 3 at equal rates with their own SLOs; the paper says only their
    number.
    """
    models = len(_profiles())
    return [
        Workload(MIXED, None, shape, models, ceil(models * ratio))
        for shape, ratio in product(SHAPES, WORKERS_PER_MODEL)
    ]


def draw_sample(members: Sequence[Workload], count: int, seed: int) -> list[Workload]:
    """Return one workload of each of `count` equal parts of the grid, in random order.

    Raises ValueError if there are fewer.

    `members`: the grid; `count`: size of the sample; `seed`: of the draw.
    """
    if not 0 <= count <= len(members):
        raise ValueError(f"a sample of {count}: the grid has {len(members)} workloads; ask for 0 to {len(members)}")
    draw = stream(seed, "synthetic workloads")
    borders = [round(index * len(members) / count) for index in range(count + 1)] if count else [0]
    sample = [members[draw.randrange(start, end)] for start, end in pairwise(borders)]
    draw.shuffle(sample)  # who interrupts the search has a sample still
    return sample


def scenario_of(workload: Workload, rate_rps: float, duration_s: float) -> Scenario:
    """Return a workload as a scenario.

    `workload`: the workload; `rate_rps`: requests per second of all models; `duration_s`: measured window, seconds.
    """
    rows = {row["name"]: row for row in _profiles()}
    names = list(rows) if workload.model == MIXED else [workload.model] * workload.models
    models: list[dict[str, Any]] = [
        {
            "name": f"{name}-{index}",
            "slo_ms": workload.slo_ms or rows[name]["slo_ms"],
            "profile": {
                "alpha_ms": rows[name]["alpha_ms"],
                "beta_ms": rows[name]["beta_ms"],
                "max_batch": MAX_BATCH,
            },
        }
        for index, name in enumerate(names)
    ]
    return Scenario.model_validate(
        {
            "version": 1,
            "warmup_s": WARMUP_SLOS * max(float(model["slo_ms"]) for model in models) / 1000,
            "duration_s": duration_s,
            "workers": [{"count": workload.workers, "gpu": "1080Ti"}],
            "models": models,
            "arrivals": {"process": "gamma", "shape": workload.shape, "rate_rps": rate_rps},
        }
    )


def compare(workload: Workload, requests_per_model: int = REQUESTS_PER_MODEL) -> dict[str, Any]:
    """Return the goodput of every policy under a workload, and their ratios, as a row of the JSON.

    A quick search with eager batching sets the rate and the window; each further search begins at the previous result.

    `requests_per_model`: in the measured window.
    """
    requests = max(LEAST_REQUESTS * requests_per_model / REQUESTS_PER_MODEL, requests_per_model * workload.models)
    rate_rps = _bound_rps(workload)
    pilot = _search(workload, POLICIES[0], rate_rps, requests * PILOT_SHARE, PILOT_TOLERANCE)
    rate_rps = pilot.rate_rps or rate_rps
    duration_s = requests / rate_rps
    found: dict[str, GoodputSearch] = {}
    for choice in POLICIES:
        found[choice.title] = _search(workload, choice, rate_rps, rate_rps * duration_s, TOLERANCE, duration_s)
        rate_rps = found[choice.title].rate_rps or rate_rps
    goodput = {title: search.rate_rps for title, search in found.items()}
    return {
        **asdict(workload),
        "duration_s": duration_s,
        "goodput_rps": goodput,
        "mean_batch_rows": {
            title: search.best.total.mean_batch_rows if search.best else None for title, search in found.items()
        },
        "ratios": {
            name: goodput[ours] / best if (best := max(goodput[title] for title in theirs)) else None
            for name, (ours, theirs) in RATIOS.items()
        },
    }


def summarize(rows: Sequence[dict[str, Any]], ratio: str) -> dict[str, float]:
    """Return the distribution of a ratio: shares of workloads above limits, and quantiles.

    `rows`: from `compare`; `ratio`: name of the ratio.
    """
    values = np.array([row["ratios"][ratio] for row in rows if row["ratios"][ratio] is not None])
    shares = {f"at least {limit:g}": float(np.mean(values >= limit)) for limit in (0.95, 1.0, 1.5, 2.0)}
    names = ("least", "quartile 1", "median", "quartile 3", "most")
    return shares | dict(zip(names, np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Search the goodputs, print the distributions and write files."""
    parser = parser_of("bench.papers.synthetic_workloads", __doc__, jobs=True)
    parser.add_argument("--sample", type=int, default=200, help="of the 5880 workloads with equal models; default 200")
    parser.add_argument("--mixed", type=int, default=6, help="of the 42 workloads with 35 models; default 6")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    options = parser.parse_args(arguments)
    try:
        workloads = draw_sample(mixed_grid(), options.mixed, options.seed)
        workloads += draw_sample(grid(), options.sample, options.seed)
    except ValueError as error:
        parser.error(str(error))
    console = console_of(120)
    rows = run_all(console, "workloads", compare, workloads, options.jobs)
    write_json(options.json, {"seed": options.seed, "workloads": rows})
    groups = {
        "equal models": [row for row in rows if row["model"] != MIXED],
        "35 models": [row for row in rows if row["model"] == MIXED],
    }
    groups = {name: members for name, members in groups.items() if members}
    for name, members in groups.items():
        _print(console, f"{len(members)} workloads, {name}", members)


def _profiles() -> list[dict[str, str]]:
    with PROFILES.open(newline="") as file:
        return list(csv.DictReader(file))


def _bound_rps(workload: Workload) -> float:
    """Where the first search begins: the staggered optimum of the cluster (equation 1), as if it had one model."""
    rows = {row["name"]: row for row in _profiles()}
    busy_ms = []  # of one worker, for one request of each model
    for name in rows if workload.model == MIXED else [workload.model]:
        alpha_ms, beta_ms = float(rows[name]["alpha_ms"]), float(rows[name]["beta_ms"])
        longest_ms = (workload.slo_ms or float(rows[name]["slo_ms"])) / (1 + 1 / workload.workers)
        batch = min(max(1, int((longest_ms - beta_ms) / alpha_ms)), MAX_BATCH)
        busy_ms.append(alpha_ms + beta_ms / batch)
    return 1000 * workload.workers * len(busy_ms) / sum(busy_ms)


def _search(
    workload: Workload,
    choice: PolicyChoice,
    rate_rps: float,
    requests: float,
    tolerance: float,
    duration_s: float | None = None,
) -> GoodputSearch:
    scenario = scenario_of(workload, rate_rps, duration_s or requests / rate_rps)
    return search_goodput(GoodputQuery(RunSpec(scenario, choice, SEED), tolerance=tolerance))


def _print(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each figure: the paper's, then one ratio each."""
    of_ratios = [summarize(rows, ratio) for ratio in RATIOS]
    lines = [
        [name, PAPER.get(name, ""), *(f"{each[name]:{'.0%' if 'least ' in name else '.2f'}}" for each in of_ratios)]
        for name in of_ratios[0]
    ]
    print_table(console, title, ["", "paper", *RATIOS], lines)


if __name__ == "__main__":
    main()
