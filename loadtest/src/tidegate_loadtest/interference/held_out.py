"""Errors of a fitted interference model on runs that it was not fitted to, beside those of controls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from tidegate.schemas import HeldOut, InterferenceModel, Tenant
from tidegate_loadtest.interference.runs import CoRun, SoloRun

Predict = Callable[[Tenant, tuple[Tenant, ...]], float]
"""Function that predicts the milliseconds of a batch beside neighbors."""


@dataclass(frozen=True)
class RelativeErrors:
    """Relative errors of some runs, |predicted - measured| / measured."""

    runs: int
    mean: float
    p95: float
    largest: float

    def document(self) -> HeldOut:
        """Convert to the form of the interference file."""
        return HeldOut(runs=self.runs, mean=self.mean, p95=self.p95)


def split(co_runs: Sequence[CoRun], share: float, seed: int) -> tuple[list[CoRun], list[CoRun]]:
    """Split runs into those to fit and those to hold out: the fraction `share`, drawn by `seed`."""
    held = set(Random(seed).sample(range(len(co_runs)), round(share * len(co_runs))))
    return (
        [run for at, run in enumerate(co_runs) if at not in held],
        [run for at, run in enumerate(co_runs) if at in held],
    )


def by_model(model: InterferenceModel) -> Predict:
    """Return the predictor of the fitted model."""
    return model.expected_ms


def by_constant(model: InterferenceModel, factors: Mapping[str, float]) -> Predict:
    """Return the predictor of the control: a constant factor on the standalone latency."""
    return lambda tenant, _: model.alone(tenant).taken_ms * factors[tenant.partition]


def by_nothing(model: InterferenceModel) -> Predict:
    """Return the predictor that ignores neighbors."""
    return lambda tenant, _: model.alone(tenant).taken_ms


def errors_by_model(predict: Predict, co_runs: Sequence[CoRun]) -> dict[str, RelativeErrors]:
    """Return the errors on co-runs, by model; those of all models under ""."""
    found: dict[str, list[float]] = {}
    for run in co_runs:
        for tenant, neighbors, taken_ms in run.sides():
            found.setdefault(tenant.partition, []).append(abs(predict(tenant, neighbors) / taken_ms - 1))
    return _summed_up(found)


def errors_alone(model: InterferenceModel, solo: Sequence[SoloRun]) -> dict[str, RelativeErrors]:
    """Return the errors on solo runs, by model; those of all models under ""."""
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
