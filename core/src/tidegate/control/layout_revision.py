"""A layout with its workers' ids, and which workers the next layout keeps."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count

import msgspec

from tidegate.api import Model, Network, Profile, Worker
from tidegate.schemas import Layout, LayoutWorker

Loaded = tuple[tuple[str, str, tuple[int, int], int], ...]
"""Partitions that a worker has loaded: partition, model, blocks and largest batch of each."""


@dataclass(frozen=True)
class LayoutRevision:
    """A layout with the ids of its workers; an id is never reused for another worker."""

    layout: Layout
    ids: tuple[int, ...]
    """Id of each worker of the layout, in the order of the layout."""

    @classmethod
    def of(cls, layout: Layout) -> "LayoutRevision":
        """Return the first revision of a layout, with ids in order, as `Layout.contract` numbers workers."""
        return cls(layout, tuple(range(len(layout.workers))))

    @property
    def workers(self) -> dict[int, LayoutWorker]:
        """Workers by id."""
        return dict(zip(self.ids, self.layout.workers, strict=True))

    def contract(self) -> tuple[tuple[Model, ...], tuple[Worker, ...], tuple[Profile, ...], Network | None]:
        """Return models, workers, profiles and network in the types of `tidegate.api`."""
        models, workers, profiles, network = self.layout.contract()
        numbered = tuple(
            msgspec.structs.replace(worker, id=number) for worker, number in zip(workers, self.ids, strict=True)
        )
        return models, numbered, profiles, network

    def followed_by(self, layout: Layout, next_id: int) -> "LayoutRevision":
        """Return the revision of the next layout; new workers are numbered from `next_id` on.

        A worker with the same device, slice, class and partitions as a current one keeps its id and name. A new worker
        whose name is in use gets another one, since both run for a while. SLOs and outputs stay.
        """
        here = _loads(self.layout)
        waiting: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, worker in reversed(self.workers.items()):
            waiting[_place(worker), here[worker.name]].append(number)
        there, numbers = _loads(layout), count(next_id)
        ids = []
        for worker in layout.workers:
            same = waiting[_place(worker), there[worker.name]]
            ids.append(same.pop() if same else next(numbers))
        known = self.workers
        taken = {worker.name for worker in known.values()}
        workers = []
        for number, worker in zip(ids, layout.workers, strict=True):
            if number in known:
                workers.append(known[number])
                continue
            name = _free_name(worker.name, taken)
            taken.add(name)
            workers.append(worker if name == worker.name else worker.model_copy(update={"name": name}))
        present = {model.name: model for model in self.layout.models}
        models = tuple(
            model.model_copy(update={"slo_ms": known_model.slo_ms, "outputs": known_model.outputs})
            if (known_model := present.get(model.name))
            else model
            for model in layout.models
        )
        changes = {"models": models, "workers": tuple(workers), "network": self.layout.network}
        return LayoutRevision(layout.model_copy(update=changes), tuple(ids))


def _place(worker: LayoutWorker) -> tuple[object, ...]:
    return worker.device, worker.slice, worker.speed


def _loads(layout: Layout) -> dict[str, Loaded]:
    parts = {part.name: part for part in layout.partitions}
    batches: dict[str, int] = {}
    for model in layout.models:
        for pipeline in model.pipelines:
            for name in pipeline.partitions:
                batches[name] = max(pipeline.batch, batches.get(name, 0))
    return {
        worker.name: tuple(
            (name, parts[name].model, parts[name].blocks, batches.get(name, 0)) for name in sorted(worker.hosts)
        )
        for worker in layout.workers
    }


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with the first free number behind it if it is taken."""
    return name if name not in taken else next(each for n in count(2) if (each := f"{name}~{n}") not in taken)
