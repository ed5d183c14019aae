"""Layout of a plan: each worker by name, on its GPU, in its node."""

from collections import Counter
from collections.abc import Collection

from tidegate.api import PlanningError, Profile
from tidegate.schemas import (
    Device,
    Layout,
    LayoutModel,
    LayoutNetwork,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
    Mps,
    Slice,
    WholeDevice,
)
from tidegate_ppipe.plan import PlannedPartition, PlannedPipeline, PpipePlan
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem


def layout_of(problem: PpipeProblem, plan: PpipePlan, without: Collection[Device] = ()) -> Layout:
    """Return the layout of a plan of this problem: one worker for each share of each GPU of a pool.

    GPUs are numbered by class and fill the nodes in that order. `without`: GPUs that are not used. Raises PlanningError
    for a plan of another problem (it may have been edited) or that exceeds the problem's GPUs, and DocumentError for
    latencies that were not measured.
    """
    if [model.name for model in plan.models] != [model.name for model in problem.models]:
        raise PlanningError("the plan is not of this problem: its models are others, or in another order")
    models, partitions, workers = [], [], []
    places = _Places(problem, without)
    for planned, model in zip(plan.models, problem.models, strict=True):
        places.next_model()
        pipelines = []
        for number, pipeline in enumerate(planned.pipelines):
            _check_end(model, number, pipeline)
            names = []
            for part in pipeline.partitions:
                name = f"{model.name}.{number}.{part.blocks[0]}-{part.blocks[1]}"
                names.append(name)
                for _ in range(part.workers):
                    device, worker = places.next(part.gpu, part.share)
                    part_of = _slice(part.share)
                    workers.append(LayoutWorker(name=worker, device=device, slice=part_of, hosts=(name,)))
                partitions.append(_partition(name, model, part, pipeline.batch, device.device_class(part_of)))
            pipelines.append(LayoutPipeline(partitions=tuple(names), batch=pipeline.batch))
        if not pipelines:
            raise PlanningError(f"the plan has no pipeline for model {model.name!r}: give it one")
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

    def __init__(self, problem: PpipeProblem, without: Collection[Device]) -> None:
        self._classes = {gpu.name: gpu for gpu in problem.classes}
        self._without = without
        self._taken: Counter[str] = Counter()
        self._open: dict[tuple[str, int], tuple[int, int]] = {}

    def next_model(self) -> None:
        """Begin with the next model, whose workers share no GPU with those of others."""
        self._open.clear()

    def next(self, gpu: str, share: int) -> tuple[Device, str]:
        """A GPU of this class, and the name of a worker on it. Raises PlanningError where there is none."""
        if gpu not in self._classes:
            raise PlanningError(f"the plan is not of this problem: it has no class {gpu!r} of GPUs")
        known = self._classes[gpu]
        number, place = self._open.get((gpu, share), (0, share))
        if place == share:
            while self._device(known, self._taken[gpu]) in self._without:
                self._taken[gpu] += 1
            number, place = self._taken[gpu], 0
            self._taken[gpu] += 1
        if number >= known.count:
            raise PlanningError(f"the plan needs more than the {known.count} {gpu} of its problem: take workers away")
        self._open[gpu, share] = number, place + 1
        return self._device(known, number), f"{gpu}-{number}/{place}"

    def _device(self, known: GpuClass, number: int) -> Device:
        memory_mib = None if known.memory_mib is None else int(known.memory_mib)
        node = f"{known.name}-node-{number // known.per_node}"
        return Device(node, number % known.per_node, known.name, memory_mib)


def _slice(share: int) -> Slice:
    """One of several equal shares of a GPU."""
    return WholeDevice() if share == 1 else Mps(max(1, 100 // share))


def _check_end(model: PlannedModel, number: int, pipeline: PlannedPipeline) -> None:
    end, blocks = pipeline.partitions[-1].blocks[1], len(model.blocks.blocks)
    if end != blocks:
        raise PlanningError(
            f"the plan's pipeline {number} of model {model.name!r} ends with block {end}, and the model has {blocks}"
        )


def _partition(
    name: str, model: PlannedModel, part: PlannedPartition, batch: int, device_class: str
) -> LayoutPartition:
    blocks = model.blocks
    first, last = part.blocks
    measured = [
        rows
        for table in blocks.latencies
        if (table.device_class, table.share) == (part.gpu, part.share)
        for rows in table.rows
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
        latency_ms={device_class: tuple(profile.upper_ns(rows) / 1e6 for rows in range(1, batch + 1))},
    )
