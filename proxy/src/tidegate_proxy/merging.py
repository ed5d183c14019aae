"""Merge the requests of a batch along the batch dimension, and divide Triton's answer among them again."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import wire
from tidegate_proxy.envelope import PRIVATE_PARAMETERS, Envelope
from tidegate_proxy.signature import split_elements
from tidegate_proxy.wire import Buffer


class ScatterError(Exception):
    """Triton's answer cannot be divided among the requests: an output does not have one row per row of input."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a batch, rows first, in the pieces that it is concatenated from."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    pieces: Sequence[Buffer]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.pieces))


def merged_header(envelopes: Sequence[Envelope]) -> service_pb2.ModelInferRequest:
    """What a request for all of them says besides its tensors. A single one keeps what concerns only itself."""
    first = envelopes[0].header
    header = service_pb2.ModelInferRequest(model_name=first.model_name, model_version=first.model_version)
    alone = len(envelopes) == 1
    if alone:
        header.id = first.id
    for name, value in first.parameters.items():
        if alone or name not in PRIVATE_PARAMETERS:
            header.parameters[name].CopyFrom(value)
    return header


def merged_inputs(envelopes: Sequence[Envelope]) -> list[Tensor]:
    """Their inputs, each of all rows, in order."""
    rows = sum(envelope.rows for envelope in envelopes)
    orders = [envelope.in_order_of_names() for envelope in envelopes]
    first = envelopes[0].header
    return [
        Tensor(
            first.inputs[position].name,
            first.inputs[position].datatype,
            (rows, *first.inputs[position].shape[1:]),
            [envelope.tensors[order[index]] for envelope, order in zip(envelopes, orders, strict=True)],
        )
        for index, position in enumerate(orders[0])
    ]


def outputs_wanted(envelopes: Sequence[Envelope]) -> list[str]:
    """The outputs that anybody asked for; none when somebody wants all, which is what naming none means."""
    if len(envelopes) == 1:
        return [output.name for output in envelopes[0].header.outputs]
    if not all(envelope.header.outputs for envelope in envelopes):
        return []
    return sorted({output.name for envelope in envelopes for output in envelope.header.outputs})


def read_answer(answer: bytes) -> tuple[service_pb2.ModelInferResponse, list[memoryview]]:
    """A serialized ModelInferResponse without its tensors, and those, one for each output. Raises ScatterError."""
    try:
        header_bytes, tensors = wire.split(answer, wire.RESPONSE_RAW_FIELD)
        header = service_pb2.ModelInferResponse.FromString(header_bytes)
    except (wire.WireError, DecodeError) as error:
        raise ScatterError("Triton's answer is no ModelInferResponse") from error
    if len(header.outputs) != len(tensors):
        raise ScatterError("Triton's answer does not carry its outputs as raw contents")
    return header, tensors


def scatter(
    header: service_pb2.ModelInferResponse, tensors: Sequence[memoryview], envelopes: Sequence[Envelope]
) -> list[bytes]:
    """Each envelope's ModelInferResponse: its rows, its id, the outputs it asked for.

    Raises ScatterError where the answer cannot be divided. The answer to a single envelope is its own.
    """
    if len(envelopes) == 1:
        return [wire.join(header.SerializeToString(), [[tensor] for tensor in tensors], wire.RESPONSE_RAW_FIELD)]
    rows = [envelope.rows for envelope in envelopes]
    pieces = [_divide(output, tensor, rows) for output, tensor in zip(header.outputs, tensors, strict=True)]
    return [
        _answer(header, envelope, [output_pieces[index] for output_pieces in pieces])
        for index, envelope in enumerate(envelopes)
    ]


def _divide(
    output: service_pb2.ModelInferResponse.InferOutputTensor, tensor: memoryview, rows: Sequence[int]
) -> list[memoryview]:
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


def _answer(header: service_pb2.ModelInferResponse, envelope: Envelope, pieces: Sequence[memoryview]) -> bytes:
    wanted = {output.name for output in envelope.header.outputs}
    answer = service_pb2.ModelInferResponse(
        model_name=header.model_name, model_version=header.model_version, id=envelope.header.id
    )
    for name, value in header.parameters.items():
        answer.parameters[name].CopyFrom(value)
    kept = []
    for output, piece in zip(header.outputs, pieces, strict=True):
        if wanted and output.name not in wanted:
            continue
        mine = answer.outputs.add()
        mine.CopyFrom(output)
        mine.shape[0] = envelope.rows
        kept.append((piece,))
    return wire.join(answer.SerializeToString(), kept, wire.RESPONSE_RAW_FIELD)
