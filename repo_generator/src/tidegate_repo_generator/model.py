"""Types of the generator. The module imports nothing heavy: the command line needs it for its help."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath


class GenerateError(Exception):
    """Error: a model cannot be generated. The message says the problem, the place and the remedy."""


class DeployTarget(StrEnum):
    """Triton backend that runs the ONNX file."""

    EMBEDDED = "embedded"
    """Python backend with Tidegate's ONNX runner, on the CPU: the embedded Triton has no other."""
    TRITON = "triton"
    """ONNX Runtime backend of a full Triton, on the devices that Triton picks."""
    TRITON_TENSORRT = "triton-tensorrt"
    """ONNX Runtime backend with the TensorRT accelerator, on GPUs."""
    TENSORRT = "tensorrt"
    """TensorRT backend of a full Triton: engines, built on the devices that run them."""

    @property
    def takes_precision(self) -> bool:
        """Whether TensorRT runs the model, so that precision and request shapes apply."""
        return self in (DeployTarget.TRITON_TENSORRT, DeployTarget.TENSORRT)


class Precision(StrEnum):
    """Lowest precision of TensorRT's arithmetic; inputs and outputs keep the model's own types."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


@dataclass(frozen=True)
class Tensor:
    """Input or output of a model: name, type and shape."""

    name: str
    data_type: str
    """Triton's name for the element type, e.g. `FP32` or `STRING`."""
    shape: tuple[int | str, ...]
    """Dimensions: an int is a fixed size, a str names a dynamic one ("" if unnamed); a scalar has no dimensions."""

    @property
    def dims(self) -> list[int]:
        """Shape as Triton writes it: -1 for every dynamic dimension."""
        return [size if isinstance(size, int) else -1 for size in self.shape]


@dataclass(frozen=True)
class GeneratedModel:
    """Model that was written to a repository."""

    name: str
    """Model name for clients."""
    path: Path
    """Folder of the model, `<repository>/<name>`."""
    deploy_target: DeployTarget
    max_batch_size: int
    """Largest batch, in rows; 0: requests are not batched."""
    instances: int
    slo_ms: float | None
    """Latency SLO in milliseconds from a request's arrival; None: no SLO."""
    inputs: tuple[Tensor, ...]
    """Inputs with full shapes: where the model batches, the first dimension is the batch."""
    outputs: tuple[Tensor, ...]
    files: tuple[PurePosixPath, ...]
    """Files in the folder, as sorted relative paths."""
    notices: tuple[str, ...]
    """Notices for the user, e.g. why the model is not batched; one or two sentences each."""
