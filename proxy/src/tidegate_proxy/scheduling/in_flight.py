"""Clients that wait for a response, running stages on Tritons, and the tensors of their batches.

Small tensors are sent in the calls. Large ones are in shared memory with local Tritons: each is copied there once, from
the clients' requests, and once from there, into their responses; between stages nothing is copied. Response sizes are
learned from earlier responses to requests of the same shapes.
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tidegate.control.concurrency_limit import ConcurrencyLimit
from tidegate.engine import StartStage
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.settings import QueueLimits
from tidegate_proxy.messages import wire
from tidegate_proxy.messages.merging import (
    BatchTensor,
    ScatterError,
    merged_header,
    merged_inputs,
    merged_message,
    outputs_wanted,
    read_answer,
    scatter,
)
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature
from tidegate_proxy.messages.padding import Piece, ResizedTensor, join
from tidegate_proxy.messages.request import InferenceRequest, PendingRequest
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.observability.tracing import BatchSpan
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.shared_memory import SharedRegion, SharedRegions

SHARED_FROM_BYTES: Final = 65536
"""Size in bytes from which tensors are shared: below it, copying is cheaper."""
LARGE_TENSOR_BYTES: Final = 8192
"""Size from which one of several inputs is shared: to declare thousands of smaller ones takes longer than sending."""
ALIGNMENT_BYTES: Final = 64
MAX_KNOWN_SIZES: Final = 4096


class OutputSizes:
    """Latest bytes per row of each output of a partition, by request shape."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, int]] = {}

    def get(self, partition: str, merge_key: str) -> dict[str, int]:
        """Return the sizes by output; empty if unknown."""
        return self._seen.get((partition, merge_key), {})

    def learn(self, partition: str, merge_key: str, sizes: dict[str, int]) -> None:
        """Store the sizes of a response.

        `sizes`: bytes per row by output, for a `partition` and a `merge_key` (shapes of the requests).
        """
        if len(self._seen) >= MAX_KNOWN_SIZES:
            self._seen.clear()  # merge keys come from clients: they must not pile up
        self._seen[partition, merge_key] = sizes

    def forget(self, partition: str, merge_key: str) -> None:
        """Forget sizes that were too small."""
        self._seen.pop((partition, merge_key), None)


