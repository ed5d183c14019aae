"""HTML page of a scenario that was run, simulated or live."""

from collections.abc import Mapping, Sequence

from tidegate.report import Colors, Page, PageOrigin, PageSection, table
from tidegate.sim import charts
from tidegate.sim.document import Document, rows_csv
from tidegate.sim.gantt_charts import gantt_charts
from tidegate.sim.result import RunResult
from tidegate.sim.tables import advice_section, changes_section, downloads, figures_table, models_section
from tidegate.sim.tenant_results import TENANT_COLUMNS, tenant_lines
from tidegate.sim.verdicts import by_policy, simulate_verdicts
from tidegate.workload import Scenario, layout_of


def simulate_page(
    title: str,
    scenario: Scenario,
    results: Sequence[RunResult],
    document: Document,
    origin: PageOrigin,
    *,
    target: str | None = None,
    verdicts: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> str:
    """Return the page of `tidegate simulate` or `tidegate loadtest`.

    `document`: results as JSON, for download. `target`: server that was measured; None: workers were simulated or
    emulated. `verdicts`: sentences at the top; None: those of a simulation. `facts`: further lines at
    the end of the page.
    """
    colors = Colors((model.name for model in scenario.models), (result.total.policy for result in results))
    slos_ms = scenario.slos_ms
    several = by_policy(results)
    found = [
        charts.outcomes(results),
        charts.latency_curves(results, colors),
        charts.attainment_over_time(results, colors),
        charts.waiting_and_executing(results, slos_ms),
        PageSection("The figures", figures_table(results)),
        models_section(results, slos_ms) if len(scenario.models) > 1 else None,
        PageSection("Tenants", table(list(TENANT_COLUMNS), lines)) if (lines := tenant_lines(results)) else None,
        charts.batch_sizes(results),
        charts.busy_workers(results),
        *gantt_charts(results, colors),
        *(part for result in results for part in (advice_section(result), changes_section(result))),
    ]
    return Page(
        title,
        simulate_verdicts(scenario, results, workers=None if target else len(layout_of(scenario).workers))
        if verdicts is None
        else verdicts,
        origin,
        {
            "Policies": ", ".join(several) if target is None else "as the server has it",
            "Seeds": ", ".join(dict.fromkeys(str(result.total.seed) for result in results)),
            **({"Server": target} if target else {}),
            **(facts or {}),
        },
        document["scenario"],
        [each for each in found if each],
        (),
        downloads(document, rows_csv([row for result in results for row in result.rows])),
    ).html()
