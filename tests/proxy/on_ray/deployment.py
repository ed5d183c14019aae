"""A deployment of two models on two devices: each gives back twice what it gets."""

import json
from pathlib import Path

from tidegate.documents import (
    DEPLOYMENT_FILE,
    LAYOUT_FILE,
    PROXY_FILE,
    DeployedPartition,
    DeployedWorker,
    Deployment,
    Device,
    Layout,
    LayoutModel,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
    write_document,
)

CONFIG = """
name: "%s"
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_batch" value: { string_value: "merge" } }
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
            LayoutWorker(name=f"on-{name}", device=Device("here", number), kind="any", hosts=(name,))
            for number, name in enumerate(models)
        ),
    )


def write_deployment(folder: Path, of: Layout, **config: object) -> Path:
    """What `tidegate up` starts."""
    workers = []
    for worker in of.workers:
        for name in worker.hosts:
            version = folder / "workers" / worker.name / name / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(MODEL)
            (version.parent / "config.pbtxt").write_text(CONFIG % name)
        place = f"workers/{worker.name}"
        workers.append(
            DeployedWorker(
                name=worker.name,
                repository=place,
                launch=f"{place}.sh",
                device=worker.device,
                slice=worker.slice,
                hosts=worker.hosts,
            )
        )
    partitions = tuple(
        DeployedPartition(name=part.name, model=part.model, blocks=(0, 1), file="m.onnx", inputs=("X",), outputs=("Y",))
        for part in of.partitions
    )
    write_document(
        folder / DEPLOYMENT_FILE, Deployment(flavour="embedded", partitions=partitions, workers=tuple(workers))
    )
    write_document(folder / LAYOUT_FILE, of)
    document = {
        "layout": LAYOUT_FILE,
        "policy": "fifs",
        "tritons": [
            {"worker": worker.name, "grpc": f"127.0.0.1:{20_000 + number}"} for number, worker in enumerate(of.workers)
        ],
        "wait_s": 60,
        **config,
    }
    (folder / PROXY_FILE).write_text(json.dumps(document))
    return folder
