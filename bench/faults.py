"""Hazards for a Tidegate under load, and what clients observe. Simpler hazards are covered by tests.

    python -m bench.faults [--only NAME ...] [--quick] [--json FILE]

Every hazard runs with real Tritons and `tidegate serve` as a process of its own. Keep the machine otherwise idle. Fails
if the aim of any hazard is missed.
"""

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.common import console_of, parser_of, print_table, write_json
from bench.fault_injection.hazards import HAZARDS, Hazard, Result
from bench.fault_injection.rig import Rig


def bench_faults(console: Console, chosen: list[Hazard], *, quick: bool) -> dict[str, dict[str, Any]]:
    """Run hazards and print a table; return their measurements by name.

    `chosen`: the hazards; `quick`: fewer requests and shorter runs.
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
    rows = (
        (name, each["what"], each["after"], "holds" if each["holds"] else f"FAILS: {each['aim']}")
        for name, each in reports.items()
    )
    print_table(console, None, ("hazard", "fault", "measured", ""), rows)
    return reports


def _run(hazard: Hazard, tell: Any, *, quick: bool) -> Result:  # noqa: ANN401
    """Run one; whatever goes wrong with it is a hazard that does not hold."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as work, ExitStack() as running:
        try:
            return hazard.run(Rig(Path(work), running, quick=quick, tell=tell))
        except (Exception, SystemExit) as error:
            return Result(f"broke: {type(error).__name__}: {error}", holds=False)


def main() -> None:
    """Run the hazards, print the table and write the figures."""
    names = [hazard.name for hazard in HAZARDS]
    parser = parser_of("bench.faults", __doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer requests, shorter runs")
    arguments = parser.parse_args()
    chosen = [hazard for hazard in HAZARDS if hazard.name in arguments.only]
    reports = bench_faults(console_of(120), chosen, quick=arguments.quick)
    write_json(arguments.json, reports)
    if failing := [name for name, report in reports.items() if not report["holds"]]:
        raise SystemExit(f"does not hold: {', '.join(failing)}")


if __name__ == "__main__":
    main()
