"""A deployment of two models on two devices: each gives back twice what it gets."""

from pathlib import Path

from tests.proxy.fixtures.deployment import write_deployment_of
from tidegate.schemas import Device, Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker

CONFIG = """
name: "%s"
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("Y", 2 * pb.get_input_tensor_by_name(request, "X").as_numpy())])
            for request in requests
        ]
"""


def layout(*models: str, slo_ms: float = 2000) -> Layout:
    """Each of the models on a device of its own."""
    return Layout(
        models=tuple(
            LayoutModel(name=name, slo_ms=slo_ms, pipelines=(LayoutPipeline(partitions=(name,), batch=4),))
            for name in models
        ),
        partitions=tuple(
            LayoutPartition(name=name, model=name, blocks=(0, 1), latency_ms={"any": (2.0,) * 4}) for name in models
        ),
        workers=tuple(
            LayoutWorker(name=f"on-{name}", device=Device("here", number), device_class="any", hosts=(name,))
            for number, name in enumerate(models)
        ),
    )


def write_deployment(folder: Path, of: Layout, **config: object) -> Path:
    """What `tidegate up` starts."""
    return write_deployment_of(folder, of, lambda name: (MODEL, CONFIG % name), startup_timeout_s=60, **config)
