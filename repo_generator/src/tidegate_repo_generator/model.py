"""The nouns of the generator. Nothing heavy is imported here: the command line needs them for its help."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath


class GenerateError(Exception):
    """A model cannot be generated. The message, for people, says what, where and the remedy."""


class DeployTarget(StrEnum):
    """Which of Triton's backends runs the ONNX file."""

    EMBEDDED = "embedded"
    """The Python backend with Tidegate's ONNX runner, on the CPU: what the embedded Triton has."""
    TRITON = "triton"
    """The ONNX Runtime backend of a full Triton, on the devices that Triton picks."""
    TRITON_TENSORRT = "triton-tensorrt"
    """The same with TensorRT inside it, which runs what it can of the model, on GPUs."""
    TENSORRT = "tensorrt"
    """The TensorRT backend of a full Triton: engines, which are built on the devices that run them."""

    @property
    def takes_precision(self) -> bool:
        """Whether TensorRT has to be told how to calculate, and for which shapes."""
        return self in (DeployTarget.TRITON_TENSORRT, DeployTarget.TENSORRT)


class Precision(StrEnum):
    """How TensorRT may calculate, at the least; what comes in and goes out has the model's own types."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model."""

    name: str
    data_type: str
    """Triton's name for the type of its elements, e.g. `FP32` or `STRING`."""
    shape: tuple[int | str, ...]
    """An int is a fixed size, a str the name of a dynamic one ("" where it has none); a scalar has no dimensions."""

    @property
    def dims(self) -> list[int]:
        """The shape in Triton's words: -1 for every dynamic dimension."""
        return [size if isinstance(size, int) else -1 for size in self.shape]


@dataclass(frozen=True)
class GeneratedModel:
    """What was written."""

    name: str
    """What clients call it."""
    path: Path
    """Its folder, `<repository>/<name>`."""
    deploy_target: DeployTarget
    max_batch_size: int
    """The most rows that one batch may have; 0: requests are not batched."""
    instances: int
    slo_ms: float | None
    """How long after its arrival, in milliseconds, a request may be answered; None: no such promise."""
    inputs: tuple[Tensor, ...]
    """With full shapes: where the model batches, the first dimension is the batch's."""
    outputs: tuple[Tensor, ...]
    files: tuple[PurePosixPath, ...]
    """What its folder holds, relative to it, sorted."""
    notices: tuple[str, ...]
    """What the user should know, e.g. why the model is not batched; a sentence or two each."""
