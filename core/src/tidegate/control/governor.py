"""The governor permits a controller's layout, or rejects it with a reason.

A controller may be wrong, unstable or broken: the current layout keeps serving.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, starmap
from math import inf

from pydantic import ValidationError

from tidegate.control.capacity import capacities, gpus_of, load_of
from tidegate.control.controller import Observation
from tidegate.control.layout_revision import LayoutRevision
from tidegate.control.settings import ControllerChoice
from tidegate.schemas import Layout, field_errors

CAPACITY_TOLERANCE = 0.01
"""Relative error of capacities that is ignored: batches that are not full may carry more."""
MAX_DOUBLINGS = 6
"""Maximum number of times that the cooldown is doubled: to 64 times its length."""


class Governor:
    """Governor of a controller: enforces cooldown, stabilization window and minimum improvement."""

    def __init__(self, limits: ControllerChoice) -> None:
        self._limits = limits
        self._rests_until_ns = 0
        self._undone = 0
        """How many changes in a row came to nothing."""
        self._wanted_since_ns: int | None = None
        """Since when the controller has wanted another layout, every time that it was asked."""

    def on_change_over(self, now_ns: int, *, undone: bool = False) -> None:
        """Start the cooldown after a change; `undone`: it was rolled back."""
        self._undone = self._undone + 1 if undone else 0
        cooldown_s = self._limits.cooldown_s * 2 ** min(self._undone, MAX_DOUBLINGS)
        self._rests_until_ns = now_ns + round(cooldown_s * 1e9)
        self._wanted_since_ns = None

    def reset_stabilization(self) -> None:
        """Reset the stabilization window: the controller wants no change."""
        self._wanted_since_ns = None

    def rejection_reason(
        self,
        present: LayoutRevision,
        wanted: LayoutRevision,
        observed: Observation,
        away: Collection[int] = (),
        *,
        steps: Sequence[LayoutRevision] = (),
        keep: float = 0.0,
        gain: float | None = None,
    ) -> str:
        """Return why a layout is rejected, as text; empty: it is permitted.

        `present`: current revision; `wanted`: the controller's; `observed`: the current observation; `away`: ids of
        unavailable workers; `steps`: revisions that serve before the wanted one; `keep`: fraction of each model's
        capacity, current or wanted, whichever is less, that each of them must have; `gain`: gain in sustained load by
        the controller's estimate, which knows the sizes of requests; None: by full batches.
        """
        path = [present, *steps, wanted]
        if self._wanted_since_ns is None:
            self._wanted_since_ns = observed.now_ns
        objection = (
            self.unserved_requests_reason(
                present, wanted, {name: load.largest_rows for name, load in observed.models.items()}, away
            )
            or next(filter(None, starmap(_has_no_room, pairwise(path))), "")
            or next(filter(None, (_keeps_less(path, step, keep) for step in steps)), "")
            or self._is_worse(present, wanted, observed, away, gain)
        )
        if objection:
            self._wanted_since_ns = None
        return objection

    def in_cooldown(self, now_ns: int) -> bool:
        """Whether a permitted change must wait for the cooldown after the last change or for the stabilization
        window.
        """
        wanted_ns = 0 if self._wanted_since_ns is None else now_ns - self._wanted_since_ns
        return now_ns < self._rests_until_ns or wanted_ns < self._limits.stabilization_window_s * 1e9

    def unserved_requests_reason(
        self, present: LayoutRevision, wanted: LayoutRevision, largest_rows: Mapping[str, int], away: Collection[int]
    ) -> str:
        """Return why a layout would lose requests that the current one serves, as text; empty: it would not.

        `present`, `wanted`: current and new revision. `largest_rows`: rows of the largest request so far, by model,
        which may grow while workers start. `away`: ids of unavailable workers.
        """
        return _takes_less(wanted.layout, largest_rows) or _is_away(present, wanted, away)

    def _is_worse(
        self,
        present: LayoutRevision,
        wanted: LayoutRevision,
        observed: Observation,
        away: Collection[int],
        gain: float | None,
    ) -> str:
        rows_per_s = {name: load.rows_per_s for name, load in observed.models.items()}
        before, after = (load_of(_here(revision, away), rows_per_s) for revision in (present, wanted))
        if before == inf:
            return ""  # a model has no worker that is there: whatever helps
        if after > max(1.0, before):
            return f"it would not sustain the load: {after:.0%} of its capacity, {before:.0%} of the present one"
        if gain is None and before > after and observed.attainment < 1 - self._limits.max_miss_rate:
            return ""  # requests are lost: whatever helps
        more = gain if gain is not None else before / after - 1 if after else 0.0
        fewer = 1 - gpus_of(wanted.layout) / gpus_of(present.layout)
        if max(more, fewer) < self._limits.min_improvement:
            wants = f"{self._limits.min_improvement:.0%} is wanted"
            return f"it sustains {more:+.0%} load with {-fewer:+.0%} GPUs: {wants}"
        return ""


def _takes_less(wanted: Layout, largest_rows: Mapping[str, int]) -> str:
    """Whether requests would be lost that are served now."""
    takes = {model.name: max(pipeline.batch for pipeline in model.pipelines) for model in wanted.models}
    for name, rows in largest_rows.items():
        if name not in takes:
            return f"it does without model {name!r}, which is served"
        if takes[name] < rows:
            return f"it takes up to {takes[name]} rows of model {name!r}, and a request had {rows}"
    return ""


def _is_away(present: LayoutRevision, wanted: LayoutRevision, away: Collection[int]) -> str:
    """Whether a model would have no worker that is there, and has one now."""
    here, there = _served(present, away), _served(wanted, away)
    return next((f"the workers that it has for model {name!r} are away" for name in here if name not in there), "")


def _here(revision: LayoutRevision, away: Collection[int]) -> Layout:
    """The layout with the workers that are there."""
    workers = tuple(worker for number, worker in revision.workers.items() if number not in away)
    return revision.layout.model_copy(update={"workers": workers})


def _served(revision: LayoutRevision, away: Collection[int]) -> list[str]:
    """The models that have a pipeline with a worker for each of its partitions."""
    hosted = {name for number, worker in revision.workers.items() if number not in away for name in worker.hosts}
    return [
        model.name
        for model in revision.layout.models
        if any(hosted.issuperset(pipeline.partitions) for pipeline in model.pipelines)
    ]


def _has_no_room(present: LayoutRevision, wanted: LayoutRevision) -> str:
    """Whether new workers cannot start beside those that serve: MIG instances that do not fit in beside theirs."""
    new = [worker for number, worker in wanted.workers.items() if number not in present.ids]
    devices = tuple(
        worker.model_copy(update={"hosts": ("m",), "device_class": "any"}) for worker in (*present.layout.workers, *new)
    )
    try:
        Layout.model_validate({**_ANY, "workers": devices})
    except ValidationError as error:
        return f"its new workers cannot start beside those that serve: {field_errors(error, Layout)[0]}"
    return ""


def _keeps_less(path: Sequence[LayoutRevision], step: LayoutRevision, keep: float) -> str:
    """Whether a model would have less than this fraction of its capacity meanwhile, in full batches."""
    before, after, meanwhile = (_full_batches(each.layout) for each in (path[0], path[-1], step))
    for name, rows_per_s in meanwhile.items():
        least = min(before.get(name, 0.0), after.get(name, 0.0))
        if rows_per_s < keep * least * (1 - CAPACITY_TOLERANCE):
            return f"model {name!r} would have {rows_per_s / least:.0%} of its capacity meanwhile: {keep:.0%} is wanted"
    return ""


def _full_batches(layout: Layout) -> dict[str, float]:
    """The rows per second of each model, however long its batches take."""
    models = tuple(model.model_copy(update={"slo_ms": None}) for model in layout.models)
    return capacities(layout.model_copy(update={"models": models}))


_ANY = {
    "models": [{"name": "m", "pipelines": [{"partitions": ["m"], "batch": 1}]}],
    "partitions": [{"name": "m", "model": "m", "blocks": [0, 1], "latency_ms": {"any": [1.0]}}],
}
"""A layout of which only the devices matter."""


def changes_nothing(present: LayoutRevision, wanted: LayoutRevision) -> bool:
    """Whether two revisions load the same partitions on the same workers.

    The order of the workers and the latency that the plan expects may differ.
    """
    same = capacities(present.layout) == capacities(wanted.layout)
    return same and set(present.ids) == set(wanted.ids) and _paths(present.layout) == _paths(wanted.layout)


def _paths(layout: Layout) -> dict[str, object]:
    return {model.name: model.pipelines for model in layout.models}
