"""Regret of using Tidegate: random scenarios, simulated.

    python -m bench.no_regret [--count N] [--seed S] [--requests N] [--jobs N] [--json FILE] [--again FILE]
                              [--only N ...] [--tight] [--near] [--learn S]
    python -m bench.no_regret --attacks [--count SEEDS] [--jobs N] [--json FILE]

Scenarios are drawn at random (`bench/no_regret/workloads.py`): workers, models, gain of batching, shapes, jitter,
stalls, bursts, load, and correct, wrong or missing profiles. In each the default policy of `tidegate serve` gets the
same requests as Triton's batcher and the other policies. Triton's batcher is tuned: queue delay and queue timeout per
model, the best of sixteen settings in hindsight. Tidegate has a network latency of 0.2 to 2 ms to its Tritons, Triton's
batcher none; the same settings run as policies of Tidegate, too (`away`). Every other scenario is tight: few workers
with variable latencies, as a GPU of a busy host has, and short SLOs. `--near` draws neither network latency nor tight
scenarios; `--tight` draws only tight ones. Samples of seeds 1 to 9 are for tuning, other seeds for judging. `--again`
takes figures from a file of `--json`, and runs only the default policy and contenders without figures. `--learn` adds
`policy: auto`, and as many seconds before the window in which it learns; scenarios take longer by those. `--attacks`
runs adversarial traffic (`bench/no_regret/adversarial_workloads.py`).
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.common import console_of, parser_of, print_table, run_all, write_json
from bench.no_regret.adversarial_workloads import AttackTask, attacks, measure_attack
from bench.no_regret.baselines import AUTO, AWAY, DEFAULT, TRITON, Task, measure, verdict
from bench.no_regret.workloads import REQUESTS
from tidegate.sim.parallel import run_parallel

WORSE_THAN_TRITON, WORSE_THAN_BEST, GAIN, MEDIAN_RATIO, LIGHT = 1.0, 2.0, 13.0, 1.1, 0.3
"""Aims: maximum loss of attainment in points, minimum mean gain over Triton's best in points, maximum ratio of medians,
and the load up to which medians are compared.
"""
FACTS = (
    "workers",
    "models",
    "batching",
    "rows",
    "shapes",
    "cv",
    "stalls",
    "arrivals",
    "load",
    "profiles",
    "network_latency_ms",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the scenarios; print the aims, and every scenario that misses one."""
    parser = parser_of("bench.no_regret", __doc__, jobs=True)
    parser.add_argument("--count", type=int, help="scenarios; default 300. With --attacks: seeds; default 3")
    parser.add_argument("--seed", type=int, default=11, help="of the sample; default 11; 1 to 9 are for tuning")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"in each, at least; default {REQUESTS}")
    parser.add_argument(
        "--again", type=Path, help="a file that --json wrote: measure only the default and what is not there"
    )
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these scenarios of the sample")
    parser.add_argument("--tight", action="store_true", help="few workers, times that scatter, short SLOs")
    parser.add_argument("--near", action="store_true", help="no network between Tidegate and its Tritons")
    parser.add_argument("--learn", type=float, default=0.0, metavar="S", help="with `auto`, after seconds to learn; 60")
    parser.add_argument("--attacks", action="store_true", help="traffic that means harm, instead of random scenarios")
    options = parser.parse_args(arguments)
    before = _read(options.again) if options.again else {}
    console = console_of(160)
    if options.attacks:
        _attack(console, options.count or 3, options.jobs, options.json)
        return
    tasks = [
        Task(
            options.seed,
            number,
            options.requests,
            frozenset(before[number]["figures"]) if number in before else frozenset(),
            tight=options.tight,
            near=options.near,
            learning_s=options.learn,
        )
        for number in options.only or range(options.count or 300)
    ]
    rows = []
    for row in _with_progress(console, run_parallel(measure, tasks, jobs=options.jobs), len(tasks)):
        if known := before.get(row["number"]):
            row["figures"] = known["figures"] | row["figures"]
        rows.append({**row, "verdict": verdict(row)})
        write_json(options.json, {"seed": options.seed, "scenarios": rows})
    show(console, rows)
    if options.learn:
        console.print(f"{AUTO}:")
        show(console, [{**row, "verdict": verdict(row, AUTO)} for row in rows], AUTO)


