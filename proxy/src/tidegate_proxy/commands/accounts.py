"""Command `tidegate accounts`: GPU time and cost of tenants between two scrapes of the metrics."""

from pathlib import Path
from typing import Annotated, Final

import typer

_GPU: Final = "tidegate_gpu_seconds_total"
_COST: Final = "tidegate_gpu_cost_total"
_REJECTED: Final = "tidegate_rate_limit_rejections_total"
_HOUR_S: Final = 3600.0
Series = dict[tuple[str, str, str], float]
"""Values by metric, tenant and model."""


def accounts(
    first: Annotated[Path, typer.Argument(help="Metrics page at the beginning of the period, in a file.")],
    last: Annotated[Path, typer.Argument(help="Metrics page at its end, in a file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the GPU time and cost of tenants.

    The report is for chargeback or showback, by tenant and model. It reads two pages that curl or a cron job stored, a
    day apart for example. Counters that a restart has set back count from zero. Costs are there if the configuration
    has `prices`. Example:

    curl -s localhost:8102/metrics > monday.prom

    tidegate accounts monday.prom tuesday.prom
    """
    from rich.console import Console
    from rich.table import Table

    from tidegate.commands.common import describe_error

    try:
        rows = account_rows(_series(first), _series(last))
    except (OSError, ValueError) as error:
        Console(stderr=True, soft_wrap=True, markup=False).print(f"error: {describe_error(error)}", style="red")
        raise typer.Exit(1) from error
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(*("tenant", "model", "GPU hours", "of all", "cost", "rejected"))
    total = sum(float(row["gpu_s"] or 0) for row in rows) or 1.0
    for row in rows:
        gpu_s, cost = float(row["gpu_s"] or 0), row["cost"]
        table.add_row(
            str(row["tenant"]),
            str(row["model"]),
            f"{gpu_s / _HOUR_S:.3f}",
            f"{100 * gpu_s / total:.1f} %",
            "" if cost is None else f"{cost:.2f}",
            "" if row["rejected"] is None else f"{row['rejected']:.0f}",
        )
    Console(soft_wrap=True).print(table)


def account_rows(first: Series, last: Series) -> list[dict[str, str | float | None]]:
    """Return a row for each tenant and model, the most GPU time first, then one for each tenant with rejections.

    `first`, `last`: values at the beginning and at the end of the period.
    """
    grown = {key: value - before if (before := first.get(key, 0.0)) <= value else value for key, value in last.items()}
    rows: list[dict[str, str | float | None]] = [
        {"tenant": tenant, "model": model, "gpu_s": value, "cost": grown.get((_COST, tenant, model)), "rejected": None}
        for (metric, tenant, model), value in grown.items()
        if metric == _GPU
    ]
    rows.sort(key=lambda row: (-float(row["gpu_s"] or 0), str(row["tenant"]), str(row["model"])))
    return rows + [
        {"tenant": tenant, "model": "", "gpu_s": 0.0, "cost": None, "rejected": value}
        for (metric, tenant, _), value in sorted(grown.items())
        if metric == _REJECTED and value
    ]


def _series(page: Path) -> Series:
    """Read the accounts of a metrics page. Raises OSError, and ValueError for a page of something else."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Series = {}
    remedy = "give a page of `curl localhost:8102/metrics`"
    try:
        families = [*text_string_to_metric_families(page.read_text(encoding="utf-8"))]
    except ValueError as error:
        raise ValueError(f"{page}: it is no page of metrics; {remedy}") from error
    for sample in (sample for family in families for sample in family.samples):
        if sample.name in (_GPU, _COST, _REJECTED):
            key = sample.name, sample.labels.get("tenant", ""), sample.labels.get("model", "")
            found[key] = found.get(key, 0.0) + sample.value
    if not any(metric == _GPU for metric, _, _ in found):
        raise ValueError(f"{page}: it has no {_GPU}; {remedy}")
    return found
