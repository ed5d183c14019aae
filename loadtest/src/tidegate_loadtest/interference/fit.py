"""Fitting of the InSS interference model: standalone latency, resource use and sensitivity to neighbors.

Uses least squares with non-negative coefficients: with three co-runs, unconstrained ones can predict that a neighbor
speeds up a model.

Standalone latency on any share comes from a locally weighted regression (InSS, section 4.1): around each point a
quadratic in (ln rows, ln percent) is fitted to ln ms, with higher weights for near runs. On other axes, with straight
lines, or in plain milliseconds the errors were several times as large.

Unmeasured use of cache and DRAM is estimated from the slowdown of neighbors, which is the sensitivity of one times the
use of the other: a product of two unknowns. Each is estimated alternately while the other one is fixed, so that the
error falls with every step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tidegate.schemas import InterferenceModel, NonDecreasingLine, Sensitivity, ShareTable, SharingModel
from tidegate_loadtest.interference.runs import CoRun, RunsError, SoloRun

MIN_SOLO = 4
"""Smallest number of standalone runs of a model: two batch sizes on two shares."""


def with_compute(solo: Sequence[SoloRun], compute: Mapping[tuple[str, int, float], float]) -> list[SoloRun]:
    """Return solo runs with their compute time in ms. Raises RunsError if it exceeds the latency."""
    runs = []
    for run in solo:
        gpu_ms = compute.get((run.model, run.rows, run.percent), run.gpu_ms)
        if gpu_ms is not None and gpu_ms > run.taken_ms:
            raise RunsError(
                f"{run.model!r}, batch {run.rows} on {run.percent:g} %: computing took {gpu_ms:g} ms of "
                f"{run.taken_ms:g}: the files are not of the same runs"
            )
        runs.append(replace(run, gpu_ms=gpu_ms))
    return runs


def transfers(solo: Iterable[SoloRun]) -> dict[str, NonDecreasingLine]:
    """Return the transfer time over the bus by model and rows, from the runs that measure it."""
    points_of: dict[str, list[tuple[float, float]]] = {}
    for run in solo:
        if run.gpu_ms is not None:
            points_of.setdefault(run.model, []).append((run.rows, run.taken_ms - run.gpu_ms))
    return {model: _line(points) for model, points in points_of.items()}


def fit(
    solo: Sequence[SoloRun],
    co_runs: Sequence[CoRun],
    gpu: str,
    *,
    buses: Mapping[str, NonDecreasingLine] | None = None,
    company: bool = True,
) -> InterferenceModel:
    """Fit the interference model to these runs. Raises RunsError with the models that have too few.

    `gpu`: product that was measured. `buses`: transfer times by model; None: those of the solo runs. `company`: allow a
    constant cost of having a neighbor; False: cache and DRAM explain everything, as in InSS.
    """
    alone = fit_alone(solo, gpu, transfers(solo) if buses is None else buses)
    seen = {tenant.partition for run in co_runs for tenant in run.tenants}
    if lacking := alone.lacks(seen):
        raise RunsError(f"there are co-runs of {lacking[0]!r} and no solo run: measure it alone, or leave those out")
    if lonely := sorted(alone.models.keys() - seen):
        raise RunsError(f"no co-run of {lonely[0]!r} is given: measure it beside others, or leave its solo runs out")
    if unseen := unseen_models(solo):
        uses = learn_uses(alone, co_runs, unseen)
        learned = {name: alone.models[name].model_copy(update={"cache_percent": line}) for name, line in uses.items()}
        alone = InterferenceModel(gpu=gpu, models={**alone.models, **learned})
    models = {
        name: model.model_copy(update={"sensitivity": _sensitivity(alone, name, co_runs, company)})
        for name, model in alone.models.items()
    }
    return InterferenceModel(gpu=gpu, models=models)


def unseen_models(solo: Iterable[SoloRun]) -> list[str]:
    """Return the models without a run that measures their use of cache and DRAM."""
    seen = {run.model for run in solo if run.cache_percent is not None or run.dram_percent is not None}
    return sorted({run.model for run in solo} - seen)


def fit_alone(solo: Sequence[SoloRun], gpu: str, buses: Mapping[str, NonDecreasingLine]) -> InterferenceModel:
    """Fit standalone latency and resource use, with no sensitivity to neighbors. Raises RunsError.

    `gpu`: product that was measured.
    """
    by_model: dict[str, list[SoloRun]] = {}
    for run in solo:
        by_model.setdefault(run.model, []).append(run)
    if few := [name for name, runs in by_model.items() if len({(run.rows, run.percent) for run in runs}) < MIN_SOLO]:
        raise RunsError(
            f"{few[0]!r} ran alone in fewer than {MIN_SOLO} ways: measure several batches on several shares, "
            "those that it is to have"
        )
    models = {name: _alone(runs, buses.get(name, NonDecreasingLine())) for name, runs in sorted(by_model.items())}
    return InterferenceModel(gpu=gpu, models=models)


def constant_factors(alone: InterferenceModel, co_runs: Sequence[CoRun]) -> dict[str, float]:
    """Return the simplest interference model, to compare with: by model, one slowdown factor for any neighbor."""
    shares: dict[str, list[float]] = {}
    for run in co_runs:
        for tenant, _, taken_ms in run.sides():
            shares.setdefault(tenant.partition, []).append(alone.alone(tenant).taken_ms / taken_ms)
    return {name: max(1.0, sum(mine) / sum(each * each for each in mine)) for name, mine in shares.items()}


def _alone(runs: Sequence[SoloRun], bus: NonDecreasingLine) -> SharingModel:
    gpu_ms = [run.taken_ms - bus.at(run.rows) for run in runs]
    for run, taken_ms in zip(runs, gpu_ms, strict=True):
        if taken_ms <= 0:
            raise RunsError(
                f"{run.model!r}, batch {run.rows} on {run.percent:g} %: it took {run.taken_ms:g} ms, less than its "
                f"transfer, {bus.at(run.rows):g} ms: the files are not of the same GPU"
            )
    rows_per_s = [1000 * run.rows / taken_ms for run, taken_ms in zip(runs, gpu_ms, strict=True)]
    used = [(run.cache_percent, run.dram_percent) for run in runs]
    cache = [(rate, percent) for rate, (percent, _) in zip(rows_per_s, used, strict=True) if percent is not None]
    dram = [(rate, percent) for rate, (_, percent) in zip(rows_per_s, used, strict=True) if percent is not None]
    return SharingModel(
        gpu_ms=table_of(runs, gpu_ms),
        transfer_ms=bus,
        # Where it was not measured, start from the current fraction of its highest compute rate.
        cache_percent=_line(cache) if cache or dram else NonDecreasingLine(slope=100 / max(rows_per_s)),
        dram_percent=_line(dram) if dram else NonDecreasingLine(),
    )


def _line(points: Sequence[tuple[float, float]]) -> NonDecreasingLine:
    """The line through points that lies nearest to them and is nowhere negative nor falling; 0 through none."""
    if not points:
        return NonDecreasingLine()
    where, heights = np.array(points, dtype=np.float64).T
    scale = where.max()
    (base, slope), _ = nnls(np.column_stack([np.ones_like(where), where / scale]), heights)
    return NonDecreasingLine(base=float(base), slope=float(slope / scale))


def _sensitivity(alone: InterferenceModel, name: str, co_runs: Sequence[CoRun], company: bool) -> Sensitivity:
    """Return the sensitivity that minimizes the relative errors of a model's co-runs."""
    lines, heights = [], []
    for run in co_runs:
        for tenant, neighbors, taken_ms in run.sides():
            if tenant.partition != name:
                continue
            mine, theirs = alone.alone(tenant), [alone.alone(each) for each in neighbors]
            cache = sum(each.cache_percent for each in theirs)
            dram = sum(each.dram_percent for each in theirs)
            pressure = np.array([cache, dram, company * len(theirs)])
            lines.append(pressure * mine.gpu_ms / taken_ms)
            heights.append((taken_ms - mine.taken_ms) / taken_ms)
    minds, _ = nnls(np.array(lines), np.array(heights))
    return Sensitivity(cache=float(minds[0]), dram=float(minds[1]), neighbor=float(minds[2]))


