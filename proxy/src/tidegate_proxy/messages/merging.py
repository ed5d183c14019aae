"""Merging of a batch's requests along the batch dimension, and splitting of Triton's response."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy.messages import wire
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, split_elements
from tidegate_proxy.messages.padding import OutputCut, Piece, TensorResize, join
from tidegate_proxy.messages.request import InferenceRequest, ParsedHeader

Output: TypeAlias = service_pb2.ModelInferResponse.InferOutputTensor
MAX_MERGED: Final = 64
"""Number of cached headers of merged requests."""
_HEADER_BYTES: Final = 1 << 16
"""The most bytes of an answer before its tensors."""


class ScatterError(Exception):
    """Error: Triton's response cannot be split among the requests: an output does not have one row per row of input."""


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """Tensor of a batch, rows first, in the pieces that it is concatenated from."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(len, self.pieces))


def merged_header(envelopes: Sequence[InferenceRequest]) -> service_pb2.ModelInferRequest:
    """Return the fields of a merged request beside its tensors. A single request keeps its own fields."""
    first = envelopes[0].heading
    header = service_pb2.ModelInferRequest(model_name=first.model, model_version=first.version)
    alone = len(envelopes) == 1
    if alone:
        header.id = envelopes[0].id
    for name, value in first.header.parameters.items():
        if alone or name not in first.private:
            header.parameters[name].CopyFrom(value)
    return header


def merged_message(envelopes: Sequence[InferenceRequest], rows: int) -> bytes:
    """Build the merged request of these requests, with `rows` rows. Its header is cached with the first request's."""
    first, wanted = envelopes[0].heading, tuple(outputs_wanted(envelopes))
    header = first.merged.get((rows, wanted))
    if header is None:
        message = merged_header(envelopes)
        message.ClearField("id")
        for position in first.order:
            declared = first.header.inputs[position]
            shape = first.shape_run(declared.name, declared.shape)
            message.inputs.add(name=declared.name, datatype=declared.datatype, shape=(rows, *shape[1:]))
        for name in wanted:
            message.outputs.add(name=name)
        if len(first.merged) >= MAX_MERGED:
            first.merged.clear()
        header = first.merged[rows, wanted] = message.SerializeToString()
    if len(envelopes) == 1:
        header += envelopes[0].id_field
    return join(header, _in_order(envelopes), wire.REQUEST_RAW_FIELD)


def merged_inputs(envelopes: Sequence[InferenceRequest]) -> list[BatchTensor]:
    """Return the merged inputs, in order."""
    rows = sum(envelope.rows for envelope in envelopes)
    heading = envelopes[0].heading
    declared = [heading.header.inputs[position] for position in heading.order]
    return [
        BatchTensor(each.name, each.datatype, (rows, *heading.shape_run(each.name, each.shape)[1:]), pieces)
        for each, pieces in zip(declared, _in_order(envelopes), strict=True)
    ]


def _in_order(envelopes: Sequence[InferenceRequest]) -> Iterator[Sequence[Piece]]:
    """For each of their inputs, sorted by name, the contents in all of them, as they run."""
    several = [
        (envelope.tensors if envelope.heading.padded is None else _as_run(envelope), envelope.heading.order)
        for envelope in envelopes
    ]
    return ([tensors[order[index]] for tensors, order in several] for index in range(len(several[0][1])))


def _as_run(envelope: InferenceRequest) -> list[Piece]:
    resizes = envelope.heading.padded.resizes if envelope.heading.padded else {}
    return [
        resizes[declared.name].of(tensor) if declared.name in resizes else tensor
        for declared, tensor in zip(envelope.heading.header.inputs, envelope.tensors, strict=True)
    ]


def outputs_wanted(envelopes: Sequence[InferenceRequest]) -> Sequence[str]:
    """Return the outputs that any of the requests asks for; empty if one of them wants all."""
    first = envelopes[0].heading.wanted
    if all(envelope.heading.wanted == first for envelope in envelopes):
        return first
    if not all(envelope.heading.wanted for envelope in envelopes):
        return ()
    return sorted({name for envelope in envelopes for name in envelope.heading.wanted})


def read_answer(answer: bytes) -> tuple[service_pb2.ModelInferResponse, list[memoryview]]:
    """Split a serialized ModelInferResponse into its header, without id and tensors, and its output tensors.

    The header is shared between equal responses: do not modify it. Raises ScatterError.
    """
    try:
        header_bytes, _, tensors = wire.split(answer, wire.RESPONSE_RAW_FIELD)
        header = _parsed(header_bytes)
    except (wire.WireError, DecodeError) as error:
        raise ScatterError("Triton's answer is no ModelInferResponse") from error
    if len(header.outputs) != len(tensors):
        raise ScatterError("Triton's answer does not carry its outputs as raw contents")
    return header, tensors


@lru_cache(maxsize=512)
def _parsed(header: bytes) -> service_pb2.ModelInferResponse:
    return service_pb2.ModelInferResponse.FromString(header)


