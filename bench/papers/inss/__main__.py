"""Planners of MPS shares on measured models of a V100, simulated with interference (InSS, section 6).

    python -m bench.papers.inss --data DIR [--json FILE]

DIR has iGniter's measurements, which are not a part of this project (docs/results/inss.md has their source). Takes an
hour on two cores, so it is not in `make bench`; `--only`, `--seeds` and `--seconds` run a part.

rates        4 GPUs, 10 models: violations at fixed rates
scale        4 GPUs, 10 models: the largest multiple of the rates at which violations are at most 1 %
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from bench.common import console_of, parser_of, print_table, write_json
from bench.papers.inss.outcomes import Load, Outcome, Way, known, largest_scale, outcome
from bench.papers.inss.workloads import TEN
from tidegate.sim.interval import interval_of
from tidegate.sim.parallel import run_parallel

PARTS = ("rates", "scale")
BASELINES = ("gpulet", "gslice", "igniter")
PLANNERS = (*BASELINES, "shares", "shares-ni", "inss", "inss-ni")
TOLD = {"gpulet": 1.0, "gslice": 1.75, "igniter": 1.5}
"""Factor on the rates given to each planner, tuned on mixes of models that are not evaluated."""
SCALES = (0.3, 0.5, 0.7)
LIMIT, PRECISION = 0.01, 0.02
GPUS = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiments, print tables and write figures."""
    parser = parser_of("bench.papers.inss", __doc__, jobs=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the measurements")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="some of the parts")
    parser.add_argument("--planners", nargs="+", default=PLANNERS, help="some of the planners")
    parser.add_argument("--policy", default="symphony", help="which policy batches; default symphony")
    parser.add_argument("--seeds", type=int, default=10, help="mixes of load; default 10")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each simulated run; default 5")
    options = parser.parse_args(arguments)
    if not (options.data / "igniter_v100_solo.csv").exists():
        parser.error("--data: no igniter_v100_solo.csv: give the folder with the files that docs/results/inss.md names")
    console = console_of(170)
    found: dict[str, Any] = {"seeds": options.seeds, "seconds": options.seconds, "policy": options.policy}
    parts: dict[str, Callable[[argparse.Namespace, Console], Any]] = {
        "rates": _at_rates,
        "scale": _scales,
    }
    for part in options.only or PARTS:
        found[part] = parts[part](options, console)
        write_json(options.json, found)


def _ten(options: argparse.Namespace, seed: int, scale: float = 1.0) -> Load:
    return Load(options.data, TEN, GPUS, seed, scale)


def _ways(options: argparse.Namespace) -> list[Way]:
    """Each planner unmodified, and the baselines with rates above the given ones."""
    ways = [Way(planner, policy=options.policy) for planner in known(options.planners)]
    more = [Way(way.planner, TOLD[way.planner], options.policy) for way in ways if TOLD.get(way.planner, 1.0) != 1]
    return [*more, *ways]


def _scaled(task: tuple[Load, Way], *, seconds: float) -> float:
    return largest_scale(*task, seconds, LIMIT, PRECISION)


def _came_out(task: tuple[Load, Way], *, seconds: float) -> Outcome:
    return outcome(*task, seconds)


def _at_rates(options: argparse.Namespace, console: Console) -> Any:  # noqa: ANN401 - JSON
    return [
        _outcomes(
            f"4 GPUs, 10 models, {scale:g} times the rates",
            [_ten(options, seed, scale) for seed in range(options.seeds)],
            _ways(options),
            options,
            console,
        )
        for scale in SCALES
    ]


def _outcomes(
    title: str,
    loads: Sequence[Load],
    ways: Sequence[Way],
    options: argparse.Namespace,
    console: Console,
) -> Any:  # noqa: ANN401 - JSON
    tasks = [(load, way) for way in ways for load in loads]
    run = partial(_came_out, seconds=options.seconds)
    found = list(run_parallel(run, tasks, jobs=options.jobs))
    columns = ("planner", "late %", "worst model %", "goodput/s", "full batches/s", "GPUs", "not placed", "decision ms")
    rows, lines = [], []
    for at, way in enumerate(ways):
        mine = found[at * len(loads) : (at + 1) * len(loads)]
        lines.append(
            (
                way.title,
                _interval([100 * each.late for each in mine], 2),
                _interval([100 * each.worst for each in mine], 2),
                _interval([each.goodput_rps for each in mine], 0),
                _interval([each.most_rps for each in mine], 0),
                f"{mean(each.gpus_used for each in mine):.2f}",
                f"{mean(each.missing for each in mine):.1f}",
                f"{1000 * mean(each.decided_s for each in mine):.1f}",
            )
        )
        rows.append({"planner": way.title, "outcomes": [asdict(each) for each in mine]})
    print_table(console, title, columns, lines)
    return {"title": title, "rows": rows}


def _scales(options: argparse.Namespace, console: Console) -> Any:  # noqa: ANN401 - JSON
    ways = _ways(options)
    tasks = [(_ten(options, seed), way) for way in ways for seed in range(options.seeds)]
    scales = list(run_parallel(partial(_scaled, seconds=options.seconds), tasks, jobs=options.jobs))
    by_way = {way.title: scales[at * options.seeds : (at + 1) * options.seeds] for at, way in enumerate(ways)}
    ours, lines = by_way.get("shares"), []
    for title, mine in by_way.items():
        over = [100 * (us / max(them, 1e-9) - 1) for us, them in zip(ours or mine, mine, strict=True)]
        lines.append((title, _interval(mine, 3), _interval(over, 1) + " %" if min(mine) > 0 else "-"))
    title = f"violations of no more than {LIMIT:.0%}"
    print_table(console, title, ("planner", "largest scale", "shares over it"), lines)
    return by_way


def _interval(values: Sequence[float], digits: int) -> str:
    """The mean with its interval of 95 %, by Student's distribution."""
    if len(values) < 2:
        return f"{mean(values):,.{digits}f}"
    found = interval_of(values, -inf, inf)
    return f"{found.mean:,.{digits}f} ± {found.high - found.mean:,.{digits}f}"


if __name__ == "__main__":
    main()
