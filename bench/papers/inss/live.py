"""Ten minutes on emulated GPUs whose load changes every 30 s: one plan, and controllers that follow the load.

    python -m bench.papers.inss.live --data DIR [--seconds S] [--stretch TIMES] [--json FILE]

Each way in turn: `tidegate up` starts a real tritonserver for every share of two emulated GPUs, which slow each other
down as the interference model says, and the controller that is asked for starts and stops more of them. DIR holds
iGniter's measurements, as for `python -m bench.papers.inss`. All takes `--stretch` times as long as it was measured,
and as many times fewer requests come: processes are asleep for most of their time, so that two cores do. The same is
simulated, for comparison. It fails where a request is lost.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from bench.papers.inss.changing import CONTROLLERS, POLICY, Followed, Hour, follow, followed, scenario_of
from bench.papers.inss.outcomes import Load
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import LiveRun, run_live

NAMES = ("alexnet", "resnet50", "vgg19", "mobilenet")
GPUS, SCALE, SEED = 2, 0.7, 0
WAYS = {"one plan": None} | {name: name for name in CONTROLLERS if name}
LATENESS_MS = 50.0
"""The 99th percentile of the generator's lateness that is no matter: SLOs are twenty times the measured ones."""


@dataclass(frozen=True)
class Compared:
    """What came of a way, live and simulated."""

    live: Followed
    simulated: Followed
    generator_late_ms: float
    """The 99th percentile of how much later than due requests were sent."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run them one after the other, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.papers.inss.live", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the measurements")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="of each way; default 600")
    parser.add_argument("--stretch", type=float, default=20.0, metavar="TIMES", help="default 20")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS), help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and event logs there")
    options = parser.parse_args(arguments)
    if not (options.data / "igniter_v100_solo.csv").exists():
        parser.error("--data: no igniter_v100_solo.csv: give the folder with the files that docs/results/inss.md names")
    console = Console(width=None if os.isatty(1) else 150)
    found = {}
    for way in options.ways:
        load = Load(options.data, NAMES, GPUS, SEED, SCALE)
        hour = Hour(load, options.seconds, WAYS[way], options.stretch)
        live, late_ms = _live(hour, None if options.keep is None else options.keep / way.replace(" ", "-"))
        found[way] = Compared(live, follow(hour), late_ms)
        console.print(f"{way}: {live.late:.2%} late, {live.changes} changes, {live.lost} lost")
        if options.json:
            figures = {name: asdict(each) for name, each in found.items()}
            options.json.write_text(json.dumps(figures, indent=1) + "\n")
    columns = ("late %", "worst model %", "GPUs", "changes", "s to the switch", "undone", "lost", "simulated: late %")
    table = Table("", *columns, title=f"{options.seconds:g} s, rates change every 30 s")
    for way, both in found.items():
        live, simulated = both.live, both.simulated
        table.add_row(
            way,
            f"{100 * live.late:.2f}",
            f"{100 * live.worst:.2f}",
            f"{live.gpus:.2f}",
            str(live.changes),
            f"{median(live.taken_s):.1f}, at most {max(live.taken_s):.1f}" if live.taken_s else "-",
            str(live.undone),
            str(live.lost),
            f"{100 * simulated.late:.2f} ({simulated.changes} changes)",
        )
    console.print(table)
    if lost := sum(both.live.lost for both in found.values()):
        sys.exit(f"{lost} requests were lost")


def _live(hour: Hour, keep: Path | None) -> tuple[Followed, float]:
    """What came of it, and the 99th percentile of the generator's lateness."""
    with TemporaryDirectory(prefix="tidegate-bench-") as folder:
        scenario = scenario_of(hour, Path(folder))
        work = keep or Path(folder) / "work"
        work.mkdir(parents=True)
        run = LiveRun(scenario, POLICY, hour.load.seed, SendingOptions({}, lateness_limit_ms=LATENESS_MS))
        result = run_live(run, work=work).result
    return followed(result), result.rows[0].lateness_p99_ms or 0.0


if __name__ == "__main__":
    main()
