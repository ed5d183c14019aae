"""Hazards for a Tidegate under load, and what clients observe. Simpler hazards are covered by tests.

    python -m bench.faults [--only NAME ...] [--quick] [--json FILE]

Every hazard runs with real Tritons and `tidegate serve` as a process of its own. Keep the machine otherwise idle. Fails
if the aim of any hazard is missed.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.fault_injection import NAMES, hazards
from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig


def bench_faults(console: Console, chosen: list[Hazard], *, quick: bool) -> dict[str, dict[str, Any]]:
    """Run hazards and print a table; return their measurements by name.

    Args:
        console: where the table is printed.
        chosen: the hazards.
        quick: fewer requests and shorter runs.
    """
    reports: dict[str, dict[str, Any]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(chosen))
        for hazard in chosen:

            def tell(words: str, name: str = hazard.name) -> None:
                progress.update(task, description=f"{name}: {words}" if words else name)

            tell("")
            began_s = time.monotonic()
            result = _run(hazard, tell, quick=quick)
            reports[hazard.name] = {
                "what": hazard.what,
                "aim": hazard.aim,
                "after": result.after,
                "holds": result.holds,
                "took_s": time.monotonic() - began_s,
                "load": os.getloadavg()[0],
                "figures": result.figures,
            }
            progress.advance(task)
            if not console.is_terminal:
                console.print(f"{hazard.name}: {'holds' if result.holds else 'FAILS'}: {result.after}", markup=False)
    _show(console, reports)
    return reports


def _run(hazard: Hazard, tell: Any, *, quick: bool) -> Result:  # noqa: ANN401
    """Run one; whatever goes wrong with it is a hazard that does not hold."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as work, ExitStack() as running:
        try:
            return hazard.run(Rig(Path(work), running, quick=quick, tell=tell))
        except (Exception, SystemExit) as error:
            return Result(f"broke: {type(error).__name__}: {error}", holds=False)


def _show(console: Console, reports: dict[str, dict[str, Any]]) -> None:
    table = Table("hazard", "measured", "", show_lines=True)
    for name, report in reports.items():
        holds = "[green]holds" if report["holds"] else f"[red]FAILS[/]: {report['aim']}"
        table.add_row(f"{name}\n[dim]{report['what']}", report["after"], holds)
    console.print(table)


def main() -> None:
    """Run the hazards, print the table and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="fewer requests, shorter runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 120)
    chosen = [hazard for hazard in hazards() if hazard.name in arguments.only]
    reports = bench_faults(console, chosen, quick=arguments.quick)
    if arguments.json:
        arguments.json.write_text(json.dumps(reports, indent=2) + "\n")
    if failing := [name for name, report in reports.items() if not report["holds"]]:
        raise SystemExit(f"does not hold: {', '.join(failing)}")


if __name__ == "__main__":
    main()