FIT_ITERATIONS = 40
PRIOR_RUNS = 2.0
"""Weight, in runs per model, of the prior that all models cause equal slowdown: a few runs must not outweigh it."""


def learn_uses(
    alone: InterferenceModel, co_runs: Sequence[CoRun], unseen: Sequence[str]
) -> Mapping[str, NonDecreasingLine]:
    """Estimate the use of the resource called cache by these models, over rows per second: 100 for the heaviest.

    `unseen`: names of the models. `alone`: resource use of the other models. Empty if no model is sensitive to
    neighbors.
    """
    victims = {name: number for number, name in enumerate(sorted(alone.models))}
    columns = {name: number for number, name in enumerate(unseen)}
    most = {name: 100 / alone.models[name].cache_percent.slope for name in unseen}
    sides = [side for run in co_runs for side in run.sides()]
    victim = np.array([victims[tenant.partition] for tenant, _, _ in sides])
    weight, height, cache, dram = np.zeros((4, len(sides)))
    many, rates = np.zeros((2, len(sides), len(unseen)))
    for at, (tenant, neighbors, taken_ms) in enumerate(sides):
        mine = alone.alone(tenant)
        weight[at], height[at] = mine.gpu_ms / taken_ms, (taken_ms - mine.taken_ms) / taken_ms
        for neighbor in neighbors:
            theirs, name = alone.alone(neighbor), neighbor.partition
            if name in columns:
                many[at, columns[name]] += 1
                rates[at, columns[name]] += 1000 * neighbor.rows / theirs.gpu_ms / most[name]
            else:
                cache[at] += theirs.cache_percent
                dram[at] += theirs.dram_percent
    felt = np.hstack([many, rates])
    alike = np.concatenate([np.full(len(unseen), 100.0), np.zeros(len(unseen))])
    if len(unseen) < len(victims):
        alike *= np.mean(cache[cache > 0]) / 100 if cache.any() else 1.0
    used = alike
    for _ in range(FIT_ITERATIONS):
        terms = np.column_stack([cache + felt @ used, dram]) * weight[:, None]
        minds = np.zeros((len(victims), 2))
        for number in victims.values():
            mine = victim == number
            minds[number], _ = nnls(terms[mine], height[mine])
        each = minds[victim]
        cache_weight = weight * each[:, 0]
        stiff = np.sqrt(PRIOR_RUNS * np.mean(cache_weight**2)) * np.eye(len(alike))
        rest = height - cache_weight * cache - weight * each[:, 1] * dram
        used, _ = nnls(np.vstack([felt * cache_weight[:, None], stiff]), np.concatenate([rest, stiff @ alike]))
        if not used.any():
            return {}
        if len(unseen) == len(victims):  # then their unit is arbitrary
            used *= 100 / (used[: len(unseen)] + used[len(unseen) :]).max()
    return {
        name: NonDecreasingLine(base=float(used[at]), slope=float(used[len(unseen) + at] / most[name]))
        for name, at in columns.items()
    }


