"""A request that bypasses scheduling: what routing, sequences, slots and rollouts read of its message."""

from dataclasses import dataclass

from tritonclient.grpc import service_pb2

from tidegate_proxy.base.reserved_names import REGION_PARAMETER, RESERVED_PREFIXES
from tidegate_proxy.messages import wire
from tidegate_proxy.messages.request import MAX_ROWS, NotSchedulable, OversizedRequest, parsed, split_message


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """Facts about a request that bypasses scheduling."""

    model: str
    version: str = ""
    rows: int = 1
    """Rows by its shapes; 1 for a model without a batch dimension."""
    sequence: str = ""
    """Id of its sequence, or ""."""
    starts_sequence: bool = False
    """Whether it is the first one of its sequence."""
    ends_sequence: bool = False
    """Whether it is the last one of its sequence."""
    regions: tuple[str, ...] = ()
    """Regions of shared memory that hold some of its tensors, or will."""
    id: str = ""
    wanted: tuple[str, ...] = ()
    """Outputs that it names; empty: all."""
    header: service_pb2.ModelInferRequest | None = None
    """Message without its id and its tensors."""
    refusal: str = ""
    """Reason not to send it to any Triton; "" if it may be sent."""

    @property
    def is_no_message(self) -> bool:
        """Whether the message cannot be parsed."""
        return self.header is None and not self.refusal

    def with_name_first(self, message: bytes) -> bytes | None:
        """Return the message with its model's name in front, if it begins otherwise; None if it does not.

        The beginning decides about slots, loads and streams, and a parser takes the last name.
        """
        if self.header is None or wire.first_string(message) == self.model:
            return None
        return wire.with_model_name_first(message, self.model)

    @classmethod
    def of(cls, message: bytes) -> "PassedThrough":
        """Read a serialized ModelInferRequest; an invalid one belongs to no model."""
        try:
            header_bytes, _, name, _ = split_message(message)
            header = parsed(header_bytes)
        except OversizedRequest as error:
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
            min(max(1, header.inputs[0].shape[0]), MAX_ROWS) if header.inputs and header.inputs[0].shape else 1,
            str(sequence or ""),
            bool(sequence) and header.parameters["sequence_start"].bool_param,
            bool(sequence) and header.parameters["sequence_end"].bool_param,
            tuple(
                tensor.parameters[REGION_PARAMETER].string_param
                for tensor in tensors
                if REGION_PARAMETER in tensor.parameters
            ),
            name,
            tuple(output.name for output in header.outputs),
            header,
        )


def _regions_in(message: bytes) -> tuple[str, ...]:
    """How the names of regions may begin in a message that cannot be read here, and perhaps by a Triton."""
    if REGION_PARAMETER.encode() not in message:
        return ()
    return tuple(prefix for prefix in RESERVED_PREFIXES if prefix.encode() in message) or ("",)
