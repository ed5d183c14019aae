"""Command `tidegate fit-interference`: writes an interference file from measured runs of models on one GPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.commands.flags import check_output_file

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate_loadtest.interference.held_out import RelativeErrors
    from tidegate_loadtest.interference.runs import SoloRun

N = TypeVar("N", int, float)


def fit_interference(
    solo: Annotated[
        Path,
        typer.Option(
            metavar="CSV",
            help="Standalone runs: model,batch,share_pct,latency_ms and, where measured, l2_util_pct, "
            "dram_util_pct, gpu_latency_ms.",
        ),
    ],
    co_runs: Annotated[
        Path,
        typer.Option(
            metavar="CSV",
            help="Co-located runs: run,model,batch,share_pct,latency_ms, a line for each model; or two in a "
            "line: model1,model2,batch1,batch2,share1_pct,share2_pct,latency1_ms,latency2_ms.",
        ),
    ],
    gpu: Annotated[
        str, typer.Option(help="GPU that the models ran on, as a device's product is written: V100, or A100/3g.20gb.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the interference model to this file.", callback=check_output_file),
    ],
    compute: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="GPU time of the standalone runs, where --solo lacks it: model,batch,share_pct,gpu_latency_ms.",
        ),
    ] = None,
    solo_rows: Annotated[
        str | None,
        typer.Option(help="Batch sizes to fit, e.g. 1,8,16,32; the other standalone runs test the fit. [default: all]"),
    ] = None,
    solo_shares: Annotated[
        str | None,
        typer.Option(
            help="GPU shares to fit, in percent, e.g. 20,40,60,80; the other standalone runs test the fit. "
            "[default: all]"
        ),
    ] = None,
    hold_out: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Fraction of the co-located runs that tests the fit.")
    ] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="Seed that draws the co-located runs of --hold-out.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the errors as JSON, and no table.")] = False,
) -> None:
    """Fit how models on one GPU slow each other down.

    Fits an interference model of shares of a GPU (InSS, section 4) to measured runs, and reports its errors.

    The errors are those on co-runs that were held out, beside two controls: a constant factor for each model, and no
    interference at all. The file that is written is fitted to all co-runs. Examples:

    tidegate fit-interference --gpu V100 --solo solo.csv --co-runs pairs.csv -o v100.json

    tidegate fit-interference --gpu V100 --solo solo.csv --co-runs pairs.csv --solo-rows 1,8,16,32 -o v100.json
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from tidegate.commands.common import console_for_tables, describe_error
    from tidegate.schemas import write_document
    from tidegate_loadtest.interference.fit import constant_factors, fit, transfers, unseen_models, with_compute
    from tidegate_loadtest.interference.held_out import (
        by_constant,
        by_model,
        by_nothing,
        errors_alone,
        errors_by_model,
        split,
    )
    from tidegate_loadtest.interference.runs import RunsError, read_co_runs, read_compute, read_solo

    batches, shares = _numbers(solo_rows, int, "--solo-rows"), _numbers(solo_shares, float, "--solo-shares")
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        alone, together = read_solo(solo, gpu), read_co_runs(co_runs, gpu)
        if compute is not None:
            alone = with_compute(alone, read_compute(compute, gpu))
        buses = transfers(alone)
        chosen = [run for run in alone if _is_chosen(run, batches, shares)]
        if not chosen:
            raise RunsError(f"{solo}: --solo-rows and --solo-shares leave no run: choose among those that it has")
        final = fit(chosen, together, gpu, buses=buses)
        fitted, held = split(together, hold_out, seed)
        try:
            judged = fit(chosen, fitted, gpu, buses=buses)
        except RunsError as error:
            raise RunsError(
                f"{co_runs}: with {len(held)} of {len(together)} co-runs held out there are too few: {error}; or hold "
                "none out: --hold-out 0"
            ) from error
        factors = constant_factors(judged, fitted)
        beside = {
            "interference model": errors_by_model(by_model(judged), held),
            "constant factor": errors_by_model(by_constant(judged, factors), held),
            "no interference": errors_by_model(by_nothing(judged), held),
        }
        others = errors_alone(judged, [run for run in alone if run not in chosen])
        if held:
            final = final.model_copy(update={"held_out": beside["interference model"][""].document()})
        write_document(output, final)
    except (RunsError, OSError) as error:
        errors.print(f"error: {describe_error(error)}", style="red")
        raise typer.Exit(1) from error
    if unseen := unseen_models(chosen):
        errors.print(
            f"note: no l2_util_pct and no dram_util_pct of {', '.join(unseen)}: what neighbors feel of them is "
            "learned from the co-runs"
        )
    if as_json:
        found = {**beside, "alone": others}
        typer.echo(
            json.dumps({what: {name: asdict(each) for name, each in mine.items()} for what, mine in found.items()})
        )
        return
    console = console_for_tables()
    if others:
        console.print(_table(f"alone: {len(chosen)} runs fitted, error on the others", {"alone": others}))
    if held:
        title = f"beside each other: {len(fitted)} co-runs fitted, error on {len(held)} held out (seed {seed})"
        console.print(_table(title, beside))
        console.print("InSS reports 0.03 to 4.97 % of its own on an A100 (28 cases, tables 3 and 4).", style="dim")
    console.print(f"interference file: {output}", markup=False, style="dim")


def _is_chosen(run: "SoloRun", batches: Sequence[int] | None, shares: Sequence[float] | None) -> bool:
    return (batches is None or run.rows in batches) and (shares is None or run.percent in shares)


def _numbers(text: str | None, number: Callable[[str], N], option: str) -> list[N] | None:
    if text is None:
        return None
    try:
        return [number(each) for each in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of numbers", param_hint=option) from error


def _table(title: str, columns: dict[str, dict[str, "RelativeErrors"]]) -> "Table":
    """Mean, 95th percentile and largest error, by model, for each way to predict."""
    from rich.table import Table

    table = Table("model", "measured", *(f"{what}\nmean / p95 / largest" for what in columns), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    first = next(iter(columns.values()))
    for name, errors in first.items():
        if not name:
            table.add_section()
        cells = (mine[name] for mine in columns.values())
        table.add_row(
            name or "all",
            str(errors.runs),
            *(f"{each.mean:.1%} / {each.p95:.1%} / {each.largest:.1%}" for each in cells),
        )
    return table
