"""One inference request inside the house: what scheduling needs to know of it, and its tensors as they came."""

from dataclasses import dataclass, replace
from math import prod

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import wire
from tidegate_proxy.reserved_names import REGION_PARAMETER, RESERVED
from tidegate_proxy.signature import ELEMENT_BYTES, Signature, split_elements

PRIVATE_PARAMETERS = ("timeout", "priority", "slo_ms", "triton_enable_empty_final_response")
"""Parameters that concern one request only: they neither hinder a merge nor go to Triton with a merged batch."""
_INTEGERS = {"timeout": ("int64_param",), "priority": ("int64_param", "uint64_param")}
"""Parameters that Triton refuses in any other form, and below zero the priority."""
MOST_ROWS = 2**31 - 1
"""What shapes say of requests without contents is believed so far: they are counted in 64 bits."""
MOST_HEADER_BYTES = 1 << 20
"""What a request says of its tensors, at most: what takes a client a moment to send must not take everybody seconds."""
_SMALL_HEADER_BYTES = 1 << 16
_NOT_MERGEABLE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A well-formed request of a batchable model."""

    message: bytes
    """As the client sent it: a batch of one request is forwarded as it is."""
    header: service_pb2.ModelInferRequest
    """The message without its tensors."""
    tensors: list[memoryview]
    """Raw contents of the inputs, in the header's order; slices of `message`."""
    rows: int
    merge_key: str
    signature: Signature
    """What it was found to fit; its model may have become another since."""

    def fits(self, signature: Signature) -> bool:
        """Whether it can be scheduled where its model is such a one."""
        if signature is self.signature:
            return True
        if replace(signature, max_rows=self.signature.max_rows) == self.signature:
            return self.rows <= signature.max_rows
        try:
            open_envelope(self.message, signature)
        except NotSchedulable:
            return False
        return True

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.header.model_name)

    def in_order_of_names(self) -> list[int]:
        """Positions of the inputs, sorted by name: clients may list them in any order."""
        return sorted(range(len(self.tensors)), key=lambda position: self.header.inputs[position].name)


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """What has to be known of a request that goes to a Triton as it is."""

    model: str
    version: str = ""
    rows: int = 1
    """As far as its shapes say; 1 for a model without rows as well."""
    sequence: str = ""
    """The id of its sequence, if it is of one."""
    regions: tuple[str, ...] = ()
    """Of shared memory, in which some of its tensors are, or are to go."""
    id: str = ""
    header: service_pb2.ModelInferRequest | None = None
    """The message without its tensors."""
    refusal: str = ""
    """Why no Triton is given it, in words; "": one may be."""

    @classmethod
    def of(cls, message: bytes) -> "PassedThrough":
        """Look at a serialized ModelInferRequest; what is none is of no model."""
        try:
            header, _ = _parse(message)
        except Overgrown as error:
            return cls("", refusal=str(error))
        except NotSchedulable:
            return cls("", regions=_regions_in(message))
        sequence: str | int = ""
        if "sequence_id" in header.parameters:
            given = header.parameters["sequence_id"]
            sequence = given.string_param or given.uint64_param or given.int64_param
        tensors = (*header.inputs, *header.outputs)
        return cls(
            header.model_name,
            header.model_version,
            min(max(1, header.inputs[0].shape[0]), MOST_ROWS) if header.inputs and header.inputs[0].shape else 1,
            str(sequence or ""),
            tuple(
                tensor.parameters[REGION_PARAMETER].string_param
                for tensor in tensors
                if REGION_PARAMETER in tensor.parameters
            ),
            header.id,
            header,
        )


class NotSchedulable(Exception):
    """A request that Triton has to see as it is: it cannot be merged, or is wrong and Triton knows the words for it."""


class Overgrown(NotSchedulable):
    """A request that says so much beside its tensors that nobody can look at it in reasonable time."""


