"""What kind of worker each Triton is, where no layout says so: unlike ones must not share their profiles.

The configuration decides (`tritons[].kind`). Else it is found out where there can be no doubt: Tidegate runs on the
Triton's machine, NVML tells which GPUs that has, and all that the Triton may use are of one kind. Everything else is of
the kind `default`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritonclient.grpc import model_config_pb2

from tidegate.documents import Device, Slice, Whole
from tidegate_proxy.tritons.backend import Backend, LoadedModel
from tidegate_proxy.tritons.gpus import Gpu
from tidegate_proxy.tritons.metrics_scrape import scrape

_ON_GPU = model_config_pb2.ModelInstanceGroup.KIND_GPU
_USED = re.compile(r'\bgpu_uuid="([^"]+)"')
"""How Triton's own metrics name each GPU that CUDA shows it."""


ALL_OF_IT = Whole()


@dataclass(frozen=True)
class Place:
    """What is known of where a Triton's workers run."""

    kind: str = ""
    """Empty: not known."""
    device: Device | None = None
    slice: Slice = ALL_OF_IT


async def places_of(
    loaded: Mapping[Backend, Sequence[LoadedModel]], gpus: Sequence[Gpu], before: Mapping[Backend, Place]
) -> dict[Backend, Place]:
    """Where these Tritons' workers run. `gpus`: those of this machine; `before`: what was known of any of them.

    Where the machine has unlike GPUs a Triton's metrics tell which it uses. If they do not answer, it is as before.
    """
    unlike = len({gpu.kind for gpu in gpus}) > 1
    asked = {
        backend.address: backend.metrics
        for backend, models in loaded.items()
        if unlike and backend.is_local and backend.metrics and not backend.kind and _ordinals(models)
    }
    pages = await scrape(asked) if asked else {}
    places = {}
    for backend, models in loaded.items():
        page = pages.get(backend.address)
        if backend.address in asked and page is None and backend in before:
            places[backend] = before[backend]
        else:
            here = gpus if backend.is_local else ()
            places[backend] = place_of(backend.kind, models, _used(here, _USED.findall(page or "")))
    return places


def place_of(told: str, models: Iterable[LoadedModel], gpus: Sequence[Gpu]) -> Place:
    """Where the workers of one Triton run. `told`: the kind that the configuration says; `gpus`: those it may use."""
    if told:
        return Place(told)
    ordinals = _ordinals(models)
    if not ordinals or max(ordinals) >= len(gpus):
        return Place()  # it uses none, or sees more than there are here: then it is elsewhere
    if len({gpu.kind for gpu in gpus}) > 1:
        return Place()
    only = gpus[0]
    if len(gpus) > 1 or only.slice is None:
        return Place(only.kind)
    return Place(only.kind, only.device, only.slice)


def _ordinals(models: Iterable[LoadedModel]) -> set[int]:
    """The numbers of the GPUs on which a Triton has instances of models, as it counts those that CUDA shows it.

    CUDA may count them by speed, NVML counts them by bus: so a number does not say which one it is.
    """
    groups = (group for model in models for group in model.config.instance_group if not group.passive)
    return {ordinal for group in groups if group.kind == _ON_GPU for ordinal in group.gpus or (0,)}


def _used(gpus: Sequence[Gpu], uuids: Collection[str]) -> Sequence[Gpu]:
    """The GPUs that a Triton says CUDA shows it, none if it is elsewhere; all, where it says nothing of GPUs."""
    return [gpu for gpu in gpus if gpu.uuid in uuids or gpu.device.id in uuids] if uuids else gpus