@dataclass(frozen=True, slots=True)
class StageTarget:
    """Partition on a Triton, as the target of a stage."""

    partition: str
    signature: ModelSignature | None
    """Signature; None: it has just been unloaded."""
    backends: Sequence[Backend]
    """Triton of this stage, then those of the later ones, which may read its outputs."""
    alone: bool
    """Whether the stage is the only one of its batch, for a model whose name on the Triton is the public one."""
    backend: Backend = field(init=False)
    """Triton of this stage."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "backend", self.backends[0])


@dataclass(frozen=True, slots=True)
class _Live:
    """A tensor that later stages, or the clients, may want."""

    tensor: BatchTensor
    region: SharedRegion | None = None
    """Where it is, if it is shared; its pieces are there, too."""
    at: int = 0


class BatchPayload:
    """Tensors of one batch: call `request` and `answered` for each stage, `outcomes` for the last, then `close`."""

    def __init__(
        self,
        envelopes: Sequence[InferenceRequest],
        sizes: OutputSizes,
        regions: SharedRegions | None,
        outputs: Sequence[str] = (),
    ) -> None:
        """Create the batch payload.

        `regions`: None if nothing is shared. `outputs`: all outputs of a split model, in order.
        """
        self.envelopes = envelopes
        self._rows = sum([envelope.rows for envelope in envelopes])
        self._bytes = sum([len(envelope.message) for envelope in envelopes])
        self._as_it_is = len(envelopes) == 1 and envelopes[0].heading.padded is None
        """Whether what is sent is what a single client sent, and what it is answered is Triton's answer."""
        self._sizes = sizes
        self._regions = regions
        self._outputs = outputs
        self._live: dict[str, _Live] = {}
        """The tensors by name: partitions take inputs of the model, and outputs of any partition before them."""
        self._held: list[SharedRegion] = []
        """Where stages before wrote."""
        self._written: SharedRegion | None = None
        """Shared memory that the current stage reads and writes."""
        self._written_at: dict[str, int] = {}
        """Where it writes its outputs, by name."""
        self._reads = False
        """Whether it reads what one before wrote."""
        self._partition = ""

    @property
    def is_shared(self) -> bool:
        """Whether the current stage's call uses shared memory."""
        return self._reads or self._written is not None

    def request(self, target: StageTarget, *, share: bool = True) -> bytes:
        """Return the ModelInferRequest of a stage. Called again for the same stage, `share=False` sends all tensors.

        A single client's message is sent unmodified, unless it is shared or has several stages.
        """
        self._drop_written()
        self._partition = target.partition
        as_it_came = target.alone and self._as_it_is
        expected = self._expected(target) if share and self._regions else {}
        output_bytes = sum(map(_aligned, expected.values())) if expected else 0
        if target.alone and (self._regions is None or max(self._large_bytes(), output_bytes) < SHARED_FROM_BYTES):
            return self.envelopes[0].message if as_it_came else merged_message(self.envelopes, self._rows)
        if not self._live:
            self._live = {tensor.name: _Live(tensor) for tensor in merged_inputs(self.envelopes)}
        inputs = self._inputs(target)
        sizes = [each.tensor.size for each in inputs if not (share and each.region)]
        input_bytes = sum(_aligned(size) for size in sizes if size >= LARGE_TENSOR_BYTES)
        shared_input = input_bytes if share and input_bytes >= SHARED_FROM_BYTES else 0
        shared_output = output_bytes if output_bytes >= SHARED_FROM_BYTES else 0
        if self._regions and (shared_input or shared_output):
            self._written = self._regions.take(shared_input + shared_output, target.backends)
        if as_it_came and self._written is None:
            return self.envelopes[0].message
        header = merged_header(self.envelopes)
        if not target.alone:
            header.model_name, header.model_version = target.partition, ""
            for name in self.envelopes[0].heading.private:
                header.parameters.pop(name, None)
        sent = self._add_inputs(header, inputs, into=self._written if shared_input else None, share=share)
        self._add_outputs(header, target, expected if shared_output else {}, first_at=shared_input)
        return join(header.SerializeToString(), sent, wire.REQUEST_RAW_FIELD)

    def answered(self, answer: bytes) -> None:
        """Keep the outputs of a stage for the next ones. Raises ScatterError."""
        header, tensors = self._open(answer)
        for output, content in zip(header.outputs, tensors, strict=True):
            at = self._written_at.get(output.name)
            tensor = BatchTensor(output.name, output.datatype, tuple(output.shape), [content])
            self._live[output.name] = _Live(tensor) if at is None else _Live(tensor, self._written, at)
        if self._written:
            self._held.append(self._written)
        self._written, self._written_at = None, {}

    def outcomes(self, answer: bytes) -> list[bytes]:
        """Return the clients' responses from that of the last stage. Raises ScatterError."""
        if self._outputs:
            self.answered(answer)
            return self._from_live(read_answer(answer)[0])
        as_it_is = not self._written_at and self._as_it_is
        if as_it_is and len(answer) < SHARED_FROM_BYTES:
            return [answer]
        header, tensors = self._open(answer)
        return [answer] if as_it_is else scatter(header, tensors, self.envelopes)

    def _from_live(self, last: service_pb2.ModelInferResponse) -> list[bytes]:
        header = service_pb2.ModelInferResponse(model_name=self.envelopes[0].model, model_version=last.model_version)
        contents = []
        for name in outputs_wanted(self.envelopes) or self._outputs:
            if name not in self._live:
                raise ScatterError(f"no partition gave output {name!r}")
            tensor = self._live[name].tensor
            header.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            (piece,) = tensor.pieces
            assert not isinstance(piece, ResizedTensor), "what clients sent is padded, not what partitions gave"
            contents.append(memoryview(piece))
        return scatter(header, contents, self.envelopes)

    def sharing_broke(self, target: StageTarget) -> None:
        """Handle a Triton that lost a region, or whose response was larger than expected."""
        self._sizes.forget(target.partition, self.envelopes[0].merge_key)
        if self._regions:
            self._regions.forget(target.backend)

    def close(self, *, finished: bool) -> None:
        """Release the batch. `finished`: all of its calls have ended, so no Triton writes to its regions."""
        self._live = {}
        if self._regions:
            for region in (*self._held, *([self._written] if self._written else [])):
                (self._regions.give_back if finished else self._regions.discard)(region)
        self._held, self._written = [], None

    def _drop_written(self) -> None:
        if self._written and self._regions:
            self._regions.discard(self._written)
        self._written, self._written_at, self._reads = None, {}, False

    def _large_bytes(self) -> int:
        """Return the bytes of the clients' inputs that may be shared."""
        if self._bytes < SHARED_FROM_BYTES:
            return 0
        least = LARGE_TENSOR_BYTES / len(self.envelopes)
        return sum(len(tensor) for envelope in self.envelopes for tensor in envelope.tensors if len(tensor) >= least)

    def _inputs(self, target: StageTarget) -> list[_Live]:
        if target.alone or target.signature is None:
            return list(self._live.values())
        return [self._live[name] for name in target.signature.inputs if name in self._live]

    def _wanted(self, target: StageTarget) -> Sequence[str]:
        """The outputs that a stage is asked for; none: all of them."""
        return outputs_wanted(self.envelopes) if target.alone else []

    def _expected(self, target: StageTarget) -> dict[str, int]:
        """Bytes of the outputs that are asked for, as far as they are known, by name."""
        known = self._sizes.get(target.partition, self.envelopes[0].merge_key)
        if not known or target.signature is None:
            return {}
        names = self._wanted(target) or sorted(target.signature.outputs)
        return {name: known[name] * self._rows for name in names if name in known}

    def _add_inputs(
        self, header: service_pb2.ModelInferRequest, inputs: Sequence[_Live], into: SharedRegion | None, *, share: bool
    ) -> list[Sequence[Piece]]:
        """Declare the inputs; returns those that are sent. `into`: where the others are copied."""
        sent: list[Sequence[Piece]] = []
        at = 0
        for live in inputs:
            tensor = live.tensor
            declared = header.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            size = tensor.size
            if share and live.region and size:
                _in_region(declared, live.region, live.at, size)
                self._reads = True
            elif into and size >= LARGE_TENSOR_BYTES:
                _in_region(declared, into, at, size)
                at = _aligned(into.write(at, tensor.pieces))
            else:
                sent.append(tensor.pieces)
        return sent

    def _add_outputs(
        self, header: service_pb2.ModelInferRequest, target: StageTarget, expected: dict[str, int], first_at: int
    ) -> None:
        """Declare the outputs that are asked for; `expected` ones are written to the region, from `first_at` on."""
        wanted = self._wanted(target)
        if not self._written:
            expected = {}
        at = first_at
        for name in wanted or (sorted(target.signature.outputs) if expected and target.signature else ()):
            declared = header.outputs.add(name=name)
            size = expected.get(name, 0)
            if self._written and size:
                _in_region(declared, self._written, at, size)
                self._written_at[name] = at
                at += _aligned(size)

    def _open(self, answer: bytes) -> tuple[service_pb2.ModelInferResponse, list[memoryview]]:
        """An answer and its tensors, wherever they are; their sizes are learned."""
        header, tensors = read_answer(answer)
        sizes: dict[str, int] = {}
        for position, output in enumerate(header.outputs):
            if output.datatype not in ELEMENT_BYTES:
                continue
            at = self._written_at.get(output.name)
            if at is not None and self._written:
                size = prod(output.shape) * ELEMENT_BYTES[output.datatype]
                tensors[position] = self._written.memory[at : at + size]
            per_row, left_over = divmod(len(tensors[position]), self._rows)
            if not left_over:
                sizes[output.name] = per_row
        if self._regions and sum(sizes.values()) * self._rows >= SHARED_FROM_BYTES:
            self._sizes.learn(self._partition, self.envelopes[0].merge_key, sizes)
        return header, tensors


