"""Controller that follows the policy's recommendations: workers join and are released (section 3.5)."""

from collections import Counter
from math import ceil
from typing import Annotated

from pydantic import Field

from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.schemas import Layout, LayoutWorker, PathField


class AdvisedWorkersOptions(ControllerOptions):
    """Options of the controller `advised-workers`."""

    layout: Annotated[Layout, PathField()] | None = Field(
        default=None,
        description="Layout with all workers that may be started, or its path; default: the initial workers",
    )
    least_workers: int = Field(default=1, ge=1, description="Minimum number of workers, whatever is recommended")
    reserve: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="Minimum idle fraction of the remaining workers after a release",
    )


class AdvisedWorkers(Controller):
    """Controller that adds or releases workers as the policy recommends, within limits and a reserve."""

    Options = AdvisedWorkersOptions

    def __init__(self, layout: Layout, options: AdvisedWorkersOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        every = options.layout or layout
        missing = [worker.name for worker in layout.workers if _place(worker) not in map(_place, every.workers)]
        if missing:
            raise ValueError(f"layout: it lacks worker {missing[0]!r}, which serves at the start: add it")
        self._every = every
        self._least_workers, self._reserve = options.least_workers, options.reserve

    def step(self, observation: Observation) -> Layout | None:
        """Return a layout with more or fewer workers; None if no change is recommended or possible."""
        if observation.advice is None:
            return None
        here = {_place(worker) for worker in observation.layout.workers}
        present = [worker for worker in self._every.workers if _place(worker) in here]
        wanted = len(present) + observation.advice.workers
        if wanted > len(present):
            chosen = [*present, *self._candidates(observation, here)[: wanted - len(present)]]
        else:
            enough = ceil(len(present) * observation.load / (1 - self._reserve))
            chosen = self._released(present, max(wanted, enough, self._least_workers))
        if len(chosen) == len(present):
            return None
        places = {_place(worker) for worker in chosen}
        workers = tuple(worker for worker in self._every.workers if _place(worker) in places)
        return self._every.model_copy(update={"workers": workers})

    def _candidates(self, observation: Observation, here: set[tuple[object, ...]]) -> list[LayoutWorker]:
        """The workers that may join: those first that host the model that does worst."""
        worst = min(observation.models, key=lambda name: observation.models[name].attainment)
        parts = {part.name for part in self._every.partitions if part.model == worst}
        away = [worker for worker in self._every.workers if _place(worker) not in here]
        return sorted(away, key=lambda worker: parts.isdisjoint(worker.hosts))

    @staticmethod
    def _released(present: list[LayoutWorker], target: int) -> list[LayoutWorker]:
        """Return the layout without workers beyond the target, from the last one on; every partition keeps a worker."""
        kept, hosted = list(present), Counter(name for worker in present for name in worker.hosts)
        for worker in reversed(present):
            if len(kept) > target and all(hosted[name] > 1 for name in worker.hosts):
                kept.remove(worker)
                hosted.subtract(worker.hosts)
        return kept


def _place(worker: LayoutWorker) -> tuple[object, ...]:
    return worker.device, worker.slice, worker.hosts
