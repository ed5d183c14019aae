"""Layout of a plan: one worker for each slice, on its GPU, with the model that it serves."""

from collections.abc import Mapping

from pydantic import ValidationError

from tidegate.api import PlanningError
from tidegate.schemas import Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker, Mig, field_errors
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.problem import MigModel, MigProblem
from tidegate_paris_elsa.slices import SliceSpeed, offers_of


def layout_of(problem: MigProblem, plan: MigPlan) -> Layout:
    """Return the layout of a plan of this problem; each model is one partition of its own name.

    Raises PlanningError for a plan of another problem (it may have been edited), with slices on which a model was not
    measured, or with an impossible partition of a GPU.
    """
    if [model.name for model in plan.models] != [model.name for model in problem.models]:
        raise PlanningError("the plan is not of this problem: its models are others, or in another order")
    used: dict[str, set[str]] = {model.name: set() for model in problem.models}
    workers = []
    for gpu in plan.gpus:
        for slice_ in gpu.slices:
            part = Mig(slice_.profile, slice_.start)
            if slice_.model not in used:
                raise PlanningError(f"the plan is not of this problem: it has no model {slice_.model!r}")
            used[slice_.model].add(gpu.device.device_class(part))
            name = f"{gpu.device.node}-{gpu.device.id}/{slice_.start}"
            workers.append(LayoutWorker(name=name, device=gpu.device, slice=part, hosts=(slice_.model,)))
    if idle := [name for name, kinds in used.items() if not kinds]:
        raise PlanningError(f"the plan has no slice for model {idle[0]!r}: give it one")
    offers = offers_of(problem)
    try:
        return Layout(
            models=tuple(
                LayoutModel(
                    name=model.name,
                    slo_ms=model.slo_ms,
                    rate_rps=planned.rate_rps,
                    pipelines=(LayoutPipeline(partitions=(model.name,), batch=model.most_rows),),
                )
                for model, planned in zip(problem.models, plan.models, strict=True)
            ),
            partitions=tuple(
                _partition(model, offers.by_name(number), used[model.name])
                for number, model in enumerate(problem.models)
            ),
            workers=tuple(workers),
        )
    except ValidationError as error:
        raise PlanningError(f"the plan cannot be laid out: {field_errors(error, Layout)[0]}") from error


def _partition(model: MigModel, speeds: Mapping[str, SliceSpeed], used: set[str]) -> LayoutPartition:
    if strangers := sorted(used - speeds.keys()):
        raise PlanningError(f"model {model.name!r}: the problem does not say how fast it is on {strangers[0]}")
    latency_ms = {}
    for name in sorted(used):
        table, longest_ms = [], 0.0
        for rows in range(1, model.most_rows + 1):
            longest_ms = max(longest_ms, speeds[name].latency_ms(rows))
            table.append(longest_ms)
        latency_ms[name] = tuple(table)
    return LayoutPartition(name=model.name, model=model.name, blocks=(0, 1), latency_ms=latency_ms)