def _in_region(declared: Any, region: SharedRegion, at: int, size: int) -> None:  # noqa: ANN401 - of two kinds of protobuf
    declared.parameters["shared_memory_region"].string_param = region.name
    declared.parameters["shared_memory_byte_size"].int64_param = size
    if at:
        declared.parameters["shared_memory_offset"].int64_param = at


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(slots=True, eq=False)
class StageRun:
    """Stage that runs on its Triton."""

    effect: StartStage
    worker_id: int
    target: StageTarget
    payload: BatchPayload
    clients: list[PendingRequest]
    """Clients of the whole batch: its rows keep their places when one leaves."""
    started_ns: int
    waiting: int
    """Number of clients that have not left."""
    execution: BatchSpan | None = None
    """Span for tracing."""
    cancel: Callable[[], None] | None = None
    """Ends the call; None: it was not sent."""
    recovery: asyncio.Task[None] | None = None
    """Task that handles its failure."""
    is_slot: bool = False
    """Whether it is a request that occupies a slot until its last response."""
    limit: ConcurrencyLimit | None = None
    """Adaptive concurrency limit by which it has its slot."""
    batch_id: int = field(init=False)
    backend: Backend = field(init=False)
    """Triton that runs it."""
    is_last: bool = field(init=False)
    """Whether its batch is answered after it."""

    def __post_init__(self) -> None:
        batch = self.effect.batch
        self.batch_id, self.backend = batch.id, self.target.backend
        self.is_last = self.effect.stage + 1 == len(batch.stages)

    def is_ended_by(self, cancel: Callable[[], None]) -> None:
        """Record the function that ends the call of a sent stage."""
        self.cancel = cancel

    @property
    def upper_ns(self) -> int:
        """Predicted duration."""
        return self.effect.batch.stages[self.effect.stage].duration_ns

    @property
    def abandoned(self) -> bool:
        """Whether no client waits for it any more."""
        return self.waiting == 0

    def stop(self) -> None:
        """Cancel the stage; its result is ignored."""
        if self.cancel:
            self.cancel()
        if self.recovery:
            self.recovery.cancel()
        self.payload.close(finished=False)


