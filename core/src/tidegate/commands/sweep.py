"""`tidegate sweep`: simulates a scenario for a grid of changes."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    AddressOption,
    BackendOption,
    HtmlOption,
    JobsOption,
    JsonFlag,
    OutputOption,
    PoliciesOption,
    SeedsOption,
)
from tidegate.parallel_backend import Backend

if TYPE_CHECKING:
    from tidegate.commands.common import TableColumn
    from tidegate.sim.result import RunResult
    from tidegate.sim.run import RunSpec


def sweep(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PATH=V1,V2,...",
            help="Values of a field of the scenario. Repeatable: every combination is simulated.",
        ),
    ],
    policy: PoliciesOption = None,
    seed: SeedsOption = None,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    jobs: JobsOption = -1,
    backend: BackendOption = Backend.processes,
    address: AddressOption = None,
) -> None:
    """Simulate a scenario for every combination of settings.

    A path names a field as in the file, entries of lists by their number or all of them by `*`. Example:

    tidegate sweep scenario.yaml --set arrivals.rate_rps=4000,5000,6000 --set workers.0.count=8,9
    """
    from tidegate.commands.common import (
        TableColumn,
        console_for_tables,
        errors_explained,
        origin,
        print_table,
        result_columns,
        title_of,
        with_progress,
        write_results,
    )

    console = console_for_tables(quiet=as_json)
    with errors_explained():
        from tidegate.sim.document import sweep_document
        from tidegate.sim.parallel import run_parallel
        from tidegate.sim.run import parse_grid, simulate, sweep_runs
        from tidegate.sim.sweep_report import sweep_page
        from tidegate.workload import read_scenario

        grid = parse_grid(changes)
        runs = sweep_runs(scenario, grid, policies=policy or (), seeds=seed or ())
        document = read_scenario(scenario)
        outcomes = run_parallel(simulate, runs, jobs=jobs, backend=backend, address=address)
        results = with_progress(console, "simulating", outcomes, len(runs))
        columns = [TableColumn(path, partial(_change, path)) for path in grid]
        columns += [
            TableColumn(column.heading, partial(_figure, column), column.priority) for column in result_columns(results)
        ]
        print_table(console, columns, list(zip(runs, results, strict=True)), title_of(document))
        written = sweep_document(document, runs, results)
        write_results(
            console,
            written,
            output,
            html_file,
            lambda: sweep_page(title_of(document), runs, results, written, origin()),
            as_json=as_json,
        )


def _change(path: str, pair: "tuple[RunSpec, RunResult]") -> str:
    return str(pair[0].changes[path])


def _figure(column: "TableColumn", pair: "tuple[RunSpec, RunResult]") -> str:
    return column.cell(pair[1])
