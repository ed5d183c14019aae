"""`tidegate simulate`: runs a scenario in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    AddressOption,
    BackendOption,
    ChangesOption,
    HtmlOption,
    JobsOption,
    JsonFlag,
    OutputOption,
    PoliciesOption,
    SeedsOption,
)
from tidegate.parallel_backend import Backend

if TYPE_CHECKING:
    from tidegate.sim.result import SimulatedLayoutChange


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    policy: PoliciesOption = None,
    seed: SeedsOption = None,
    changes: ChangesOption = None,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    jobs: JobsOption = -1,
    backend: BackendOption = Backend.processes,
    address: AddressOption = None,
) -> None:
    """Simulate a scenario under its policies.

    Run a scenario under virtual time, with the very engine and policies that run live.

    Only the workers are simulated: they take as long as the scenario says. Example:

    tidegate simulate scenario.yaml --policy symphony --html report.html
    """
    from tidegate.commands.common import (
        console_for_tables,
        errors_explained,
        origin,
        print_table,
        print_tenants,
        result_columns,
        title_of,
        with_progress,
        write_results,
    )

    console = console_for_tables(quiet=as_json)
    with errors_explained():
        from tidegate.sim.document import simulate_document
        from tidegate.sim.parallel import run_parallel
        from tidegate.sim.report import simulate_page
        from tidegate.sim.run import RunSpec, choose_policies, parse_changes
        from tidegate.sim.run import simulate as simulate_run
        from tidegate.sim.verdicts import simulate_verdicts
        from tidegate.workload import layout_of, read_scenario

        document = read_scenario(scenario, parse_changes(changes or ()))
        gantt_s = 2.0 if html_file else 0.0
        runs = [
            RunSpec(document, choice, number, gantt_s=gantt_s)
            for choice in choose_policies(document, policy or ())
            for number in seed or [document.seed]
        ]
        outcomes = run_parallel(simulate_run, runs, jobs=jobs, backend=backend, address=address)
        results = with_progress(console, "simulating", outcomes, len(runs))
        print_table(console, result_columns(results), results, title_of(document))
        print_tenants(console, results)
        for verdict in simulate_verdicts(document, results, workers=len(layout_of(document).workers)):
            console.print(verdict, style="bold", markup=False)
        for result in results:
            for change in result.changes:
                console.print(f"{result.total.policy}, seed {result.total.seed}: {_in_words(change)}", markup=False)
        found = simulate_document(document, results)
        write_results(
            console,
            found,
            output,
            html_file,
            lambda: simulate_page(title_of(document), document, results, found, origin()),
            as_json=as_json,
        )


def _in_words(change: "SimulatedLayoutChange") -> str:
    """A state that a change of the layout reached; of a dry run, what it would do."""
    starts = f"start {', '.join(change.starts)}" if change.starts else ""
    stops = f"stop {', '.join(change.stops)}" if change.stops else ""
    does = "; ".join(filter(None, (starts, stops))) or "other batches on the same workers"
    would = "would " if change.state == "proposed" else ""
    why = f": {change.reason}" if change.reason else ""
    number = f"change {change.change} " if change.change else "a change was "
    return f"{change.at_s:9.3f} s: {number}{change.state} ({would}{does}){why}"