class RunningStages:
    """Running stages, and ended ones with a successor, by batch: at most one of each."""

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._running: dict[int, StageRun] = {}
        self._between: dict[int, StageRun] = {}
        """The stage that ended last of those that have more of them."""
        self._freed_ns: dict[int, int] = {}
        """When the latest stage of a worker ended, by its id: what was sent behind that has run since."""

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[StageRun]:
        """The stages that run, in the order in which they were sent."""
        return iter(list(self._running.values()))

    def __contains__(self, run: StageRun) -> bool:
        """Whether it runs: it does not where its worker was given up, and its requests with it."""
        return self._running.get(run.batch_id) is run

    def is_running(self, batch_id: int) -> bool:
        """Return whether a stage of a batch runs."""
        return batch_id in self._running

    def begin(self, run: StageRun) -> None:
        """Register a stage that is sent to its Triton."""
        self._running[run.batch_id] = run
        if turns := run.backend.turns:
            effect = run.effect
            key = effect.batch.model, effect.rows, effect.shape
            try:
                turns.slowdown.sent(run.started_ns, run.worker_id, run.batch_id, key)
            except Exception as error:
                _end_turns(run, error)

    def end(self, run: StageRun, *, well: bool = False) -> int:
        """Remove a stage that has ended; return the current instant. `well`: it was answered."""
        del self._running[run.batch_id]
        ended_ns = self.free(run.worker_id)
        _over(run, ended_ns, teaches=well)
        return ended_ns

    def free(self, worker_id: int) -> int:
        """Mark a worker as idle after a stage; return the current instant."""
        now_ns = self._freed_ns[worker_id] = time.monotonic_ns()
        return now_ns

    def keep(self, run: StageRun) -> None:
        """Keep an ended stage whose batch continues."""
        self._between[run.batch_id] = run

    def take_last(self, batch_id: int) -> StageRun | None:
        """Remove and return the previous stage of a batch; None for its first stage."""
        return self._between.pop(batch_id, None)

    def run_of(self, client: PendingRequest) -> StageRun | None:
        """Return the stage that runs for a client, or None."""
        return None if client.batch_id is None else self._running.get(client.batch_id)

    def has_begun(self, client: PendingRequest) -> bool:
        """Return whether a client's batch has a stage that runs or has ended."""
        return client.batch_id in self._running or client.batch_id in self._between

    def is_behind(self, run: StageRun) -> bool:
        """Return whether another stage runs on the worker of this one."""
        return any(other.worker_id == run.worker_id and other is not run for other in self._running.values())

    def since_ns(self, run: StageRun) -> int:
        """Return the instant since when a stage runs: it was sent, or the one before it on its worker ended."""
        return max(run.started_ns, self._freed_ns.get(run.worker_id, 0))

    def forget(self, workers: Container[int]) -> list[StageRun]:
        """Remove and return the stages on lost workers."""
        runs = [run for run in self._running.values() if run.worker_id in workers]
        now_ns = time.monotonic_ns()
        for run in runs:
            del self._running[run.batch_id]
            _over(run, now_ns, teaches=False)
        return runs

    def forget_batch(self, batch_id: int) -> list[StageRun]:
        """Remove and return the stages of a batch."""
        runs = []
        if run := self._running.pop(batch_id, None):
            _over(run, time.monotonic_ns(), teaches=False)
            runs.append(run)
        if run := self._between.pop(batch_id, None):
            runs.append(run)
        return runs

    def forget_stranded(self) -> list[StageRun]:
        """Remove and return the stages of batches that the engine does not know."""
        now_ns, flight = time.monotonic_ns(), self._engine.engine.flight
        running = [run for batch_id, run in self._running.items() if flight(batch_id) is None]
        between = [run for batch_id, run in self._between.items() if flight(batch_id) is None]
        for run in running:
            del self._running[run.batch_id]
            _over(run, now_ns, teaches=False)
        for run in between:
            del self._between[run.batch_id]
        return [*running, *between]

    def forget_all(self) -> None:
        """Remove every stage."""
        now_ns = time.monotonic_ns()
        for run in self._running.values():
            _over(run, now_ns, teaches=False)
        self._running, self._between = {}, {}


