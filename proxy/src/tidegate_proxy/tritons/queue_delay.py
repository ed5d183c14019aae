"""Has Tritons load models again without the delay of their dynamic batcher, where the configuration asks for it."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.tritons.backend import Backend, BackendError
from tidegate_proxy.tritons.batching_mode import delay_us

log = logging.getLogger(__name__)


async def drop_delays(backends: Sequence[Backend], told: Mapping[str, ModelConfig]) -> None:
    """Load what has a delay, and is said to be loaded without, on every Triton that answers.

    A Triton that refuses (it is not under explicit model control) is told of in the log, and keeps the delay.
    """
    wanted = {name for name, model in told.items() if model.load_without_delay}
    if wanted:
        await asyncio.gather(*(_drop_delays(backend, wanted) for backend in backends))


async def _drop_delays(backend: Backend, wanted: set[str]) -> None:
    try:
        for name in sorted(wanted.intersection(await backend.ready_versions())):
            config = await backend.config(name)
            if delay := delay_us(config):
                await backend.load(config.name, _without_delay(config))
                log.info("%s at %s is loaded without its queue delay of %d us", config.name, backend.address, delay)
    except BackendError as error:
        log.warning("load_without_delay: %s", error)


def _without_delay(config: model_config_pb2.ModelConfig) -> str:
    """The same config as JSON, which is what Triton takes in place of a config.pbtxt."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    changed.dynamic_batching.max_queue_delay_microseconds = 0
    return json.dumps(MessageToDict(changed, preserving_proto_field_name=True))
