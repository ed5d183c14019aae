"""How far off the fitted interference model is, over several ways to divide what was measured.

docs/results/inss.md has what it printed.

python -m bench.interference FOLDER     the folder with igniter_v100_solo.csv, _pairs.csv and _grid3x3.csv
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

from tidegate.schemas import InterferenceModel, NonDecreasingLine
from tidegate_loadtest.interference.fit import constant_factors, fit, transfers, with_compute
from tidegate_loadtest.interference.held_out import (
    RelativeErrors,
    by_constant,
    by_model,
    by_nothing,
    errors_alone,
    errors_by_model,
    few_of_each,
    split,
)
from tidegate_loadtest.interference.runs import CoRun, SoloRun, read_co_runs, read_compute, read_solo

GPU = "V100"
FEW_BATCHES, FEW_SHARES = (1, 8, 16, 32), (20, 40, 60, 80)
HELD_OUT, SEEDS, FEW = 0.3, range(10), 3

Fit = Callable[[Sequence[CoRun]], InterferenceModel]
Split = tuple[list[CoRun], list[CoRun]]


def ways_to_predict(
    company: Fit, without: Fit, fitted: Sequence[CoRun], held: Sequence[CoRun]
) -> dict[str, RelativeErrors]:
    """The errors on all co-runs held out, by way to predict them."""
    model = company(fitted)
    return {
        "model": errors_by_model(by_model(model), held)[""],
        "InSS's own form": errors_by_model(by_model(without(fitted)), held)[""],
        "constant factor": errors_by_model(by_constant(model, constant_factors(model, fitted)), held)[""],
        "no interference": errors_by_model(by_nothing(model), held)[""],
    }


def pairs_never_seen(co_runs: Sequence[CoRun]) -> Iterator[Split]:
    """Each pair of models held out in turn: all that is known of it is what its members do beside others."""
    names = sorted({tenant.partition for run in co_runs for tenant in run.tenants})
    for pair in combinations_with_replacement(names, 2):
        held = [run for run in co_runs if sorted(tenant.partition for tenant in run.tenants) == list(pair)]
        if held:
            yield [run for run in co_runs if run not in held], held


def few_and_the_others(co_runs: Sequence[CoRun], seed: int) -> Split:
    """Three co-runs of each model, as InSS asks for, and all others."""
    few = few_of_each(co_runs, FEW, seed)
    return few, [run for run in co_runs if run not in few]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    solo = read_solo(folder / "igniter_v100_solo.csv", GPU)
    solo = with_compute(solo, read_compute(folder / "igniter_v100_grid3x3.csv", GPU))
    co_runs = read_co_runs(folder / "igniter_v100_pairs.csv", GPU)
    buses = transfers(solo)
    few = [run for run in solo if run.rows in FEW_BATCHES and run.percent in FEW_SHARES]
    console = Console(width=160)
    console.print(_of_models(few, solo, co_runs, buses))
    splits = [split(co_runs, HELD_OUT, seed) for seed in SEEDS]
    console.print(_over("16 solo runs, 70 % of the co-runs, ten seeds", few, splits, buses))
    console.print(_over("all solo runs, 70 % of the co-runs, ten seeds", solo, splits, buses))
    threes = [few_and_the_others(co_runs, seed) for seed in SEEDS]
    console.print(_over("16 solo runs, three co-runs of each model, ten seeds", few, threes, buses))
    unseen = [*pairs_never_seen(co_runs)]
    console.print(_over(f"16 solo runs, each of {len(unseen)} pairs of models never seen together", few, unseen, buses))


def _of_models(
    few: Sequence[SoloRun], solo: Sequence[SoloRun], co_runs: Sequence[CoRun], buses: dict[str, NonDecreasingLine]
) -> Table:
    fitted, held = split(co_runs, HELD_OUT, 0)
    model = fit(few, fitted, GPU, buses=buses)
    alone = errors_alone(model, [run for run in solo if run not in few and run.percent in (*FEW_SHARES, 50)])
    beside = errors_by_model(by_model(model), held)
    constant = errors_by_model(by_constant(model, constant_factors(model, fitted)), held)
    none = errors_by_model(by_nothing(model), held)
    table = Table("", "alone", "beside: model", "constant factor", "no interference", "cache", "dram", "neighbor")
    for name, each in beside.items():
        minds = [*model.models[name].sensitivity.model_dump().values()] if name else []
        columns = (alone[name], each, constant[name], none[name])
        table.add_row(name or "all", *map(_cell, columns), *(f"{value:.5f}" for value in minds))
    return table


def _over(title: str, solo: Sequence[SoloRun], splits: Sequence[Split], buses: dict[str, NonDecreasingLine]) -> Table:
    """Mean and standard deviation, over the splits, of the mean error and its 95th percentile; the largest of all."""

    def company(runs: Sequence[CoRun]) -> InterferenceModel:
        return fit(solo, runs, GPU, buses=buses)

    def without(runs: Sequence[CoRun]) -> InterferenceModel:
        return fit(solo, runs, GPU, buses=buses, company=False)

    found = [ways_to_predict(company, without, fitted, held) for fitted, held in splits]
    table = Table("", "mean", "p95", "largest", title=title)
    for way in found[0]:
        means, p95s = [each[way].mean for each in found], [each[way].p95 for each in found]
        spread = [f"{mean(values):.2%} ± {stdev(values):.2%}" for values in (means, p95s)]
        table.add_row(way, *spread, f"{max(each[way].largest for each in found):.1%}")
    return table


def _cell(errors: RelativeErrors) -> str:
    return f"{errors.mean:.1%} / {errors.p95:.1%} / {errors.largest:.1%}"


if __name__ == "__main__":
    main()
