"""The nouns of the contract: what is asked, where it can run, and what a batch is.

Instants and durations are integer nanoseconds (`..._ns`). Every value is immutable, compares by content and encodes to
JSON, so that a recorded run can be compared byte by byte with its replay.
"""

from typing import Final, Literal

import msgspec

from tidegate.api.device import DEFAULT_KIND, Device, Slice, WholeDevice

NEVER_NS: Final = 2**63 - 1
"""The instant after every other: the deadline of a request that has none."""


DeadlineMissAction = Literal["reject", "serve"]
"""What becomes of a request that cannot be answered by its model's SLO: it is refused, or answered all the same."""


class Pipeline(msgspec.Struct, frozen=True):
    """Pools in order: a batch passes through one worker of each, any that hosts the partition."""

    partitions: tuple[str, ...]
    """The partitions in the order in which they run; at least one."""
    max_rows: int
    """The batch size that it was planned for, the same for all its pools: no batch through it is larger."""


class Model(msgspec.Struct, frozen=True):
    """What clients address by name: one Triton model, or several partitions behind one name."""

    name: str
    max_rows: int
    """The largest request or batch, in rows: Triton's `max_batch_size`, or that of its widest pipeline."""
    slo_ns: int | None = None
    """How long after its arrival a request may be answered; None: as soon as possible, and never too late."""
    pipelines: tuple[Pipeline, ...] = ()
    """Empty for a model that is not split: then it is one partition of its own name."""
    merge_limit: int | None = None
    """The most rows of a batch of several requests. None: `max_rows`; 1: each request runs alone."""

    on_deadline_miss: DeadlineMissAction = "reject"
    """What becomes of requests that cannot be on time. Policies need not know: the engine sees to it."""

    @property
    def merges(self) -> bool:
        """Whether its requests may share batches."""
        return self.merge_limit != 1

    @property
    def merged_rows(self) -> int:
        """The size up to which a batch may grow by one more request; a single request may have more rows."""
        return self.max_rows if self.merge_limit is None else min(self.merge_limit, self.max_rows)

    @property
    def paths(self) -> tuple[Pipeline, ...]:
        """The pipelines of the model; that of the unsplit model where it has none."""
        return self.pipelines or (Pipeline((self.name,), self.max_rows),)


class Worker(msgspec.Struct, frozen=True):
    """One place that runs one batch at a time: a Triton bound to a GPU, MIG slice or MPS share, or a lane of one."""

    id: int
    """Small and stable: policies prefer the smallest, so that under low load the largest stay wholly idle."""
    name: str
    """What people call it, e.g. `127.0.0.1:8001/resnet50/0`."""
    hosts: tuple[str, ...]
    """The partitions loaded there, sorted. An unsplit model is one partition of the model's own name."""
    kind: str = ""
    """Workers of one kind are equally fast: profiles are kept by it (`ProfileKey`).

    It follows from the device and the slice unless it is named; without a device it is `default`.
    """
    device: Device | None = None
    """The GPU that it is bound to; None: not known."""
    slice: Slice = WholeDevice()
    """How much of the device it has."""

    def __post_init__(self) -> None:
        """Name its kind."""
        if not self.kind:
            kind = self.device.kind(self.slice) if self.device else DEFAULT_KIND
            msgspec.structs.force_setattr(self, "kind", kind)

    @property
    def node(self) -> str:
        """The machine that it is in: what goes from one node to another crosses the links of both (`Network`)."""
        return self.device.node if self.device else ""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One inference call of a client."""

    id: int
    model: str
    rows: int
    """The size of the request along the batch dimension, at least 1."""
    arrival_ns: int
    deadline_ns: int = NEVER_NS
    """The instant by which the answer must be back."""
    merge_key: str = ""
    """Only requests of one model that merges, with equal keys, can share a batch (the shapes beyond the batch)."""
    app: str = ""
    """An application tag of the client's, for policies that learn a latency distribution per application."""
    shape: str = ""
    """The readable class of what varies in its tensors beyond the batch, e.g. `x:3,48,320`; empty where nothing does.

    Requests of one shape take equally long: profiles are kept by it.
    """
    client: str = ""
    """Whose it is: clients who wait for the same workers are served in turn."""
    deferrable: bool = True
    """Whether its batch may wait for more requests to join. False where a batch of such requests was refused: nobody
    else can join it, or there has to be time for another try."""
    late_until_ns: int = 0
    """The instant up to which its answer is wanted even after the deadline; not beyond that: it is to be on time.

    A request that a policy gives up arrives again with the deadline NEVER_NS when nothing that can be on time wants a
    worker, unless this has passed (`Model.on_deadline_miss`).
    """

    def __post_init__(self) -> None:
        """Raise ValueError for a request without rows: no batch, share or profile of it makes sense."""
        if self.rows < 1:
            raise ValueError(f"request {self.id} has {self.rows} rows: a request has at least 1")

    @property
    def is_late(self) -> bool:
        """Whether it was given up as one that cannot be on time, and is served all the same."""
        return self.deadline_ns == NEVER_NS and self.late_until_ns > 0


QueueKey = tuple[str, str, str]
"""(model, shape, merge key): requests of one queue take equally long and can share a batch; those of two never do.

The merge key is empty for a model whose requests run alone: those of one shape have one queue, however they differ,
but for late ones, which nobody in time waits behind.
"""


def queue_key(request: Request, model: Model) -> QueueKey:
    """The queue that a request of this model belongs to."""
    return request.model, request.shape, request.merge_key if model.merges or request.is_late else ""


class Stage(msgspec.Struct, frozen=True, gc=False):
    """One partition of one batch on one worker, as planned."""

    worker_id: int
    partition: str
    start_ns: int
    duration_ns: int
    sent_ns: int = 0
    """When its input is to set out from the stage before, for policies that plan links, too; before: as soon as it can.

    Kept to in simulation. Live the input goes with the call that starts the stage.
    """

    @property
    def end_ns(self) -> int:
        """When the worker is expected to be free again."""
        return self.start_ns + self.duration_ns


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Requests that run together along the stages of one path. Its rows are the sum of its requests' rows."""

    id: int
    """Chosen by the policy, never used twice (`Policy.new_batch_id`)."""
    model: str
    request_ids: tuple[int, ...]
    """The ids of its requests, in the order in which their rows are laid out."""
    stages: tuple[Stage, ...]
