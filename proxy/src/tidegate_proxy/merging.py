"""Gather envelopes into one request for Triton, along the batch dimension; scatter its answer to them again."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import wire
from tidegate_proxy.envelope import PRIVATE_PARAMETERS, Envelope
from tidegate_proxy.signature import split_elements


class ScatterError(Exception):
    """Triton's answer cannot be divided among the requests: an output does not have one row per row of input."""


def gather(envelopes: Sequence[Envelope]) -> bytes:
    """One ModelInferRequest of all rows, in order. A single envelope is sent as it came."""
    if len(envelopes) == 1:
        return envelopes[0].message
    first = envelopes[0]
    merged = service_pb2.ModelInferRequest(model_name=first.header.model_name, model_version=first.header.model_version)
    rows = sum(envelope.rows for envelope in envelopes)
    orders = [envelope.in_order_of_names() for envelope in envelopes]
    for position in orders[0]:
        declared = first.header.inputs[position]
        merged.inputs.add(name=declared.name, datatype=declared.datatype, shape=(rows, *declared.shape[1:]))
    for name, value in first.header.parameters.items():
        if name not in PRIVATE_PARAMETERS:
            merged.parameters[name].CopyFrom(value)
    for name in _outputs_wanted(envelopes):
        merged.outputs.add(name=name)
    tensors = (
        [envelope.tensors[order[index]] for envelope, order in zip(envelopes, orders, strict=True)]
        for index in range(len(orders[0]))
    )
    return wire.join(merged.SerializeToString(), tensors, wire.REQUEST_RAW_FIELD)


def scatter(response: bytes, envelopes: Sequence[Envelope]) -> list[bytes]:
    """Each envelope's ModelInferResponse: its rows, its id, the outputs it asked for.

    Raises ScatterError where the answer cannot be divided. The answer to a single envelope is its own.
    """
    if len(envelopes) == 1:
        return [response]
    try:
        header_bytes, tensors = wire.split(response, wire.RESPONSE_RAW_FIELD)
        header = service_pb2.ModelInferResponse.FromString(header_bytes)
    except (wire.WireError, DecodeError) as error:
        raise ScatterError("Triton's answer is no ModelInferResponse") from error
    if len(header.outputs) != len(tensors):
        raise ScatterError("Triton's answer does not carry its outputs as raw contents")
    rows = [envelope.rows for envelope in envelopes]
    pieces = [_divide(output, tensor, rows) for output, tensor in zip(header.outputs, tensors, strict=True)]
    return [
        _answer(header, envelope, [output_pieces[index] for output_pieces in pieces])
        for index, envelope in enumerate(envelopes)
    ]


def _outputs_wanted(envelopes: Sequence[Envelope]) -> list[str]:
    """The outputs that anybody asked for; none when somebody wants all, which is what naming none means."""
    if not all(envelope.header.outputs for envelope in envelopes):
        return []
    return sorted({output.name for envelope in envelopes for output in envelope.header.outputs})


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
