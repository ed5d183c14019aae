"""Builder of the plan from shares: batches, sustained rates, and models without enough shares."""

from collections.abc import Mapping, Sequence

import numpy as np

from tidegate.api import PlanningError
from tidegate_inss.plan import PlannedGpu, PlannedModel, PlannedShare, SharePlan
from tidegate_inss.prediction import AssignedShare, Predictor, borne_rps, by_gpu, why_not


def borne_by(predictor: Predictor, shares: Sequence[AssignedShare]) -> list[float]:
    """Return the rates that the shares of one GPU sustain while all are busy, with the best batches up to their
    maximum.

    Models of one process wait for a batch of each other; a model sustains a part in proportion to its rate. In requests
    per second.
    """
    tables, models = predictor.tables, predictor.problem.models
    full_ms = predictor.batch_ms(shares)
    rates = []
    for at, ((model, _, units, batch, process), taken_ms) in enumerate(zip(shares, full_ms, strict=True)):
        batches = np.arange(1, batch + 1)
        gpu_ms = tables.gpu_ms[model, units, 1 : batch + 1]
        slowed = (taken_ms - tables.transfer_ms[model, batch]) / tables.gpu_ms[model, units, batch]
        batch_ms = tables.transfer_ms[model, 1 : batch + 1] + gpu_ms * slowed
        others_ms = sum(
            ms for other, ms in enumerate(full_ms) if process and other != at and shares[other].process == process
        )
        rates.append(float(borne_rps(batches, batch_ms, models[model].slo_ms - others_ms).max()))
    for process in {share.process for share in shares} - {0}:
        members = [at for at, share in enumerate(shares) if share.process == process]
        busy = sum(models[shares[at].model].rate_rps / max(rates[at], 1e-9) for at in members)
        for at in members:
            rates[at] = models[shares[at].model].rate_rps / busy
    return rates


def build_plan(
    predictor: Predictor, shares: Sequence[AssignedShare], missing: Mapping[int, str], bound: float | None
) -> SharePlan:
    """Return the plan of these shares.

    `missing`: by model number, why a model has no share or too few. `bound`: bound of the objective; None: unknown.
    Raises PlanningError if no model has a share.
    """
    problem = predictor.problem
    if not shares:
        raise PlanningError("no model has a share: " + "; ".join(missing.values()))
    gpus = []
    most, borne = [0.0] * len(problem.models), [0.0] * len(problem.models)
    for device, mine in zip(problem.devices, by_gpu(shares, len(problem.devices)), strict=True):
        if not mine:
            continue
        wrong = why_not(mine, problem.units_per_gpu, device.memory_mib, [predictor.takes_mib(share) for share in mine])
        assert wrong is None, f"{device.node}/{device.id}: {wrong}"
        planned = []
        for share, taken_ms, rate in zip(mine, predictor.batch_ms(mine), borne_by(predictor, mine), strict=True):
            most_rps = 1000 * share.batch / taken_ms
            most[share.model] += most_rps
            borne[share.model] += rate
            planned.append(
                PlannedShare(
                    model=problem.models[share.model].name,
                    units=share.units,
                    percent=problem.percent(share.units),
                    process=share.process,
                    batch=share.batch,
                    batch_ms=taken_ms,
                    most_rps=most_rps,
                )
            )
        gpus.append(PlannedGpu(device=device, shares=tuple(planned)))
    models = [
        PlannedModel(
            name=model.name,
            rate_rps=model.rate_rps,
            most_rps=most[number],
            bears_rps=borne[number],
            missing=missing.get(number, ""),
        )
        for number, model in enumerate(problem.models)
    ]
    objective = min(model.bears_rps / model.rate_rps for model in models)
    if problem.objective == "throughput":
        objective, bound = sum(most), None
    units = problem.units_per_gpu
    return SharePlan(objective=objective, bound=bound, units_per_gpu=units, models=tuple(models), gpus=tuple(gpus))
