"""What the KServe client sees of a server, as JSON: run by test_kserve.py in an environment that has `kserve`."""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import (  # type: ignore[import-not-found]  # in an environment of its own
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)


def _request(model: str, *, binary: bool) -> InferRequest:
    given = InferInput(name="X", shape=[2, 2], datatype="FP32")
    given.set_data_from_numpy(np.array([[1, 2], [3, 4.5]], np.float32), binary_data=binary)
    return InferRequest(model_name=model, infer_inputs=[given], request_id="42")


def _seen(answer: Any) -> Any:
    if not hasattr(answer, "outputs"):
        return answer
    (output,) = answer.outputs
    return {"id": answer.id, "model": answer.model_name, "name": output.name, "data": output.as_numpy().tolist()}


async def _ask(http: str, grpc: str, model: str) -> dict[str, Any]:
    rest, rpc, url = (
        InferenceRESTClient(RESTConfig(protocol="v2", retries=0)),
        InferenceGRPCClient(grpc),
        f"http://{http}",
    )
    calls = {
        "rest live": lambda: rest.is_server_live(url),
        "rest ready": lambda: rest.is_server_ready(url),
        "rest model": lambda: rest.is_model_ready(url, model),
        "rest": lambda: rest.infer(url, _request(model, binary=False), model_name=model),
        "rest binary": lambda: rest.infer(url, _request(model, binary=True), model_name=model),
        "rest error": lambda: rest.infer(url, _request("nope", binary=True), model_name="nope"),
        "grpc live": rpc.is_server_live,
        "grpc ready": rpc.is_server_ready,
        "grpc model": lambda: rpc.is_model_ready(model),
        "grpc": lambda: rpc.infer(_request(model, binary=False)),
        "grpc binary": lambda: rpc.infer(_request(model, binary=True)),
        "grpc error": lambda: rpc.infer(_request("nope", binary=True)),
    }
    seen: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            seen[name] = _seen(await call())
        except Exception as error:  # whatever it makes of it
            words = str(error).partition("debug_error_string")[0]
            seen[name] = f"{type(error).__name__}: {words}".replace(http, "HOST").replace(grpc, "HOST")
    await rest.close()
    await rpc.close()
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_ask(*sys.argv[1:4]))))