def open_envelope(message: bytes, signature: Signature) -> Envelope:
    """Look into a request of a batchable model.

    Raises NotSchedulable for one that cannot be merged (sequences, shared memory, classification, typed contents) or
    is not well-formed: a batch must never fail because of one request in it.
    """
    header, tensors = _parse(message)
    if header.model_name != signature.model:
        raise NotSchedulable("it names its model twice, and the last one counts")
    _check_parameters(header)
    if any(output.parameters or output.name not in signature.outputs for output in header.outputs):
        raise NotSchedulable("an output goes to shared memory, is classified, or is unknown")
    rows = _check_inputs(header, tensors, signature)
    return Envelope(message, header, tensors, rows, _merge_key(header), signature)


def _parse(message: bytes) -> tuple[service_pb2.ModelInferRequest, list[memoryview]]:
    try:
        header_bytes, tensors = wire.split(message, wire.REQUEST_RAW_FIELD)
        if len(header_bytes) > _SMALL_HEADER_BYTES:
            header_bytes = wire.without_contents(header_bytes)
        if len(header_bytes) > MOST_HEADER_BYTES:
            raise Overgrown(f"the request says more than {MOST_HEADER_BYTES} bytes beside its tensors")
        return service_pb2.ModelInferRequest.FromString(header_bytes), tensors
    except wire.TooManyFields as error:
        raise Overgrown(str(error)) from error
    except (wire.WireError, DecodeError) as error:
        raise NotSchedulable("it is no ModelInferRequest") from error


def _regions_in(message: bytes) -> tuple[str, ...]:
    """Of a message that cannot be read here, and perhaps by a Triton: how the names of its regions may begin."""
    if REGION_PARAMETER.encode() not in message:
        return ()
    return tuple(prefix for prefix in RESERVED if prefix.encode() in message) or ("",)


def _check_parameters(header: service_pb2.ModelInferRequest) -> None:
    for name, value in header.parameters.items():
        if name in _NOT_MERGEABLE:
            raise NotSchedulable("it belongs to a sequence or a stream")
        if name in _INTEGERS and value.WhichOneof("parameter_choice") not in _INTEGERS[name]:
            raise NotSchedulable(f"{name} is no integer")
        if name == "priority" and value.int64_param < 0:
            raise NotSchedulable("priority is negative")


def _check_inputs(header: service_pb2.ModelInferRequest, tensors: list[memoryview], signature: Signature) -> int:
    """The request's rows, once everything about its inputs is as the model's config says."""
    if len(tensors) != len(header.inputs):
        raise NotSchedulable("typed contents or shared memory")
    rows = 0
    names = set()
    for declared, tensor in zip(header.inputs, tensors, strict=True):
        spec = signature.inputs.get(declared.name)
        shape = tuple(declared.shape)
        if spec is None or declared.parameters or not spec.accepts(declared.datatype, shape):
            raise NotSchedulable(f"input {declared.name!r} is not as the model's config says")
        if declared.HasField("contents"):
            raise NotSchedulable("typed contents beside raw ones")
        rows = rows or shape[0]
        if shape[0] != rows or not 1 <= rows <= signature.max_rows:
            raise NotSchedulable(f"its rows differ, are none, or exceed max_batch_size, {signature.max_rows}")
        _check_size(declared.datatype, prod(shape), tensor)
        names.add(declared.name)
    missing = any(name not in names and not spec.optional for name, spec in signature.inputs.items())
    if missing or len(names) != len(tensors):
        raise NotSchedulable("an input is missing or given twice")
    return rows


def _check_size(datatype: str, elements: int, tensor: memoryview) -> None:
    if datatype == "BYTES":
        try:
            split_elements(tensor, elements)
        except ValueError as error:
            raise NotSchedulable(str(error)) from error
    elif len(tensor) != elements * ELEMENT_BYTES[datatype]:
        raise NotSchedulable("a tensor's size is not that of its shape")


def _merge_key(header: service_pb2.ModelInferRequest) -> str:
    """Equal for requests that can share a batch, and only for them: all that Triton sees but rows, tensors and outputs.

    The version, names, datatypes and shapes beyond the rows of the inputs, and the parameters. As Python writes tuples:
    what is in a name stays between its quotes.
    """
    inputs = sorted([(declared.name, declared.datatype, *declared.shape[1:]) for declared in header.inputs])
    parameters = sorted(
        [
            (name, value.SerializeToString())
            for name, value in header.parameters.items()
            if name not in PRIVATE_PARAMETERS
        ]
    )
    return repr((header.model_version, inputs, parameters))
