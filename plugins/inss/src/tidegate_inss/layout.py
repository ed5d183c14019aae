"""Layout of a plan: a worker for each share, on its GPU, with the model that it serves; and the shares of a layout."""

from collections.abc import Mapping, Sequence

from tidegate.api import PlanningError
from tidegate.control.rates import check_models
from tidegate.schemas import Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker, Mps, Tenant
from tidegate_inss.plan import PlannedShare, SharePlan
from tidegate_inss.prediction import AssignedShare
from tidegate_inss.problem import ShareProblem


def layout_of(problem: ShareProblem, plan: SharePlan) -> Layout:
    """Return the layout of a plan of this problem; each model is one partition of its own name.

    Latencies are those of a share alone: simulators add interference, and engines learn it. Raises PlanningError for a
    plan of another problem (it may have been edited) and for models without a share.
    """
    models = {model.name: model for model in problem.models}
    batches: dict[str, int] = {}
    kinds: dict[str, dict[str, float]] = {}
    workers: list[LayoutWorker] = []
    for gpu in plan.gpus:
        processes: dict[int, list[PlannedShare]] = {}
        for number, share in enumerate(gpu.shares, start=1):
            processes.setdefault(share.process or -number, []).append(share)
        for number, together in enumerate(processes.values()):
            part = Mps(_percent(problem, together))
            share_percent = 100 * (part.percent * problem.units_per_gpu // 100) / problem.units_per_gpu
            for share in together:
                if share.model not in models:
                    raise PlanningError(f"the plan is not of this problem: it has no model {share.model!r}")
                kinds.setdefault(share.model, {})[gpu.device.device_class(part)] = share_percent
                batches[share.model] = max(batches.get(share.model, 0), share.batch)
            hosts = tuple(share.model for share in together)
            name = f"{gpu.device.node}-{gpu.device.id}/{number}"
            workers.append(LayoutWorker(name=name, device=gpu.device, slice=part, hosts=hosts))
    if idle := [name for name in models if name not in kinds]:
        why = next((model.missing for model in plan.models if model.name == idle[0]), "")
        raise PlanningError(
            f"the plan has no share for model {idle[0]!r}{': ' if why else ''}{why}: give more GPUs or larger ones, or "
            "fewer models"
        )
    measured = problem.measured
    return Layout(
        models=tuple(
            LayoutModel(
                name=name,
                slo_ms=model.slo_ms,
                rate_rps=model.rate_rps,
                pipelines=(LayoutPipeline(partitions=(name,), batch=batches[name]),),
            )
            for name, model in models.items()
        ),
        partitions=tuple(
            LayoutPartition(
                name=name,
                model=name,
                blocks=(0, 1),
                latency_ms={
                    device_class: tuple(
                        measured.alone(Tenant(name, rows, percent)).taken_ms for rows in range(1, batches[name] + 1)
                    )
                    for device_class, percent in sorted(kinds[name].items())
                },
            )
            for name in models
        ),
        workers=tuple(workers),
    )


def _percent(problem: ShareProblem, together: Sequence[PlannedShare]) -> int:
    """Return the MPS percentage of a process with this many units. Raises PlanningError."""
    percent = together[0].percent
    if unlike := [share for share in together if share.percent != percent]:
        raise PlanningError(
            f"the plan has {unlike[0].model!r} and {together[0].model!r} in one process, with {unlike[0].percent} and "
            f"{percent} % of a GPU: give both the same"
        )
    if percent * problem.units_per_gpu < 100:
        raise PlanningError(
            f"the plan gives {together[0].model!r} {percent} % of a GPU, which MPS rounds down to nothing: give it "
            f"{problem.percent(1)} % or more"
        )
    return percent


MIN_RATE_FRACTION = 0.02
"""Minimum rate to plan for, as a fraction of the problem's rate."""


def check_first(problem: ShareProblem, layout: Layout) -> None:
    """Raise ValueError if the initial layout does not fit the problem."""
    check_models((model.name for model in problem.models), layout)
    known = set(problem.devices)
    for worker in layout.workers:
        device, named = worker.device, f"problem: worker {worker.name!r} of the layout"
        if device not in known:
            raise ValueError(
                f"{named} is on {device.product} {device.id} of {device.node!r}, which is none of its GPUs: give the "
                "problem that the layout was planned from"
            )
        if not isinstance(worker.slice, Mps) or len(worker.hosts) != 1:
            raise ValueError(f"{named} is no MPS share with one model: plan the layout by `tidegate plan shares`")


def shares_of(problem: ShareProblem, layout: Layout) -> list[AssignedShare]:
    """Return the current shares, in the order of the layout's workers."""
    devices = {device: number for number, device in enumerate(problem.devices)}
    models = {model.name: number for number, model in enumerate(problem.models)}
    batches = {model.name: max(pipeline.batch for pipeline in model.pipelines) for model in layout.models}
    shares = []
    for worker in layout.workers:
        assert isinstance(worker.slice, Mps), "that was checked at the start"
        name = worker.hosts[0]
        units = worker.slice.percent * problem.units_per_gpu // 100
        shares.append(AssignedShare(models[name], devices[worker.device], units, batches[name]))
    return shares


def problem_with(problem: ShareProblem, rates_rps: Mapping[str, float]) -> ShareProblem:
    """Return the problem with other rates in requests per second, by model name."""
    models = tuple(
        model.model_copy(update={"rate_rps": max(rates_rps[model.name], MIN_RATE_FRACTION * model.rate_rps)})
        for model in problem.models
    )
    return problem.model_copy(update={"models": models})


def steady_batches(
    planned: Sequence[AssignedShare], present: Sequence[AssignedShare], most: Sequence[int]
) -> list[AssignedShare]:
    """Return the shares with batch sizes that change rarely, because a changed size loads the process again.

    `planned`: new shares; `present`: current ones; `most`: maximum batch of each model. A model keeps its current batch
    size if that is at least the planned one and at most four times as large; otherwise it gets the next power of two.
    """
    serving = {share.model: share.batch for share in present}
    wanted: dict[int, int] = {}
    for share in planned:
        wanted[share.model] = max(wanted.get(share.model, 1), share.batch)
    batches = {}
    for model, batch in wanted.items():
        now = serving.get(model, 0)
        batches[model] = now if batch <= now <= 4 * batch else min(most[model], 1 << (batch - 1).bit_length())
    return [share._replace(batch=batches[share.model]) for share in planned]
