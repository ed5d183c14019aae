"""A Tidegate in front of a split model called `m`, and requests to it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc

from tidegate_proxy.tritons.embedded import EmbeddedTriton


def write_config(folder: Path, tritons: dict[str, EmbeddedTriton], layout: dict[str, Any], **more: object) -> Path:
    (folder / "layout.json").write_text(json.dumps(layout))
    document = {
        "tritons": [{"grpc": t.grpc_address, "http": t.http_address, "worker": name} for name, t in tritons.items()],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        "policy": "fifs",
        "layout": "layout.json",
        **more,
    }
    (folder / "tidegate.yaml").write_text(json.dumps(document))
    return folder / "tidegate.yaml"


def infer(client: triton_grpc.InferenceServerClient, x: "np.ndarray[Any, Any]", **options: Any) -> Any:  # noqa: ANN401
    tensor = triton_grpc.InferInput("X", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x.astype(np.float32))
    return client.infer("m", [tensor], **options)
