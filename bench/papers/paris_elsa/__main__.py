"""PARIS and ELSA against homogeneous and random slices and FIFS, on measured slices of an A100 (section VI), simulated.

    python -m bench.papers.paris_elsa --data DIR [--json FILE]

DIR has the measurements, which are not a part of this project (docs/results/paris_elsa.md has their source). Takes
about an hour on two cores, so it is not in `make bench`; `--models` and `--requests` run a part.

Prints, for the paper's design points and ours, the most queries per second of which 95 % are within 1.5 times what the
largest batch takes on GPU(7); query sizes are log-normal, 1 to 32.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.common import console_of, parser_of, run_all, write_json
from bench.papers.paris_elsa import tables
from bench.papers.paris_elsa.design_points import (
    EAGER,
    ELSA,
    FIFS,
    HOMOGENEOUS,
    PUBLISHED_ELSA,
    SYMPHONY,
    drawn,
    homogeneous,
    paris,
)
from bench.papers.paris_elsa.measured import read_cases
from bench.papers.paris_elsa.throughput import Cell, measure

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
    parser = parser_of("bench.papers.paris_elsa", __doc__, jobs=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the measurements")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="some of the models")
    parser.add_argument(
        "--whole-gpcs", type=int, help="for GPU(7); default: the paper's, up to a sixth more than others"
    )
    parser.add_argument("--requests", type=int, default=6000, help="in each simulated run; default 6000")
    options = parser.parse_args(arguments)
    console = console_of(230)
    try:
        cases = read_cases(options.data)
    except (OSError, KeyError) as error:
        parser.error(f"--data: {error}: give the folder with the files that docs/results/paris_elsa.md names")
    if unknown := sorted(set(options.models or ()) - {case.title for case in cases}):
        parser.error(f"--models: no {unknown[0]!r} among {', '.join(case.title for case in cases)}")
    if options.whole_gpcs:
        cases = [replace(case, whole_gpcs=options.whole_gpcs) for case in cases]
    chosen = [case for case in cases if not options.models or case.title in options.models]
    points = [Cell(case, point, options.requests) for case in chosen for point in DESIGNS]
    found = tables.show_throughput(console, run_all(console, "cells", measure, points, options.jobs))
    write_json(options.json, {"requests": options.requests, "throughput": found})


if __name__ == "__main__":
    main()
