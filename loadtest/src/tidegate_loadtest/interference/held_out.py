"""How good a fitted model is: its errors on runs that it was not fitted to, beside those of controls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from tidegate.schemas import HeldOut, InterferenceModel, Tenant
from tidegate_loadtest.interference.runs import CoRun, SoloRun

Predict = Callable[[Tenant, tuple[Tenant, ...]], float]
"""Milliseconds of a batch beside neighbors."""


@dataclass(frozen=True)
class RelativeErrors:
    """Relative errors, |predicted - measured| / measured, of some runs."""

    runs: int
    mean: float
    p95: float
    largest: float

    def document(self) -> HeldOut:
        """The same as the interference file has it."""
        return HeldOut(runs=self.runs, mean=self.mean, p95=self.p95)


def split(co_runs: Sequence[CoRun], share: float, seed: int) -> tuple[list[CoRun], list[CoRun]]:
    """What to fit to, and what to hold out: so large a share of the runs, drawn by the seed, with all their sides."""
    held = set(Random(seed).sample(range(len(co_runs)), round(share * len(co_runs))))
    return (
        [run for at, run in enumerate(co_runs) if at not in held],
        [run for at, run in enumerate(co_runs) if at in held],
    )


def few_of_each(co_runs: Sequence[CoRun], number: int, seed: int) -> list[CoRun]:
    """So many runs for each model, drawn by the seed: those of InSS are three."""
    names = sorted({tenant.partition for run in co_runs for tenant in run.tenants})
    rng, chosen = Random(seed), set[int]()
    for name in names:
        mine = [at for at, run in enumerate(co_runs) if any(tenant.partition == name for tenant in run.tenants)]
        chosen.update(rng.sample(mine, min(number, len(mine))))
    return [co_runs[at] for at in sorted(chosen)]


def by_model(model: InterferenceModel) -> Predict:
    """What the fitted model says."""
    return model.expected_ms


def by_constant(model: InterferenceModel, factors: Mapping[str, float]) -> Predict:
    """What the control says: a factor on what the fitted model says of the batch alone."""
    return lambda tenant, _: model.alone(tenant).taken_ms * factors[tenant.partition]


def by_nothing(model: InterferenceModel) -> Predict:
    """What is said by who knows of no neighbors."""
    return lambda tenant, _: model.alone(tenant).taken_ms


def errors_by_model(predict: Predict, co_runs: Sequence[CoRun]) -> dict[str, RelativeErrors]:
    """The errors on co-runs, by model; under the empty name those of all."""
    found: dict[str, list[float]] = {}
    for run in co_runs:
        for tenant, neighbors, taken_ms in run.sides():
            found.setdefault(tenant.partition, []).append(abs(predict(tenant, neighbors) / taken_ms - 1))
    return _summed_up(found)


def errors_alone(model: InterferenceModel, solo: Sequence[SoloRun]) -> dict[str, RelativeErrors]:
    """The errors on solo runs, by model; under the empty name those of all."""
    found: dict[str, list[float]] = {}
    for run in solo:
        taken_ms = model.alone(Tenant(run.model, run.rows, run.percent)).taken_ms
        found.setdefault(run.model, []).append(abs(taken_ms / run.taken_ms - 1))
    return _summed_up(found)


def _summed_up(found: dict[str, list[float]]) -> dict[str, RelativeErrors]:
    everything = [error for errors in found.values() for error in errors]
    listed = {**dict(sorted(found.items())), **({"": everything} if everything else {})}
    return {
        name: RelativeErrors(len(errors), float(np.mean(errors)), float(np.quantile(errors, 0.95)), max(errors))
        for name, errors in listed.items()
    }
