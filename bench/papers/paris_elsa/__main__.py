"""PARIS and ELSA against homogeneous and random slices and FIFS, on measured slices of an A100 (section VI), simulated.

    python -m bench.papers.paris_elsa --data DIR [--json FILE]

DIR has the measurements, which are not a part of this project (docs/results/paris_elsa.md has their source). Takes
about an hour on two cores, so it is not in `make bench`; `--only`, `--models` and `--requests` run a part.

throughput   the paper's design points and ours: the most queries per second of which 95 % are within 1.5 times what
             the largest batch takes on GPU(7); query sizes log-normal, 1 to 32
merging      ELSA with merging of small queries, beside plain ELSA
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.papers.paris_elsa import tables
from bench.papers.paris_elsa.design_points import (
    EAGER,
    ELSA,
    FIFS,
    HOMOGENEOUS,
    MERGING,
    PUBLISHED_ELSA,
    SYMPHONY,
    Point,
    drawn,
    homogeneous,
    paris,
)
from bench.papers.paris_elsa.measured import Case, read_cases
from bench.papers.paris_elsa.throughput import Cell, Found, Setting, measure
from tidegate.sim.parallel import run_parallel

PARTS = ("throughput", "merging")
KNEES = {"segments": "knees"}
"""Options of PARIS with the paper's knees; by default it simulates several plans and takes the best."""
RANDOM_SEEDS = (1, 2, 3)
EQUAL = [homogeneous(size) for size in HOMOGENEOUS]
DESIGNS = [
    *EQUAL,
    *(homogeneous(size, SYMPHONY) for size in HOMOGENEOUS),
    *(homogeneous(size, EAGER, merging=True) for size in HOMOGENEOUS),
    *(drawn(seed, policy) for policy in (FIFS, ELSA) for seed in RANDOM_SEEDS),
    *(paris(policy, **KNEES) for policy in (FIFS, PUBLISHED_ELSA, ELSA)),
    *(paris(policy) for policy in (FIFS, ELSA, SYMPHONY)),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiments, print tables and write figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.papers.paris_elsa", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="some of the parts")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="some of the models")
    parser.add_argument(
        "--whole-gpcs", type=int, help="for GPU(7); default: the paper's, up to a sixth more than others"
    )
    parser.add_argument("--requests", type=int, default=6000, help="in each simulated run; default 6000")
    parser.add_argument("--jobs", type=int, default=-1, help="simulations at once; default: as many as cores")
    options = parser.parse_args(arguments)
    console = Console(width=None if os.isatty(1) else 230)
    try:
        cases = read_cases(options.data)
    except (OSError, KeyError) as error:
        parser.error(f"--data: {error}: give the folder with the files that docs/results/paris_elsa.md names")
    if unknown := sorted(set(options.models or ()) - {case.title for case in cases}):
        parser.error(f"--models: no {unknown[0]!r} among {', '.join(case.title for case in cases)}")
    if options.whole_gpcs:
        cases = [replace(case, whole_gpcs=options.whole_gpcs) for case in cases]
    chosen = [case for case in cases if not options.models or case.title in options.models]
    found: dict[str, Any] = {"requests": options.requests}

    def run(some: Sequence[Case], points: Sequence[Point], setting: Setting) -> list[Found]:
        cells = [Cell(case, point, setting, options.requests) for case in some for point in points]
        return list(_with_progress(console, run_parallel(measure, cells, jobs=options.jobs), len(cells)))

    def merged() -> list[dict[str, Any]]:
        layouts = [paris(ELSA), *EQUAL[2:]]
        points = [replace(each, policy=policy, merging=True) for each in layouts for policy in (ELSA, MERGING)]
        return tables.show_merging(console, run(chosen, points, Setting()))

    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "throughput": lambda: tables.show_throughput(console, run(chosen, DESIGNS, Setting())),
        "merging": merged,
    }
    for part in options.only or PARTS:
        found[part] = parts[part]()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


def _with_progress(console: Console, results: Iterator[Found], total: int) -> Iterator[Found]:
    columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield from progress.track(results, total=total)


if __name__ == "__main__":
    main()
