"""Models of Triton's Python backend, written into a repository."""

from pathlib import Path

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
"""From X to Y."""


def write_model(repository: Path, name: str, source: str, config: str) -> Path:
    """Write a model, whose config.pbtxt is `config`, into a repository; returns its version folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    (version.parent / "config.pbtxt").write_text(config)
    return version
