"""A no-op model that returns its input at once, so that only the overhead of servers is measured."""

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("OUTPUT", pb.get_input_tensor_by_name(request, "INPUT").as_numpy())])
            for request in requests
        ]
"""


def no_op_models(folder: Path, name: str = "noop") -> Path:
    """Write a repository with one no-op model to a folder; return its path. `name`: of the model."""
    version = folder / "models" / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'name: "{name}"{CONFIG}')
    (version / "model.py").write_text(MODEL)
    return folder / "models"
