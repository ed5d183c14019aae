"""From a plan to a layout: each worker by name, on its GPU, in its node."""

from collections import Counter

from tidegate.api import PlanningError, Profile
from tidegate.documents import Layout, LayoutModel, LayoutNetwork, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate_ppipe.plan import PlannedPartition, PpipePlan
from tidegate_ppipe.problem import PlannedModel, PpipeProblem


def layout_of(problem: PpipeProblem, plan: PpipePlan) -> Layout:
    """The layout of a plan of this problem: one worker for each share of each GPU that a pool has.

    GPUs are numbered through by class, and fill the nodes in that order. Raises PlanningError for a plan of another
    problem.
    """
    if [model.name for model in plan.models] != [model.name for model in problem.models]:
        raise PlanningError("the plan is not of this problem: its models are others, or in another order")
    models, partitions, workers = [], [], []
    places = _Places()
    per_node = {gpu.name: gpu.per_node for gpu in problem.classes}
    for planned, model in zip(plan.models, problem.models, strict=True):
        places.next_model()
        pipelines = []
        for number, pipeline in enumerate(planned.pipelines):
            names = []
            for part in pipeline.partitions:
                name = f"{model.name}.{number}.{part.blocks[0]}-{part.blocks[1]}"
                names.append(name)
                partitions.append(_partition(name, model, part, pipeline.batch))
                for _ in range(part.workers):
                    gpu, place = places.next(part.gpu, part.share)
                    workers.append(
                        LayoutWorker(
                            name=f"{part.gpu}-{gpu}/{place}",
                            kind=_kind(part),
                            gpu=f"{part.gpu}-{gpu}",
                            share=part.share,
                            node=f"{part.gpu}-node-{gpu // per_node[part.gpu]}",
                            hosts=(name,),
                        )
                    )
            pipelines.append(LayoutPipeline(partitions=tuple(names), batch=pipeline.batch))
        models.append(
            LayoutModel(name=model.name, slo_ms=model.slo_ms, rate_rps=planned.rate_rps, pipelines=tuple(pipelines))
        )
    return Layout(
        models=tuple(models),
        partitions=tuple(partitions),
        workers=tuple(workers),
        network=None if problem.gbps is None else LayoutNetwork(gbps=problem.gbps),
    )


class _Places:
    """Numbers GPUs through, by class; those of one model and share fill a GPU before they begin another one."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._open: dict[tuple[str, int], tuple[int, int]] = {}

    def next_model(self) -> None:
        """No GPU is shared by two models."""
        self._open.clear()

    def next(self, gpu: str, share: int) -> tuple[int, int]:
        """The number of a GPU, and of a place on it."""
        number, place = self._open.get((gpu, share), (0, share))
        if place == share:
            number, place = self._taken[gpu], 0
            self._taken[gpu] += 1
        self._open[gpu, share] = number, place + 1
        return number, place


def _kind(part: PlannedPartition) -> str:
    return part.gpu if part.share == 1 else f"{part.gpu}/{part.share}"


def _partition(name: str, model: PlannedModel, part: PlannedPartition, batch: int) -> LayoutPartition:
    blocks = model.blocks
    first, last = part.blocks
    measured = [
        rows for table in blocks.latencies if (table.kind, table.share) == (part.gpu, part.share) for rows in table.rows
    ]
    points = {
        rows: blocks.latency_us(part.gpu, part.share, rows, first, last) / 1000
        for rows in {*(rows for rows in measured if rows <= batch), batch}
    }
    profile = Profile.from_points(name, points, max_rows=batch)
    return LayoutPartition(
        name=name,
        model=model.name,
        blocks=part.blocks,
        bytes_per_row=blocks.cut_bytes[last - 1] if last < len(blocks.blocks) else 0,
        latency_ms={_kind(part): tuple(latency_ns / 1e6 for latency_ns in profile.planned)},
    )
