"""From a plan to a layout: a worker for each share, on its GPU, with the model that it serves."""

from tidegate.api import PlanningError
from tidegate.documents import Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker, Mps, Tenant
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem


def layout_of(problem: ShareProblem, plan: SharePlan) -> Layout:
    """The layout of a plan of this problem. Requests are not cut: each model is one partition of its own name.

    Latencies are those of a share by itself: what neighbours add, simulators know and engines learn. A plan may have
    been edited: raises PlanningError for one of another problem, and for models without a share.
    """
    models = {model.name: model for model in problem.models}
    batches: dict[str, int] = {}
    kinds: dict[str, dict[str, float]] = {}
    workers = []
    for gpu in plan.gpus:
        for number, share in enumerate(gpu.shares):
            if share.model not in models:
                raise PlanningError(f"the plan is not of this problem: it has no model {share.model!r}")
            part = Mps(share.percent)
            units = share.percent * problem.units_per_gpu // 100
            if units < 1:
                raise PlanningError(
                    f"the plan gives {share.model!r} {share.percent} % of a GPU, which MPS rounds down to nothing: "
                    f"give it {problem.percent(1)} % or more"
                )
            kinds.setdefault(share.model, {})[gpu.device.kind(part)] = 100 * units / problem.units_per_gpu
            batches[share.model] = max(batches.get(share.model, 0), share.batch)
            name = f"{gpu.device.node}-{gpu.device.id}/{number}"
            workers.append(LayoutWorker(name=name, device=gpu.device, slice=part, hosts=(share.model,)))
    if idle := [name for name in models if name not in kinds]:
        why = next((model.missing for model in plan.models if model.name == idle[0]), "")
        raise PlanningError(f"the plan has no share for model {idle[0]!r}{': ' if why else ''}{why}")
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
                    kind: tuple(
                        measured.alone(Tenant(name, rows, percent)).taken_ms for rows in range(1, batches[name] + 1)
                    )
                    for kind, percent in sorted(kinds[name].items())
                },
            )
            for name in models
        ),
        workers=tuple(workers),
    )