KERNEL_BANDWIDTH = 0.3
"""Standard deviation of the Gaussian weights, where the runs span 1 along each axis."""
SLOPE_RIDGE = 1e-6
"""Ridge penalty on slopes and curvatures, so that undetermined ones are zero."""
TABLE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PERCENT_STEP = 5

Floats = NDArray[np.float64]


class LocallyWeighted:
    """Latency surface through measured runs."""

    def __init__(self, rows: Sequence[float], percents: Sequence[float], taken_ms: Sequence[float]) -> None:
        """Fit the surface; each argument has one entry per run.

        `percents`: of the compute units.
        """
        places: Floats = np.log(np.column_stack([rows, percents]))
        widths = np.ptp(places, axis=0)
        self._widths = np.where(widths > 0, widths, 1.0)
        self._places = places / self._widths
        self._heights: Floats = np.log(np.asarray(taken_ms, dtype=np.float64))

    def at(self, rows: float, percent: float) -> float:
        """Return the milliseconds at a batch size and a share in percent."""
        away = self._places - np.log([rows, percent]) / self._widths
        squared = (away**2).sum(axis=1)
        # The nearest run has the weight 1, however far it is.
        root = np.exp((squared.min() - squared) / (4 * KERNEL_BANDWIDTH**2))
        across, along = away.T
        terms = np.column_stack([np.ones_like(across), across, along, across**2, across * along, along**2])
        held = np.sqrt(SLOPE_RIDGE) * np.eye(6)[1:]
        matrix = np.vstack([terms * root[:, None], held])
        heights = np.concatenate([self._heights * root, np.zeros(5)])
        solution, *_ = np.linalg.lstsq(matrix, heights, rcond=None)
        return float(np.exp(solution[0]))


def table_of(runs: Sequence[SoloRun], gpu_ms: Sequence[float]) -> ShareTable:
    """Return a model's surface as a table over the measured batch sizes and shares, monotonic in both.

    `gpu_ms`: compute time of each run in ms.
    """
    rows, percents = [run.rows for run in runs], [run.percent for run in runs]
    surface = LocallyWeighted(rows, percents, gpu_ms)
    many = sorted({*rows, *(count for count in TABLE_ROWS if min(rows) < count < max(rows))})
    steps = (PERCENT_STEP * step for step in range(1, 100 // PERCENT_STEP))
    shares = sorted({*percents, *(float(step) for step in steps if min(percents) < step < max(percents))})
    taken = np.array([[surface.at(each, share) for share in shares] for each in many])
    taken = np.maximum.accumulate(taken, axis=0)
    taken = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return ShareTable(
        rows=tuple(many),
        percents=tuple(shares),
        taken_ms=tuple(tuple(round(float(each), 6) for each in line) for line in taken),
    )