def _over(run: StageRun, now_ns: int, *, teaches: bool) -> None:
    if run.limit:
        run.limit.end(now_ns)
    if turns := run.backend.turns:
        try:
            turns.slowdown.over(now_ns, run.worker_id, run.batch_id, teaches=teaches)
        except Exception as error:
            _end_turns(run, error)


def _end_turns(run: StageRun, error: Exception) -> None:
    """Stop serialization at a Triton where it fails: learning interference must not cost a request."""
    faults.report("learning how models slow each other down", error)
    run.backend.end_turns()


RESERVED_FRACTION = 0.1
"""Fraction of the limit that is reserved for clients and models with few queued requests."""


@dataclass(slots=True)
class QueueLoad:
    """Number of waiting requests and bytes."""

    requests: int = 0
    bytes: int = 0


def queue_refusal(limits: QueueLimits, waiting: QueueLoad, of_client: QueueLoad, of_model: QueueLoad) -> str:
    """Return why another request is rejected at these loads in all, of its client and of its model, or ""."""
    if waiting.requests < limits.requests and waiting.bytes < limits.bytes:
        return ""
    full = _reached(limits, waiting, 1)
    if not full or _reached(limits, waiting, 1 + RESERVED_FRACTION):
        return full
    shares = (
        (of_client, limits.reserved_queue_fraction_per_client),
        (of_model, limits.reserved_queue_fraction_per_model),
    )
    return "" if any(not _reached(limits, load, share) for load, share in shares) else full


