"""A model repository of emulated GPUs: one latency profile, batched by Tidegate or by Triton's own dynamic batcher."""

from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_triton_models import model_source


@dataclass(frozen=True)
class Fleet:
    """Equal emulated GPUs: `l(b) = alpha*b + beta`."""

    gpus: int
    alpha_ms: float
    beta_ms: float
    slo_ms: float
    max_batch: int

    def staggered_rps(self) -> float:
        """The most that can be answered on time (Symphony, equation 1): N*b/l(b) where (1 + 1/N) * l(b) <= SLO."""
        latency_ms = self.slo_ms / (1 + 1 / self.gpus)
        batch = min(self.max_batch, int((latency_ms - self.beta_ms) / self.alpha_ms))
        return self.gpus * batch / (self.alpha_ms * batch + self.beta_ms) * 1e3


def write_emulated(repository: Path, name: str, fleet: Fleet, *, queue_delay_ms: float | None = None) -> None:
    """Write a model whose instances are the fleet's GPUs. With a queue delay Triton batches it, else it does not."""
    config = model_config_pb2.ModelConfig(name=name, backend="python", max_batch_size=fleet.max_batch)
    config.input.add(name="INPUT0", data_type=model_config_pb2.TYPE_FP32, dims=[8])
    config.output.add(name="OUTPUT0", data_type=model_config_pb2.TYPE_FP32, dims=[8])
    config.instance_group.add(count=fleet.gpus, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    times = {"alpha_ms": fleet.alpha_ms, "beta_ms": fleet.beta_ms, "slo_ms": fleet.slo_ms}
    parameters = {**times, "tidegate_scheduling": "batched"}  # to the Python backend each request is a unit of its own
    for key, value in parameters.items():
        config.parameters[key].string_value = str(value)
    if queue_delay_ms is not None:
        config.dynamic_batching.max_queue_delay_microseconds = round(queue_delay_ms * 1000)
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(config))
    copyfile(model_source("emulated_gpu"), version / "model.py")
