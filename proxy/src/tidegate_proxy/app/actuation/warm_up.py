"""Warm-up of a worker: sends one request of each model, as first executions are slow, or fail."""

import logging
from math import prod
from typing import Final

from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, datatype_of
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import INFER_METHOD, Backend, LoadedModel

log = logging.getLogger(__name__)

_STRING_BYTES: Final = 4
"""Size of an empty string, which is its length alone."""


class NotWarm(Exception):
    """Error: a model does not run; the message names the model, the place and the cause."""


async def warm(backend: Backend, model: LoadedModel, within_s: float) -> None:
    """Run one row of zeros, unless Triton itself has warmed up the model (`model_warmup`).

    `within_s`: time limit in seconds. Raises NotWarm. Dynamic dimensions are 1, which may not suit the model; an error
    response is then only logged.
    """
    config = model.config
    if config.model_warmup:
        return
    try:
        await backend.ask(INFER_METHOD, request_of_zeros(config).SerializeToString(), timeout_s=within_s)
    except CallFailed as error:
        words = f"model {config.name!r} at {backend.address} does not run one row of zeros: {error.details}"
        varies = any(-1 in tensor.dims for tensor in config.input)
        if not varies or not await backend.is_live():
            raise NotWarm(words) from error
        log.warning(
            "warm-up request failed; the model has variable dimensions, so other requests may run",
            extra={"error": words},
        )


def request_of_zeros(config: model_config_pb2.ModelConfig) -> service_pb2.ModelInferRequest:
    """Build a request with one row of zeros, or of empty strings; dynamic dimensions are 1."""
    request = service_pb2.ModelInferRequest(model_name=config.name)
    batch = [1] if config.max_batch_size else []
    for tensor in config.input:
        if tensor.optional:
            continue
        datatype = datatype_of(tensor.data_type)
        shape = [*batch, *(1 if size == -1 else size for size in tensor.dims)]
        request.inputs.add(name=tensor.name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(bytes(ELEMENT_BYTES.get(datatype, _STRING_BYTES) * prod(shape)))
    return request
