"""`tidegate goodput`: the highest rate that a policy sustains within a limit of bad requests."""

from pathlib import Path
from typing import Annotated

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
)
from tidegate.parallel_backend import Backend


def goodput(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML); the search begins at its rate.")],
    policy: PoliciesOption = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Seed of a run. Repeatable. [default: five, from the scenario's on]")
    ] = None,
    changes: ChangesOption = None,
    limit: Annotated[
        float,
        typer.Option(min=0, max=1, help="Highest fraction of bad requests (late, dropped, failed) of every model."),
    ] = 0.01,
    tolerance: Annotated[
        float, typer.Option(min=1e-5, max=1, help="Relative tolerance of the rate that is found.")
    ] = 0.005,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    jobs: JobsOption = -1,
    backend: BackendOption = Backend.processes,
    address: AddressOption = None,
) -> None:
    """Search the highest rate within a limit of bad requests.

    Search the highest rate at which every model keeps its bad rate (late, dropped or failed) within a limit.

    Each seed is searched for itself: some policies fall off a cliff, and where depends on luck. Example:

    tidegate goodput scenario.yaml --policy symphony
    """
    from rich.table import Table

    from tidegate.commands.common import (
        console_for_tables,
        errors_explained,
        origin,
        title_of,
        with_progress,
        write_results,
    )

    console = console_for_tables(quiet=as_json)
    with errors_explained():
        from tidegate.sim.document import goodput_document
        from tidegate.sim.goodput import GoodputQuery, search_goodput, summarize_searches
        from tidegate.sim.parallel import run_parallel
        from tidegate.sim.report import goodput_page
        from tidegate.sim.run import RunSpec, choose_policies, parse_changes
        from tidegate.sim.verdicts import goodput_verdicts, impossible_slos
        from tidegate.workload import read_scenario

        document = read_scenario(scenario, parse_changes(changes or ()))
        questions = [
            GoodputQuery(
                RunSpec(document, choice, number), limit, tolerance, whole=as_json or bool(html_file or output)
            )
            for choice in choose_policies(document, policy or ())
            for number in seed or range(document.seed, document.seed + 5)
        ]
        searches = run_parallel(search_goodput, questions, jobs=jobs, backend=backend, address=address)
        found = summarize_searches(with_progress(console, "searching", searches, len(questions)))
        table = Table("policy", "median /s", "least", "most", "spread", "seeds")
        table.title = f"{title_of(document)}; at most {limit:g} bad of every model"
        for column in table.columns[1:]:
            column.justify = "right"
        for goodput in found:
            spread = (goodput.max_rps - goodput.min_rps) / goodput.median_rps if goodput.median_rps else 0.0
            above = "" if all(search.bounded for search in goodput.searches) else "≥ "
            table.add_row(
                goodput.policy,
                f"{above}{goodput.median_rps:,.0f}",
                f"{goodput.min_rps:,.0f}",
                f"{goodput.max_rps:,.0f}",
                f"{spread:.1%}",
                str(len(goodput.searches)),
            )
        console.print(table)
        for verdict in (*goodput_verdicts(found, limit), *impossible_slos(document)):
            console.print(verdict, style="bold", markup=False)
        written = goodput_document(document, found, limit=limit, tolerance=tolerance)
        write_results(
            console,
            written,
            output,
            html_file,
            lambda: goodput_page(title_of(document), found, limit, written, origin()),
            as_json=as_json,
        )