def _reached(limits: QueueLimits, load: QueueLoad, share: float) -> str:
    """Return the limit that is reached, of the whole queue or of a share; None if none is."""
    if load.requests >= int(limits.requests * share):
        return "requests"
    return "bytes" if load.bytes >= int(limits.bytes * share) else ""


class PendingRequests:
    """Waiting clients by request id."""

    def __init__(self, observability: Observability) -> None:
        self._observability = observability
        self._by_request: dict[int, PendingRequest] = {}
        self.numbered = 0
        """Number of ids assigned."""
        self._load = QueueLoad()
        self._load_of_owner: dict[str, QueueLoad] = {}
        self._load_of_model: dict[str, QueueLoad] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(list(self._by_request.values()))

    def __contains__(self, client: PendingRequest) -> bool:
        return client.request_id in self._by_request

    def number(self, client: PendingRequest) -> int:
        """Assign an id to a request."""
        client.request_id = number = self.numbered
        self.numbered += 1
        return number

    def of(self, request_ids: Iterable[int]) -> list[PendingRequest]:
        """Return the clients of a batch that still wait."""
        return [client for request_id in request_ids if (client := self._by_request.get(request_id))]

    @property
    def waiting_by_model(self) -> dict[str, int]:
        """Number of waiting clients by model."""
        return {model: load.requests for model, load in self._load_of_model.items()}

    @property
    def held_bytes(self) -> int:
        """Total bytes of their requests."""
        return self._load.bytes

    def admit(self, client: PendingRequest, limits: QueueLimits) -> bool:
        """Add a client, and return True, unless a limit is reached."""
        model = client.envelope.model
        of_owner = self._load_of_owner.get(client.owner) or QueueLoad()
        of_model = self._load_of_model.get(model) or QueueLoad()
        if refusal := queue_refusal(limits, self._load, of_owner, of_model):
            self._observability.metrics.counts.refused[model, refusal] += 1
            return False
        self._by_request[client.request_id] = client
        self._load_of_owner[client.owner], self._load_of_model[model] = of_owner, of_model
        for load in (self._load, of_owner, of_model):
            load.requests += 1
            load.bytes += len(client.envelope.message)
        return True

    def remove(self, request_id: int) -> PendingRequest | None:
        """Remove and return the client of a request; None if it does not wait."""
        client = self._by_request.pop(request_id, None)
        if client:
            of_owner = self._load_of_owner[client.owner]
            for load in (self._load, of_owner, self._load_of_model[client.envelope.model]):
                load.requests -= 1
                load.bytes -= len(client.envelope.message)
            if not of_owner.requests:  # connections come and go
                del self._load_of_owner[client.owner]
        return client

    def fail(self, request_id: int, failure: RequestFailed) -> None:
        """Fail a request whose client still waits."""
        if client := self.remove(request_id):
            self.tell(client, failure)

    def settle(self, run: StageRun, outcomes: Sequence[Outcome], output_ns: int = 0) -> None:
        """Answer all clients of a batch; `output_ns`: time that splitting the response took, in ns."""
        waiting = [self.remove(client.request_id) for client in run.clients]
        answered: list[PendingRequest] = []
        for client, outcome in zip(waiting, outcomes, strict=True):
            if client is None:
                continue
            if isinstance(outcome, RequestFailed):
                self.tell(client, outcome)
            else:
                self._give(client, outcome)
                answered.append(client)
        if answered:
            self._observability.answered(answered, run.execution, output_ns)

    def conclude(self, client: PendingRequest, run: StageRun) -> None:
        """Count a client as answered whose responses did not pass through here."""
        if self.remove(client.request_id):
            self._observability.answered([client], run.execution, 0)

    def tell(self, client: PendingRequest, failure: RequestFailed) -> None:
        """Fail a request: notify the client first, then the observers."""
        self._give(client, failure)
        self._observability.failed(client, failure.category, failure.outcome)

    def _give(self, client: PendingRequest, outcome: Outcome) -> None:
        try:
            client.resolve(outcome)
        except Exception as error:
            faults.report("answering a client", error)
            with faults.contained("answering a client"):
                client.resolve(own_fault())
