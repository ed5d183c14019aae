"""Signature of a model from its config: valid inputs and outputs, and the number of instances."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Final

import numpy as np
from tritonclient.grpc import model_config_pb2

from tidegate.api.model import DEFAULT_PRIORITY
from tidegate_proxy.messages.forwarded_metadata import may_read_headers
from tidegate_proxy.messages.padding import PaddedAxis
from tidegate_proxy.messages.wire import Buffer

ELEMENT_BYTES = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
    "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip
"""Size of an element by datatype; BYTES elements carry their own length."""


MAX_PRIORITY: Final = 64
"""Least urgent priority that clients may ask for: each is a class of its own in the engine. Larger ones count as it."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Tensor of a model, without the batch dimension; -1 stands for any size."""

    datatype: str
    dims: tuple[int, ...]
    optional: bool = False

    def accepts(self, datatype: str, shape: Sequence[int]) -> bool:
        """Return whether a tensor of this type and full shape (rows first) fits."""
        return (
            datatype == self.datatype
            and len(shape) == len(self.dims) + 1
            and all(have >= 0 and want in (-1, have) for want, have in zip(self.dims, shape[1:], strict=True))
        )


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs and outputs of a model that is scheduled."""

    model: str
    inputs: dict[str, TensorSpec]
    outputs: frozenset[str]
    max_rows: int
    padding: tuple[PaddedAxis, ...] = ()
    """Input sizes that are padded to common ones, so that requests share batches."""
    reads_headers: bool = False
    """Whether the model may see headers of clients, which its Triton may turn into request parameters."""
    is_decoupled: bool = False
    """Whether a request may have any number of responses."""
    heeds_timeout: bool = False
    """Whether its Triton drops requests after their parameter `timeout`, because the model's config says so."""
    priority_levels: int = 0
    """Number of priorities that requests may ask for; 0: none, as in its config."""
    default_priority: int = DEFAULT_PRIORITY
    """Priority of requests that ask for none, or for one that is none of its levels."""

    def priority_of(self, asked: int) -> int:
        """Return the priority of a request that asks for one, as Triton's `InferenceRequest::SetPriority`; 0: none."""
        return min(asked, MAX_PRIORITY) if 0 < asked <= self.priority_levels else self.default_priority

    @property
    def tensors(self) -> "ModelSignature":
        """Part of the signature that concerns the tensors of requests."""
        return replace(
            self,
            max_rows=0,
            reads_headers=False,
            heeds_timeout=False,
            priority_levels=0,
            default_priority=DEFAULT_PRIORITY,
        )

    @property
    def has_strings(self) -> bool:
        """Whether an input has type BYTES, whose elements carry their own lengths."""
        return any(spec.datatype == "BYTES" for spec in self.inputs.values())


def signature_of(config: model_config_pb2.ModelConfig) -> ModelSignature:
    """Return the signature of a model with a batch dimension."""
    return ModelSignature(
        model=config.name,
        inputs={
            tensor.name: TensorSpec(datatype_of(tensor.data_type), tuple(tensor.dims), tensor.optional)
            for tensor in config.input
        },
        outputs=frozenset(tensor.name for tensor in config.output),
        max_rows=config.max_batch_size,
        reads_headers=may_read_headers(config),
        heeds_timeout=config.dynamic_batching.default_queue_policy.allow_timeout_override,
        priority_levels=config.dynamic_batching.priority_levels,
        default_priority=config.dynamic_batching.default_priority_level or DEFAULT_PRIORITY,
    )


def signature_of_any(config: model_config_pb2.ModelConfig) -> ModelSignature:
    """Return the signature of a model with or without a batch dimension; without one the first size is not checked."""
    signature = signature_of(config)
    if config.max_batch_size > 0:
        return signature
    inputs = {name: replace(spec, dims=spec.dims[1:]) for name, spec in signature.inputs.items()}
    return replace(signature, inputs=inputs)


def concurrency_of(config: model_config_pb2.ModelConfig) -> int:
    """Return how many requests, or sequences, a model runs at once on one Triton, by its config."""
    each = 1
    if config.sequence_batching.HasField("oldest"):
        each = int(config.sequence_batching.oldest.max_candidate_sequences)
    elif config.HasField("sequence_batching"):
        each = int(config.max_batch_size)
    return instances_of(config) * max(1, each)


def instances_of(config: model_config_pb2.ModelConfig) -> int:
    """Return the number of batches of a model that its Triton runs at once."""
    groups = [int(group.count) * max(1, len(group.gpus)) for group in config.instance_group if not group.passive]
    return max(1, sum(groups))


STRINGS_ASIDE_FROM: Final = 1 << 18
"""Size in bytes of a message whose strings are counted in a thread.

Counting takes about 10 ms, starting a thread a tenth of it.
"""
_WORTH_A_GLANCE: Final = 64
_unpack_length: Final = Struct("<I").unpack_from


def split_elements(tensor: Buffer, count: int) -> list[int]:
    """Return the end offset in bytes of each of the `count` elements of a BYTES tensor.

    Raises ValueError if the tensor does not hold exactly that many.
    """
    ends = _ends_of_equals(tensor, count)
    if ends:
        return ends
    position = 0
    try:
        for _ in range(count):
            (length,) = _unpack_length(tensor, position)
            position += 4 + length
            ends.append(position)
    except struct_error as error:
        raise ValueError("a BYTES tensor ends before its last element") from error
    if position != len(tensor):
        raise ValueError("a BYTES tensor holds something else than its elements")
    return ends


def _ends_of_equals(tensor: Buffer, count: int) -> list[int]:
    """The ends where all elements are of one size, which is seen at a glance; empty where they are not."""
    if count < _WORTH_A_GLANCE or len(tensor) % count or len(tensor) < 4 * count:
        return []
    step = len(tensor) // count
    lengths = np.frombuffer(tensor, np.uint8).reshape(count, step)[:, :4]
    expected = np.frombuffer((step - 4).to_bytes(4, "little"), np.uint8)
    return list(range(step, len(tensor) + 1, step)) if (lengths == expected).all() else []


@cache
def datatype_of(data_type: int) -> str:
    """Return the name, as in requests, of a datatype of configs."""
    name = str(model_config_pb2.DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
