"""Buffer of stages and requests that ended since the last tick.

It is filled on the hot path, where all values are at hand, as adjacent numbers: objects that are read a second later
would have to be loaded into the cache one by one, which costs more than copying.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.api import Batch, Request
from tidegate.observation import OutcomeListener, StartStage

Outcome = Literal["answered", "dropped", "failed", "cancelled"]
_STAGE: Final = ("sort", "started_ns", "ended_ns", "upper_ns", "requests", "batch", "request")
_END: Final = ("sort", "request", "arrival_ns", "deadline_ns", "ended_ns")
STAGE_DTYPE: Final = np.dtype([(name, np.int64) for name in _STAGE])
"""Record of an ended stage; its first field is the index of its `StageSort` in the notes."""
END_DTYPE: Final = np.dtype([(name, np.int64) for name in _END])
"""Record of an ended request; its deadline may be `NEVER_NS`."""
_stage: Final = Struct(f"{len(_STAGE)}q").pack
_end: Final = Struct(f"{len(_END)}q").pack


class StageSort(NamedTuple):
    """Properties that many stages share."""

    model: str
    partition: str
    shape: str
    worker_id: int
    rows: int
    stage: int
    """Index in the pipeline of its batch, from 0."""


class EndSort(NamedTuple):
    """Properties that many ended requests share."""

    model: str
    outcome: Outcome
    reason: str
    """Reason for the lack of a response; "" if there is one."""


class TickNotes(NamedTuple):
    """Entries between two ticks, in order of time."""

    stages: npt.NDArray[np.void]
    """Array of `STAGE_DTYPE` records."""
    stage_sorts: list[StageSort]
    ends: npt.NDArray[np.void]
    """Array of `END_DTYPE` records."""
    end_sorts: list[EndSort]


class _Places(dict[tuple[object, ...], int]):
    """The place of each sort, in the order in which they first came."""

    def __missing__(self, sort: tuple[object, ...]) -> int:
        place = self[sort] = len(self)
        return place


class TickBuffer(OutcomeListener):
    """Buffer of notes until the next tick."""

    def __init__(self) -> None:
        self._stages, self._ends = bytearray(), bytearray()
        self._stage_sorts, self._end_sorts = _Places(), _Places()

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Note the end of a stage of a batch."""
        batch = effect.batch
        stage, request_ids = batch.stages[effect.stage], batch.request_ids
        sort = batch.model, stage.partition, effect.shape, stage.worker_id, effect.rows, effect.stage  # as StageSort
        self._stages += _stage(
            self._stage_sorts[sort],
            started_ns,
            ended_ns,
            stage.duration_ns,
            len(request_ids),
            batch.id,
            request_ids[0],
        )

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Note the response to a batch."""
        place = self._end_sorts[batch.model, "answered", ""]
        for request in requests:
            self._ends += _end(place, request.id, request.arrival_ns, request.deadline_ns, ended_ns)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Note a dropped request."""
        self._lost(now_ns, request, "dropped", reason)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Note a failed request."""
        self._lost(now_ns, request, "failed", reason)

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Note a cancelled request."""
        self._lost(now_ns, request, "cancelled", "")

    def take(self) -> TickNotes:
        """Return the entries since the last call, and clear them."""
        notes = TickNotes(
            np.frombuffer(self._stages, STAGE_DTYPE),
            list(map(StageSort._make, self._stage_sorts)),
            np.frombuffer(self._ends, END_DTYPE),
            list(map(EndSort._make, self._end_sorts)),
        )
        self._stages, self._ends = bytearray(), bytearray()
        self._stage_sorts, self._end_sorts = _Places(), _Places()
        return notes

    def _lost(self, ended_ns: int, request: Request, outcome: Outcome, reason: str) -> None:
        place = self._end_sorts[request.model, outcome, reason]
        self._ends += _end(place, request.id, request.arrival_ns, request.deadline_ns, ended_ns)
