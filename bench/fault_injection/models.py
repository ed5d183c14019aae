"""Models of Triton's Python backend for hazards, whose behavior is set by the request."""

from dataclasses import dataclass
from pathlib import Path

SCRIPTED = """
import time
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(max(float(tensor[..., 0].max()) for tensor in tensors) / 1e3)
        return [
            pb.InferenceResponse([], pb.TritonError("a row says that this fails"))
            if tensor.shape[-1] > 1 and (tensor[..., 1] == 1).any()
            else pb.InferenceResponse([pb.Tensor("Y", tensor)])
            for tensor in tensors
        ]
"""
"""Source of a model that returns its rows of [milliseconds, 1 for a failure, ...]; a batch takes the longest row's
time.
"""
PARAMETERS = """
import json
import time
import zlib
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb.get_input_tensor_by_name(request, "X").as_numpy()
            time.sleep(float(tensor[..., 0].max()) / 1e3)
            seen = zlib.crc32(json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True).encode()) >> 8
            answers.append(pb.InferenceResponse([pb.Tensor("Y", np.full_like(tensor, seen))]))
        return answers
"""
"""Source of a model that returns a hash of the request's parameters; a request takes the milliseconds in its row."""
CONFIG = """
backend: "python"
max_batch_size: {rows}
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
PARAMETER = 'parameters {{ key: "{}" value: {{ string_value: "{}" }} }}\n'


@dataclass(frozen=True)
class Model:
    """A model of a repository."""

    name: str
    source: str = SCRIPTED
    rows: int = 8
    """Its `max_batch_size`."""
    scheduling: str = "batched"
    """Its `tidegate_scheduling`; empty: not set."""
    slo_ms: float | None = None

    def write(self, repository: Path) -> None:
        """Write the model to a repository."""
        config = CONFIG.format(rows=self.rows)
        if self.scheduling:
            config += PARAMETER.format("tidegate_scheduling", self.scheduling)
        if self.slo_ms:
            config += PARAMETER.format("slo_ms", self.slo_ms)
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        (version / "model.py").write_text(self.source)
