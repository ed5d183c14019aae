"""Workers of a Triton: their number, serialized models, and device class.

Triton executes its models concurrently, each batch of an instance beside those of all others, unless instances need the
same resource of its rate limiter. So a worker is one instance of one model, or of each of those that
wait for the same resource (decision 77).

The device class of a worker is configured (`tritons[].device_class`), because different ones must not share profiles.
Otherwise it is detected where it is certain: Tidegate runs on the Triton's machine, NVML lists its GPUs, and all that
the Triton may use are equal. In all other cases it is `default`.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from tritonclient.grpc import model_config_pb2

from tidegate.schemas import Device, Slice, WholeDevice
from tidegate_proxy.messages.model_signature import instances_of
from tidegate_proxy.tritons.backend import Backend, LoadedModel
from tidegate_proxy.tritons.gpus import Gpu


async def scrape(addresses: Mapping[str, str], timeout_s: float = 2.0) -> dict[str, str | None]:
    """Return the metrics pages of Tritons, scraped concurrently: by name, None for one that did not answer in time.

    `addresses`: name of a Triton (its gRPC address, as its workers are called) -> host:port of its metrics.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
        pages = await asyncio.gather(*(_page(session, address) for address in addresses.values()))
    return dict(zip(addresses, pages, strict=True))


async def _page(session: aiohttp.ClientSession, address: str) -> str | None:
    try:
        async with session.get(f"http://{address}/metrics") as response:
            return await response.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


SERIALIZED_SUFFIX: Final = " serialized"
"""Suffix of the device class of workers with serialized models, whose latency differs from concurrent execution."""
_EVERYWHERE: Final = -1
"""The GPU of a resource that is one for all of them, or of an instance that is on none."""
_TURNS: Final = object()
"""Resource that serialized instances need in Triton's rate limiter."""


class ExecutionSlot(NamedTuple):
    """Execution slot of a Triton: runs one batch at a time."""

    name: str
    """Name that is unique on its Triton: the model, models serialized with it, and a number."""
    models: tuple[str, ...]
    """Sorted names of its models."""
    takes_turns: bool
    """Whether its models are serialized though they could run concurrently."""


def execution_slots_of(
    configs: Mapping[str, model_config_pb2.ModelConfig],
    *,
    serialize_models: bool | None,
    turns: frozenset[str] = frozenset(),
) -> Iterator[ExecutionSlot]:
    """Yield the slots of one Triton for these models: slot k of a group has the models with more than k instances.

    `serialize_models`: whether all of them are one group, or each is its own; None: groups are models that need each
    other's resources, also indirectly, and those of `turns`.
    """
    for group in _groups(configs, serialize_models, turns):
        instances = {name: instances_of(configs[name]) for name in group}
        others = f"+{len(group) - 1}" if len(group) > 1 else ""
        for number in range(max(instances.values(), default=0)):
            models = tuple(name for name, count in instances.items() if count > number)
            yield ExecutionSlot(f"{group[0]}{others}/{number}", models, takes_turns=not turns.isdisjoint(models))


def _groups(
    configs: Mapping[str, model_config_pb2.ModelConfig], serialize_models: bool | None, turns: frozenset[str]
) -> list[list[str]]:
    """The models in groups, sorted."""
    if serialize_models is not None:
        return [sorted(configs)] if serialize_models else [[name] for name in sorted(configs)]
    alone: list[list[str]] = []
    groups: list[tuple[set[str], set[object]]] = []
    for name, config in configs.items():
        models, needed = {name}, _resources(config) | ({_TURNS} if name in turns else set())
        if not needed:
            alone.append([name])
            continue
        apart = []
        for others, theirs in groups:
            if needed & theirs:
                models |= others
                needed |= theirs
            else:
                apart.append((others, theirs))
        groups = [*apart, (models, needed)]
    return sorted([*alone, *(sorted(models) for models, _ in groups)])


def _resources(config: model_config_pb2.ModelConfig) -> set[object]:
    """Return the rate-limiter resources that a model's instances need: name, and GPU."""
    return {
        (resource.name, _EVERYWHERE if getattr(resource, "global") else gpu)
        for group in config.instance_group
        if not group.passive
        for resource in group.rate_limiter.resources
        for gpu in (group.gpus or (_EVERYWHERE,))
    }


_ON_GPU = model_config_pb2.ModelInstanceGroup.KIND_GPU
_USED = re.compile(r'\bgpu_uuid="([^"]+)"')
"""How Triton's own metrics name each GPU that CUDA shows it."""


ALL_OF_IT = WholeDevice()


@dataclass(frozen=True)
class WorkerHardware:
    """Known hardware of a Triton's workers."""

    device_class: str = ""
    """Device class; "" if unknown."""
    device: Device | None = None
    slice: Slice = ALL_OF_IT


async def places_of(
    loaded: Mapping[Backend, Sequence[LoadedModel]], gpus: Sequence[Gpu], before: Mapping[Backend, WorkerHardware]
) -> dict[Backend, WorkerHardware]:
    """Return the hardware of these Tritons' workers. `gpus`: those of this machine; `before`: earlier results.

    If the machine has different GPUs, a Triton's metrics show which it uses. Without an answer the earlier result is
    kept.
    """
    unlike = len({gpu.device_class for gpu in gpus}) > 1
    asked = {
        backend.address: backend.metrics
        for backend, models in loaded.items()
        if unlike and backend.is_local and backend.metrics and not backend.device_class and gpu_ordinals_of(models)
    }
    pages = await scrape(asked) if asked else {}
    places = {}
    for backend, models in loaded.items():
        page = pages.get(backend.address)
        if backend.address in asked and page is None and backend in before:
            places[backend] = before[backend]
        else:
            here = gpus if backend.is_local else ()
            places[backend] = place_of(backend.device_class, models, _used(here, _USED.findall(page or "")))
    return places


def place_of(device_class: str, models: Iterable[LoadedModel], gpus: Sequence[Gpu]) -> WorkerHardware:
    """Return the hardware of one Triton's workers. `device_class`: as configured; `gpus`: those it may use."""
    if device_class:
        return WorkerHardware(device_class)
    ordinals = gpu_ordinals_of(models)
    if not ordinals or max(ordinals) >= len(gpus):
        return WorkerHardware()  # it uses none, or sees more than there are here: then it is elsewhere
    if len({gpu.device_class for gpu in gpus}) > 1:
        return WorkerHardware()
    only = gpus[0]
    if len(gpus) > 1 or only.slice is None:
        return WorkerHardware(only.device_class)
    return WorkerHardware(only.device_class, only.device, only.slice)


def gpu_ordinals_of(models: Iterable[LoadedModel]) -> set[int]:
    """The numbers of the GPUs on which a Triton has instances of models, as it counts those that CUDA shows it.

    CUDA may count them by speed, NVML counts them by bus: so a number does not say which one it is.
    """
    groups = (group for model in models for group in model.config.instance_group if not group.passive)
    return {ordinal for group in groups if group.kind == _ON_GPU for ordinal in group.gpus or (0,)}


def _used(gpus: Sequence[Gpu], uuids: Collection[str]) -> Sequence[Gpu]:
    """The GPUs that a Triton says CUDA shows it, none if it is elsewhere; all, where it says nothing of GPUs."""
    return [gpu for gpu in gpus if gpu.uuid in uuids or gpu.device.id in uuids] if uuids else gpus
