"""One inference request inside the house: what scheduling needs to know of it, and its tensors as they came."""

from dataclasses import dataclass, replace

from tritonclient.grpc import service_pb2

from tidegate_proxy import wire
from tidegate_proxy.heading import Heading, Headings, NotSchedulable, Overgrown, parsed
from tidegate_proxy.reserved_names import REGION_PARAMETER, RESERVED
from tidegate_proxy.signature import Signature
from tidegate_proxy.typed_contents import with_raw_contents

MOST_ROWS = 2**31 - 1
"""What shapes say of requests without contents is believed so far: they are counted in 64 bits."""


@dataclass(slots=True)
class Envelope:
    """A well-formed request of a batchable model. Nobody changes it."""

    message: bytes
    """As the client sent it: a batch of one request is forwarded as it is."""
    heading: Heading
    """What it says of itself beside its id and its tensors."""
    id_field: bytes
    """Its id as a field of a message, a request's or an answer's; empty where it has none."""
    id: str
    tensors: list[memoryview]
    """Raw contents of the inputs, in the header's order; slices of `message`."""
    signature: Signature
    """What it was found to fit; its model may have become another since."""
    model: str
    """The model's name."""
    rows: int
    """Its size along the batch dimension."""
    merge_key: str
    """Equal for requests that can share a batch."""

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


def open_envelope(message: bytes, signature: Signature) -> Envelope:
    """Look into a request of a batchable model, as `open_known`."""
    return open_known(message, Headings(signature))


def open_known(message: bytes, headings: Headings) -> Envelope:
    """Look into a request of a batchable model.

    Raises NotSchedulable for one that cannot be merged (sequences, shared memory, classification) or is not
    well-formed: a batch must never fail because of one request in it. Typed contents are written as raw ones.
    """
    if taken := headings.take(message):
        heading, id_field, tensors = taken
        name = _id_in(id_field)
    else:
        header, id_field, name, tensors = _split(message)
        if not tensors and (raw := with_raw_contents(message)):
            message = raw
            header, id_field, name, tensors = _split(message)
        heading = headings.read(message, header, tensors)
    return Envelope(
        message, heading, id_field, name, tensors, headings.signature, heading.model, heading.rows, heading.merge_key
    )


def _split(message: bytes) -> tuple[bytes, bytes, str, list[memoryview]]:
    """The header, the id as a field and as text, the tensors."""
    try:
        header, id_field, tensors = wire.split(message, wire.REQUEST_RAW_FIELD)
    except wire.TooManyFields as error:
        raise Overgrown(str(error)) from error
    except wire.WireError as error:
        raise NotSchedulable("it is no ModelInferRequest") from error
    return header, id_field, _id_in(id_field), tensors


def _id_in(field: bytes) -> str:
    try:
        return wire.string_in(field) if field else ""
    except wire.WireError as error:
        raise NotSchedulable("it is no ModelInferRequest") from error


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
    """The regions of shared memory in which some of its tensors are, or are to go."""
    id: str = ""
    header: service_pb2.ModelInferRequest | None = None
    """The message without its id and its tensors."""
    refusal: str = ""
    """Why no Triton is given it, in words; "": one may be."""

    @property
    def is_no_message(self) -> bool:
        """Whether it cannot be read."""
        return self.header is None and not self.refusal

    @classmethod
    def of(cls, message: bytes) -> "PassedThrough":
        """Look at a serialized ModelInferRequest; what is none is of no model."""
        try:
            header_bytes, _, name, _ = _split(message)
            header = parsed(header_bytes)
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
            name,
            header,
        )


def _regions_in(message: bytes) -> tuple[str, ...]:
    """How the names of regions may begin in a message that cannot be read here, and perhaps by a Triton."""
    if REGION_PARAMETER.encode() not in message:
        return ()
    return tuple(prefix for prefix in RESERVED if prefix.encode() in message) or ("",)
