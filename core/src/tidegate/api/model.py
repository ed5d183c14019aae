"""Requests, models, workers and batches: the data types of the plugin API.

Instants and durations are integer nanoseconds (`..._ns`). Every value is immutable, compares by content and encodes to
JSON, so a recorded run can be compared byte by byte with its replay.
"""

from typing import Final, Literal

import msgspec

from tidegate.api.device import DEFAULT_DEVICE_CLASS, Device, Slice, WholeDevice

NEVER_NS: Final = 2**63 - 1
"""The time after all others, in ns: the deadline of a request without one, or an event that will not come."""


DEFAULT_PRIORITY: Final = 1
"""Priority of a request that names none, to a model without priority levels; no priority is more urgent."""


DeadlineMissAction = Literal["reject", "serve"]
"""Action of the engine on a request that will miss its SLO: reject it, or serve it anyway."""


class Pipeline(msgspec.Struct, frozen=True):
    """A sequence of worker pools: a batch passes through one worker of each, which hosts the partition."""

    partitions: tuple[str, ...]
    """Partitions in the order in which they run; at least one."""
    max_rows: int
    """Maximum batch size in rows, the same for all its pools."""


class Model(msgspec.Struct, frozen=True):
    """A model as clients name it: one Triton model, or several partitions behind one name."""

    name: str
    max_rows: int
    """Maximum rows of a request or batch: Triton's `max_batch_size`, or that of its widest pipeline."""
    slo_ns: int | None = None
    """Time from arrival to deadline, in ns; None: no deadline, answered as soon as possible."""
    pipelines: tuple[Pipeline, ...] = ()
    """The pipelines of a split model; empty for an unsplit model, which is one partition of the same name."""
    merge_limit: int | None = None
    """Maximum rows of a batch of several requests. None: `max_rows`; 1: each request runs alone."""

    on_deadline_miss: DeadlineMissAction = "reject"
    """Action of the engine on requests that will miss their deadline; policies need not handle it."""
    streams: bool = False
    """Whether requests have many responses: deadlines and profiles concern the first, the worker is busy until the
    last."""
    slo_gap_ns: int | None = None
    """Longest mean time between the responses of a stream that counts as on time, in ns; None: all count."""

    @property
    def merges(self) -> bool:
        """Whether requests of the model may share batches."""
        return self.merge_limit != 1

    @property
    def merged_rows(self) -> int:
        """Maximum rows of a batch of several requests; a single request may have more."""
        return self.max_rows if self.merge_limit is None else min(self.merge_limit, self.max_rows)

    @property
    def paths(self) -> tuple[Pipeline, ...]:
        """The pipelines of the model; for an unsplit model one pipeline of one partition."""
        return self.pipelines or (Pipeline((self.name,), self.max_rows),)


