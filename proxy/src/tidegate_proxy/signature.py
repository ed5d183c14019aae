"""What a model's config says about its requests: whether they can be batched, and what a well-formed one looks like."""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import error as struct_error
from struct import unpack_from

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.wire import Buffer

ELEMENT_BYTES = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
    "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip
"""Size of an element by datatype; BYTES elements carry their own length."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model, without the batch dimension; -1 stands for any size."""

    datatype: str
    dims: tuple[int, ...]
    optional: bool = False

    def accepts(self, datatype: str, shape: Sequence[int]) -> bool:
        """Whether a tensor of this type and full shape (rows first) fits."""
        return (
            datatype == self.datatype
            and len(shape) == len(self.dims) + 1
            and all(have >= 0 and want in (-1, have) for want, have in zip(self.dims, shape[1:], strict=True))
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model that can be batched."""

    model: str
    inputs: dict[str, TensorSpec]
    outputs: frozenset[str]
    max_rows: int


def why_not_batchable(config: model_config_pb2.ModelConfig, *, has_slo: bool = True) -> str | None:
    """Why requests of a model pass straight through, or None: they are scheduled.

    What its config asks of Triton's own batcher is Triton's to keep, unless an SLO says that it is Tidegate's to serve.
    """
    batching = config.dynamic_batching
    queue = batching.default_queue_policy
    asked = {
        "priority_levels": batching.priority_levels,
        "preserve_ordering": batching.preserve_ordering,
        "max_queue_size": queue.max_queue_size,
        "default_timeout_microseconds": queue.default_timeout_microseconds,
        "allow_timeout_override": queue.allow_timeout_override,
    }
    of_tritons_batcher = [name for name, value in asked.items() if value]
    obstacles = {
        "max_batch_size is 0: the model has no batch dimension": config.max_batch_size < 1,
        "sequence_batching: requests of one sequence belong to one instance, in order": config.HasField(
            "sequence_batching"
        ),
        "decoupled: a request may have any number of responses": config.model_transaction_policy.decoupled,
        "ensemble: its steps are scheduled by Triton": config.HasField("ensemble_scheduling"),
        "shape tensors have no rows": any(tensor.is_shape_tensor for tensor in (*config.input, *config.output)),
        "batch_input or batch_output: Triton itself must form the batch": config.batch_input or config.batch_output,
        f"dynamic_batching asks for {', '.join(of_tritons_batcher)}, which Triton's batcher keeps: an SLO for this "
        "model has Tidegate schedule it in its own way": of_tritons_batcher and not has_slo,
    }
    return next((reason for reason, stands in obstacles.items() if stands), None)


def signature_of(config: model_config_pb2.ModelConfig) -> Signature:
    """The signature of a batchable model."""
    return Signature(
        model=config.name,
        inputs={
            tensor.name: TensorSpec(datatype_of(tensor.data_type), tuple(tensor.dims), tensor.optional)
            for tensor in config.input
        },
        outputs=frozenset(tensor.name for tensor in config.output),
        max_rows=config.max_batch_size,
    )


def instances_of(config: model_config_pb2.ModelConfig) -> int:
    """How many batches of a model its Triton runs at a time."""
    groups = [int(group.count) * max(1, len(group.gpus)) for group in config.instance_group if not group.passive]
    return max(1, sum(groups))


def split_elements(tensor: Buffer, count: int) -> list[int]:
    """Where each of the `count` elements of a BYTES tensor ends, in bytes.

    Raises ValueError when the tensor does not hold exactly that many.
    """
    ends = []
    position = 0
    try:
        for _ in range(count):
            (length,) = unpack_from("<I", tensor, position)
            position += 4 + length
            ends.append(position)
    except struct_error as error:
        raise ValueError("a BYTES tensor ends before its last element") from error
    if position != len(tensor):
        raise ValueError("a BYTES tensor holds something else than its elements")
    return ends


def datatype_of(data_type: int) -> str:
    """The name that requests have for a datatype of configs."""
    name = str(model_config_pb2.DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
