"""MIG slices that follow the sizes of requests (`paris-replanning`) beside fixed ones and an oracle, simulated.

    python -m bench.papers.paris_elsa.drift --data DIR [--json FILE]

Sizes are log-normal; from one third of the run on they are three times as large, or a third as large. Rates are a
fraction of what PARIS's plan for the sizes of the moment sustains. *fixed*: the plan for the first sizes serves
throughout; *followed*: the controller plans again; *oracle*: the plan for the second sizes serves at once. Prints the
fraction of requests answered on time after the drift, and the gain, with 95 % intervals over seeds.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.common import console_of, parser_of, print_table, run_all, write_json
from bench.papers.paris_elsa.drifting import HELD_OUT, LARGE, SEEDS, SMALL, WAYS, DriftCell, run_cell
from tidegate.sim.interval import interval_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulations, print a table and write figures."""
    parser = parser_of("bench.papers.paris_elsa.drift", __doc__, jobs=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the measurements")
    parser.add_argument("--models", nargs="+", default=HELD_OUT, metavar="MODEL", help="default: the held-out ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default 1 to 5")
    options = parser.parse_args(arguments)
    console = console_of(120)
    cells = [
        DriftCell(options.data, model, before, after, way, seed)
        for model in options.models
        for before, after in ((SMALL, LARGE), (LARGE, SMALL))
        for way in WAYS
        for seed in options.seeds
    ]
    rates = run_all(console, "runs", run_cell, cells, options.jobs)
    found = dict(zip(cells, rates, strict=True))
    rows = [{**asdict(cell), "folder": str(cell.folder), "on_time": rate} for cell, rate in found.items()]
    write_json(options.json, rows)
    lines = []
    for model, before, after in dict.fromkeys((cell.model, cell.before, cell.after) for cell in cells):
        of = {
            way: [found[DriftCell(options.data, model, before, after, way, seed)] for seed in options.seeds]
            for way in WAYS
        }
        gains = [100 * (followed - fixed) for followed, fixed in zip(of["followed"], of["fixed"], strict=True)]
        means = [f"{100 * sum(of[way]) / len(of[way]):.1f}" for way in WAYS]
        gain = interval_of(gains, -100.0, 100.0)
        lines.append([f"{model}, {before} to {after}", *means, f"{gain.mean:+.1f} ±{(gain.high - gain.low) / 2:.1f}"])
    print_table(console, "% on time after the drift", ["model, sizes", *WAYS, "followed over fixed, points"], lines)


if __name__ == "__main__":
    main()