class Worker(msgspec.Struct, frozen=True):
    """A worker runs one batch at a time: a Triton instance on a GPU, a MIG slice or an MPS share, or one of its
    slots."""

    id: int
    """Small and stable id; policies prefer the smallest, so that at low load some workers stay entirely idle."""
    name: str
    """Name for people, e.g. `127.0.0.1:8001/resnet50/0`."""
    hosts: tuple[str, ...]
    """Partitions loaded there, sorted. An unsplit model is one partition with the model's name."""
    device_class: str = ""
    """Workers of one device class are equally fast: profiles are kept by it (`ProfileKey`).

    It follows from the device and the slice unless it is named; without a device it is `default`.
    """
    device: Device | None = None
    """The GPU of the worker; None: unknown."""
    slice: Slice = WholeDevice()
    """The part of the device that the worker uses."""
    server: str = ""
    """Name of the server that the worker is a slot of; "" for a worker that is none.

    Among idle slots the toolkit offers one of the server with the fewest busy slots.
    """

    def __post_init__(self) -> None:
        """Name its device class."""
        if not self.device_class:
            device_class = self.device.device_class(self.slice) if self.device else DEFAULT_DEVICE_CLASS
            msgspec.structs.force_setattr(self, "device_class", device_class)

    @property
    def node(self) -> str:
        """Name of the machine; data between workers of different nodes crosses both nodes' links (`Network`)."""
        return self.device.node if self.device else ""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One inference request of a client."""

    id: int
    model: str
    rows: int
    """Size along the batch dimension, at least 1."""
    arrival_ns: int
    deadline_ns: int = NEVER_NS
    """Time by which the response must have arrived, in ns; NEVER_NS: no deadline."""
    merge_key: str = ""
    """Requests of a model with equal keys can share a batch (the key contains the shapes beyond the batch dimension).
    """
    app: str = ""
    """Application tag that the client sent, for policies that learn a latency distribution for each application.

    The engine replaces it by a latency level where `feature` explains the latency better.
    """
    shape: str = ""
    """Shape class of its tensors beyond the batch, e.g. `x:3,48,320`; empty if nothing varies.

    Requests of one shape take equally long: there is a profile for each shape.
    """
    client: str = ""
    """The client, for fair queueing among clients that wait for the same workers."""
    deferrable: bool = True
    """Whether its batch may wait for more requests.

    False after a batch of such requests failed: nothing can join it, or time must be left for a retry.
    """
    late_until_ns: int = 0
    """Time up to which the client wants a late response, in ns; 0 or past: it wants none.

    When a policy drops such a request, the engine re-queues it with the deadline NEVER_NS as soon as no request with a
    deadline wants a worker (`Model.on_deadline_miss`).
    """

    priority: int = DEFAULT_PRIORITY
    """Priority class, from 1; a lower number is more urgent, across all models that wait for the same workers."""
    tenant: str = ""
    """Tenant of its client, for weighted fair queueing; empty: the client is queued by itself."""
    weight: float = 1.0
    """Share of worker time that its tenant gets under contention, relative to other tenants' weights."""
    feature: float = 0.0
    """Number known before execution that may explain the latency, such as tokens, pages or bytes; 0: none."""
    client_app: str = ""
    """Application tag that the client sent, where the engine replaced `app` by a latency level."""

    def __post_init__(self) -> None:
        """Raise ValueError for a request without rows: no batch, share or profile of it makes sense."""
        if self.rows < 1:
            raise ValueError(f"request {self.id} has {self.rows} rows: a request has at least 1")

    @property
    def is_late(self) -> bool:
        """Whether the request was dropped for missing its deadline and is served anyway."""
        return self.deadline_ns == NEVER_NS and self.late_until_ns > 0


QueueKey = tuple[str, str, str]
"""Key of a queue: (model, shape, merge key). Requests of one queue take equally long and can share a batch.

The merge key is empty for models whose requests run alone: there is one queue for each shape, apart from late requests.
"""


def queue_key(request: Request, model: Model) -> QueueKey:
    """Return the key of the queue that a request of this model belongs to."""
    return request.model, request.shape, request.merge_key if model.merges or request.is_late else ""


class Stage(msgspec.Struct, frozen=True, gc=False):
    """A stage of a batch: one partition on one worker, with its planned start and duration."""

    worker_id: int
    partition: str
    start_ns: int
    duration_ns: int
    sent_ns: int = 0
    """Time at which its input leaves the previous node, for policies that plan links; earlier than the start if set.

    The simulator obeys it. The live proxy sends the input with the call that starts the stage.
    """

    @property
    def end_ns(self) -> int:
        """Planned end of the stage in ns: the worker is free from then on."""
        return self.start_ns + self.duration_ns


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Requests that run together along the stages of one route; its rows are the sum of their rows."""

    id: int
    """Id that the policy chose (`Policy.new_batch_id`); never used twice."""
    model: str
    request_ids: tuple[int, ...]
    """Ids of its requests, in the order of their rows."""
    stages: tuple[Stage, ...]


def read_sizes(text: str) -> tuple[int, ...] | None:
    """Return the dimensions of one input from text such as `3,48,320`; None if the text does not have this form."""
    sizes = text.split(",")
    if not all(size.isascii() and size.isdecimal() and len(size) <= 18 for size in sizes):
        return None
    return tuple(map(int, sizes))