def summary(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """Return for each aim its text, the figure measured, and whether it is met."""
    verdicts = [row["verdict"] for row in rows]
    over_triton, over_best = ([each[what] for each in verdicts] for what in ("over_triton", "over_best"))
    light = [row["verdict"]["median_ratio"] for row in rows if row["load"] <= LIGHT and row["verdict"]["median_ratio"]]
    worst = [each["worst_over_best"] for each in verdicts]
    below_triton = sum(points < -WORSE_THAN_TRITON for points in over_triton)
    below_best = sum(points < -WORSE_THAN_BEST for points in over_best)
    slow = sum(ratio > MEDIAN_RATIO for ratio in light)
    return [
        (
            f"none more than {WORSE_THAN_TRITON:g} point below the best of Triton's",
            f"{below_triton} of {len(rows)}, worst {min(over_triton):+.1f}",
            not below_triton,
        ),
        (
            f"none more than {WORSE_THAN_BEST:g} points below the best of all",
            f"{below_best} of {len(rows)}, worst {min(over_best):+.1f}",
            not below_best,
        ),
        (
            f"no scenario's worst model more than {WORSE_THAN_BEST:g} points below that of the best",
            f"{sum(points < -WORSE_THAN_BEST for points in worst)} of {len(rows)}, worst {min(worst):+.1f}",
            min(worst) >= -WORSE_THAN_BEST,
        ),
        (
            f"mean gain over the best of Triton's at least {GAIN:g} points",
            f"{fmean(over_triton):+.1f} (95 %: {_interval(over_triton)}); over the best of all {fmean(over_best):+.2f} "
            f"({_interval(over_best)})",
            fmean(over_triton) >= GAIN,
        ),
        (
            f"up to {LIGHT:.0%} of load median latency at most {MEDIAN_RATIO:g} of Triton's plain batcher",
            f"{slow} of {len(light)} above, median {median(light):.3f}, worst {max(light):.2f}"
            if light
            else "none seen",
            not slow,
        ),
    ]


def _interval(points: Sequence[float]) -> str:
    """95 % interval of the mean over scenarios, by a bootstrap over them (always the same draws)."""
    rng = Random(0)
    means = sorted(fmean(rng.choices(points, k=len(points))) for _ in range(2000))
    return f"{means[49]:+.1f} to {means[1949]:+.1f}"


def missed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the scenarios that miss an aim, the worst first."""
    return sorted(
        (
            row
            for row in rows
            if row["verdict"]["over_triton"] < -WORSE_THAN_TRITON
            or row["verdict"]["over_best"] < -WORSE_THAN_BEST
            or (row["load"] <= LIGHT and (row["verdict"]["median_ratio"] or 0) > MEDIAN_RATIO)
        ),
        key=lambda row: float(row["verdict"]["over_best"]),
    )


def regrets(rows: Sequence[dict[str, Any]]) -> list[tuple[str, float, int]]:
    """Return the regret of each policy, the least first: label, mean, and scenarios above `WORSE_THAN_BEST`.

    Regret is the percentage points of attainment below the best policy in hindsight. Only policies with the same
    network latency are compared: Triton's batcher is left out where its settings are policies of Tidegate, too.
    """
    below: dict[str, list[float]] = {}
    for row in rows:
        attained = {name: figure["attainment"] for name, figure in row["figures"].items()}
        if any(name.startswith(AWAY) for name in attained):
            attained = {name: share for name, share in attained.items() if not name.startswith(TRITON)}
        for name, share in attained.items():
            below.setdefault(name, []).append(100 * (max(attained.values()) - share))
    found = [
        (name, fmean(points), sum(each > WORSE_THAN_BEST for each in points))
        for name, points in below.items()
        if len(points) == len(rows)
    ]
    return sorted(found, key=lambda each: each[1])


def show(console: Console, rows: Sequence[dict[str, Any]], policy: str = DEFAULT) -> None:
    """Print the aims, the regret of each policy and the scenarios that miss an aim, as verdicts on `policy` say."""
    aims = ((aim, seen, "yes" if met else "no") for aim, seen, met in summary(rows))
    print_table(console, f"{len(rows)} scenarios", ("aim", "seen", "met"), aims)
    columns = ["policy", "mean points below the best", f"more than {WORSE_THAN_BEST:g}"]
    policies = ((name, f"{mean:.2f}", above) for name, mean, above in regrets(rows))
    print_table(console, "In the same place", columns, policies)
    misses = []
    for row in missed(rows):
        said = row["verdict"]
        misses.append(
            (
                row["number"],
                f"{said['over_triton']:+.1f}",
                f"{said['over_best']:+.1f}",
                said["best"],
                f"{said['median_ratio']:.2f}" if said["median_ratio"] else "",
                f"{row['figures'][policy]['attainment']:.1%}",
                *(row[fact] for fact in FACTS),
            )
        )
    columns = ["number", "over Triton", "over best", "best", "median", "attainment", *FACTS]
    print_table(console, "Misses", columns, misses)


def _attack(console: Console, seeds: int, jobs: int, file: Path | None) -> None:
    """Carry out all attacks, and mark those under which a client is worse off than behind Triton's batcher."""
    tasks = [AttackTask(attack, seeds) for attack in attacks()]
    rows = run_all(console, "attacks", measure_attack, tasks, jobs)
    write_json(file, {"seeds": seeds, "attacks": rows})
    lines = []
    for row in rows:
        ours, points = row["figures"][DEFAULT], [row["over_triton_honest"], row["over_triton_all"]]
        worse = min(points) < -WORSE_THAN_TRITON or (row["light"] and row["median_ratio"] > MEDIAN_RATIO)
        lines.append(
            (
                row["attack"],
                f"{ours['honest']:.1%}",
                f"{points[0]:+.1f}",
                f"{ours['all']:.1%}",
                f"{points[1]:+.1f}",
                f"{row['median_ratio']:.2f}",
                f"{ours['longest_ms']:.0f}",
                "worse" if worse else "",
            )
        )
    columns = ("attack", "honest", "over Triton", "all", "over Triton", "median", "longest ms", "")
    print_table(console, "Attacks", columns, lines)


def _read(file: Path) -> dict[int, dict[str, Any]]:
    return {row["number"]: row for row in json.loads(file.read_text())["scenarios"]}


def _with_progress(console: Console, rows: Iterator[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    columns = (TextColumn("scenarios"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield from progress.track(rows, total=total)


if __name__ == "__main__":
    main()