def scatter(
    header: service_pb2.ModelInferResponse, tensors: Sequence[memoryview], envelopes: Sequence[InferenceRequest]
) -> list[bytes]:
    """Return a ModelInferResponse for each request: its rows, its id, the requested outputs, without padding.

    Raises ScatterError if the response cannot be split. The response to a single request is kept. `tensors`: the
    response's raw outputs, in the order of its header.
    """
    if len(envelopes) == 1 and envelopes[0].heading.padded is None:
        shared = _SharedFields(header, list(header.outputs), range(len(tensors)))
        return [shared.answer(envelopes[0], tensors)]
    rows = [envelope.rows for envelope in envelopes]
    pieces = [_divide(output, tensor, rows) for output, tensor in zip(header.outputs, tensors, strict=True)]
    shared_fields: dict[tuple[object, ...], _SharedFields] = {}
    answers = []
    for index, envelope in enumerate(envelopes):
        heading = envelope.heading
        alike = heading.rows, heading.wanted, heading.padded and heading.padded.cuts
        if alike not in shared_fields:
            shared_fields[alike] = _shared_fields_of(heading, header)
        answers.append(shared_fields[alike].answer(envelope, [several[index] for several in pieces]))
    return answers


def has_strings(answer: bytes) -> bool:
    """Return whether an output of a serialized ModelInferResponse may be of type BYTES."""
    return answer.find(b"BYTES", 0, _HEADER_BYTES) >= 0


class _SharedFields:
    """Fields that several responses share, without ids and tensors."""

    __slots__ = ("_after_id", "_before_id", "_resizes", "kept")

    def __init__(
        self,
        header: service_pb2.ModelInferResponse,
        outputs: Iterable[Output],
        kept: Sequence[int],
        resizes: Mapping[int, TensorResize] | None = None,
    ) -> None:
        """`kept`: positions of the outputs among those of the batch; `resizes`: how some of those are cut."""
        before = service_pb2.ModelInferResponse(model_name=header.model_name, model_version=header.model_version)
        after = service_pb2.ModelInferResponse(outputs=outputs)
        for name, value in header.parameters.items():
            after.parameters[name].CopyFrom(value)
        self._before_id: bytes = before.SerializeToString()
        self._after_id: bytes = after.SerializeToString()
        self.kept = kept
        self._resizes = resizes

    def answer(self, envelope: InferenceRequest, contents: Sequence[memoryview]) -> bytes:
        """A serialized ModelInferResponse; `contents` of the outputs of its batch, as far as they are its own."""
        header = self._before_id + envelope.id_field + self._after_id
        if not self._resizes:
            return wire.join(header, [(contents[output],) for output in self.kept], wire.RESPONSE_RAW_FIELD)
        cut = [
            (self._resizes[output].of(contents[output]) if output in self._resizes else contents[output],)
            for output in self.kept
        ]
        return join(header, cut, wire.RESPONSE_RAW_FIELD)


def _shared_fields_of(heading: ParsedHeader, header: service_pb2.ModelInferResponse) -> _SharedFields:
    wanted = heading.wanted
    kept = [index for index, output in enumerate(header.outputs) if not wanted or output.name in wanted]
    outputs = []
    resizes: dict[int, TensorResize] = {}
    cuts = heading.padded.cuts if heading.padded else ()
    for index in kept:
        output = Output()
        output.CopyFrom(header.outputs[index])
        output.shape[0] = heading.rows
        shape = tuple(output.shape)
        for cut in cuts:
            if cut.output == output.name:
                _check_cut(cut, output, heading.model)
                output.shape[cut.axis] = cut.size
        if shape != (to := tuple(output.shape)):
            resizes[index] = TensorResize(ELEMENT_BYTES[output.datatype], shape, to)
        outputs.append(output)
    return _SharedFields(header, outputs, kept, resizes)


def _check_cut(cut: OutputCut, output: Output, model: str) -> None:
    """Raise ScatterError if an output of a padded request contradicts the configuration."""
    if cut.axis >= len(output.shape) or output.shape[cut.axis] != cut.padded or output.datatype not in ELEMENT_BYTES:
        raise ScatterError(
            f"output {cut.output!r} of the padded request is {output.datatype} of shape {list(output.shape)}, where "
            f"models.{model}.merge.pad says that axis {cut.axis} is {cut.padded}: correct that, or leave padding out"
        )


def _divide(output: Output, tensor: memoryview, rows: Sequence[int]) -> list[memoryview]:
    """One output's bytes by request."""
    starts = list(accumulate(rows, initial=0))
    total = starts[-1]
    if not output.shape or output.shape[0] != total:
        raise ScatterError(
            f"output {output.name!r} has shape {list(output.shape)}: it does not begin with the batch's {total} rows"
        )
    if output.datatype == "BYTES":
        per_row = prod(output.shape[1:])
        try:
            ends = [0, *split_elements(tensor, total * per_row)]
        except ValueError as error:
            raise ScatterError(f"output {output.name!r}: {error}") from error
        boundaries = [ends[row * per_row] for row in starts]
    else:
        row_bytes, left_over = divmod(len(tensor), total)
        if left_over:
            raise ScatterError(f"output {output.name!r}: {len(tensor)} bytes are no {total} equal rows")
        boundaries = [row * row_bytes for row in starts]
    return [tensor[start:end] for start, end in pairwise(boundaries)]
