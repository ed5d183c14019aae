"""Tensors of a batch along its stages: to a Triton, on to the next one, back to the clients.

Small ones are sent in the calls. Large ones are in shared memory with local Tritons: each is copied there once, from
the clients' requests, and once from there, into their responses; between stages nothing is copied. Response sizes are
learned from earlier responses to requests of the same shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from tritonclient.grpc import service_pb2

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
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.shared_memory import SharedRegion, SharedRegions

SHARED_FROM_BYTES: Final = 65536
"""Size in bytes from which tensors are shared: below it, copying is cheaper."""
ALIGNMENT_BYTES: Final = 64
MAX_SIZES: Final = 4096


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
        if len(self._seen) >= MAX_SIZES:
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
        if target.alone and (self._regions is None or max(self._bytes, output_bytes) < SHARED_FROM_BYTES):
            return self.envelopes[0].message if as_it_came else merged_message(self.envelopes, self._rows)
        if not self._live:
            self._live = {tensor.name: _Live(tensor) for tensor in merged_inputs(self.envelopes)}
        inputs = self._inputs(target)
        input_bytes = sum(_aligned(each.tensor.size) for each in inputs if not (share and each.region))
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
            elif into and size:
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
