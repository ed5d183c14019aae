"""The numbered invariants: each command of a policy is checked against them before it is applied.

1 conservation · 2 exclusivity · 3 causality · 4 monotone clock · 5 no oracle · 6 determinism · 7 parity · 8 deadline
honesty · 9 isolation · 10 no idle refusal. This module and the engine check 1-4 and 8. Invariants 5-7 and 9 hold by
construction, and tests show it. The test kit checks policies for 10 (tidegate.testing, docs/reference/invariants.md).
"""

from collections.abc import Mapping, Sequence

from tidegate.api import Batch, Model, Profile, ProfileKey, Request, Worker
from tidegate.engine.state_tables import Reservations


class InvariantViolation(Exception):
    """Error: a policy's command or a driver's event violated an invariant and was not applied."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.number = number


class EngineStateError(Exception):
    """Error: applying a valid command failed because of a bug in the engine; the state is undefined."""


def check_dispatch(
    now_ns: int,
    first_free_id: int,
    batch: Batch,
    queued: Mapping[int, Request],
    models: Mapping[str, Model],
    bookings: Mapping[int, Reservations],
) -> tuple[list[Request], int]:
    """Check invariants 1 to 3, and 6 for its id, for a dispatched batch. Return its requests and rows.

    `first_free_id`: smallest id that was never used. `queued`: queued requests by id. `bookings`: reservations by
    worker id. Raises InvariantViolation.
    """
    try:
        if batch.id < first_free_id:
            raise InvariantViolation(6, f"batch id {batch.id} was used before")
        requests = [queued.get(request_id) for request_id in batch.request_ids]
        rows = check_requests(batch, requests, models.get(batch.model))
        check_stages(now_ns, batch, bookings)
        check_path(batch, rows, models[batch.model])
    except InvariantViolation:
        raise
    except Exception as fault:  # it holds what is no number, no name or no stage
        raise InvariantViolation(1, f"{batch!r} is no batch: {type(fault).__name__}: {fault}") from fault
    return [request for request in requests if request is not None], rows


def check_requests(batch: Batch, requests: list[Request | None], model: Model | None) -> int:
    """Check invariant 1: a batch has queued requests, each once, that can share a batch. Return its rows.

    `requests`: queued requests by its ids, None for an unknown id; `model`: None if unknown. Raises InvariantViolation.
    """
    if model is None:
        raise InvariantViolation(1, f"batch {batch.id} is of model {batch.model!r}, which is not served here")
    if not requests:
        raise InvariantViolation(1, f"batch {batch.id} has no requests")
    if len(set(batch.request_ids)) != len(batch.request_ids):
        raise InvariantViolation(1, f"batch {batch.id} holds a request twice: {batch.request_ids}")
    rows = 0
    key = (requests[0].merge_key, requests[0].shape) if requests[0] else ("", "")
    for request_id, request in zip(batch.request_ids, requests, strict=True):
        if request is None:
            raise InvariantViolation(1, f"batch {batch.id} takes request {request_id}, which is not queued")
        if request.model != batch.model or (request.merge_key, request.shape) != key:
            raise InvariantViolation(1, f"batch {batch.id} of {batch.model!r} cannot merge request {request_id}")
        rows += request.rows
    if rows > model.max_rows:
        raise InvariantViolation(1, f"batch {batch.id} has {rows} rows; {batch.model!r} takes {model.max_rows}")
    if rows > model.merged_rows and len(requests) > 1:
        merges = f"merges up to {model.merged_rows} rows" if model.merges else "runs each request alone"
        raise InvariantViolation(
            1, f"batch {batch.id} has {len(requests)} requests of {rows} rows; {batch.model!r} {merges}"
        )
    return rows


def check_path(batch: Batch, rows: int, model: Model) -> None:
    """Check invariant 3: the stages are those of one of the model's pipelines, which allows `rows` rows.

    Raises InvariantViolation.
    """
    partitions = tuple(stage.partition for stage in batch.stages)
    for path in model.paths:
        if path.partitions == partitions and rows <= path.max_rows:
            return
    raise InvariantViolation(
        3,
        f"batch {batch.id} of {rows} rows goes through {list(partitions)}; {model.name!r} has "
        + ", ".join(f"{list(path.partitions)} for up to {path.max_rows}" for path in model.paths),
    )


def check_stages(earliest_ns: int, batch: Batch, bookings: Mapping[int, Reservations], *, first: int = 0) -> None:
    """Check invariants 2 and 3: stages from `first` on follow each other, on free workers that host the partitions.

    `earliest_ns`: earliest permitted start. `bookings`: reservations by worker id. Raises InvariantViolation.
    """
    for index, stage in enumerate(batch.stages[first:], first):
        booked = bookings.get(stage.worker_id)
        if booked is None or stage.partition not in booked.hosts:
            raise InvariantViolation(
                2, f"stage {index} of batch {batch.id}: worker {stage.worker_id} does not host {stage.partition!r}"
            )
        if stage.duration_ns <= 0 or stage.start_ns < earliest_ns:
            raise InvariantViolation(
                3,
                f"stage {index} of batch {batch.id} starts at {stage.start_ns} before {earliest_ns}, or lasts no time",
            )
        earliest_ns = stage.end_ns
        for number, other in enumerate(booked.stages):
            other_ends_ns = other.end_ns
            if number == 0 and booked.free_ns is not None:
                other_ends_ns = booked.free_ns  # it runs, and what is sent now does not begin before it has ended
            if stage.start_ns < other_ends_ns and other.start_ns < stage.end_ns:
                raise InvariantViolation(
                    2, f"stage {index} of batch {batch.id} overlaps what is booked on worker {stage.worker_id}"
                )


def check_deadlines(
    batch: Batch,
    requests: Sequence[Request],
    rows: int,
    workers: dict[int, Worker],
    profiles: Mapping[ProfileKey, Profile],
) -> None:
    """Check invariant 8: workers are reserved for the upper latency, and some request may be on time.

    `requests`: those of the batch, of `rows` rows in total. `workers`: by id. Raises InvariantViolation.
    """
    shape = requests[0].shape
    profile = None
    for index, stage in enumerate(batch.stages):
        profile = profiles[stage.partition, workers[stage.worker_id].device_class, shape]
        upper_ns = profile.upper_ns(rows)
        if stage.duration_ns < upper_ns:
            raise InvariantViolation(
                8, f"stage {index} of batch {batch.id} plans {stage.duration_ns} ns, the profile says {upper_ns}"
            )
    assert profile is not None, "a batch has a stage"
    end_ns = batch.stages[-1].start_ns + profile.lower_bound_ns(rows)
    for request in requests:
        if end_ns > request.deadline_ns:
            raise InvariantViolation(
                8,
                f"batch {batch.id} cannot end before {end_ns}, request {request.id} is due at {request.deadline_ns}",
            )
