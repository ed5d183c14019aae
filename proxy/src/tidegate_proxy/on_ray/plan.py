"""Parts of a deployment to place on Ray's nodes, and the resources that each takes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.schemas import (
    PROXY_FILE,
    DeployedWorker,
    DocumentError,
    FieldError,
    Layout,
    LayoutWorker,
    WholeDevice,
    read_document,
)
from tidegate_proxy.configuration.config_file import ConfigError
from tidegate_proxy.deployed.folder import DeploymentError, DeploymentPlan

GPU_RESOURCE: Final = "GPU"
"""Ray's name of the resource for a whole GPU."""
Takes = Mapping[str, float]
"""Amounts of Ray's resources, by name: `CPU`, `GPU`, or any that nodes were started with."""
ONE_CORE: Final[Takes] = {"CPU": 1.0}


@dataclass(frozen=True)
class DevicePlan:
    """Device of the layout with the Tritons of its workers, which Ray places together."""

    name: str
    workers: tuple[DeployedWorker, ...]
    shard: int
    takes: Takes


@dataclass(frozen=True)
class RayPlan:
    """The parts to place on Ray's nodes."""

    deployment: DeploymentPlan
    devices: tuple[DevicePlan, ...]
    layouts: tuple[Layout, ...]
    """Layout of each shard."""
    frontends: int


def plan_for_ray(deployment: DeploymentPlan, shards: int, frontends: int, takes: Sequence[str]) -> RayPlan:
    """Return the parts of a deployment to place. `takes`: resources as on the command line.

    Raises DeploymentError, ConfigError, DocumentError. `shards`, `frontends`: their numbers.
    """
    config = deployment.config
    file = str(deployment.folder / PROXY_FILE)
    if problems := tuple(
        FieldError(field, words)
        for field, words, is_given in (
            ("controller", "on Ray workers come and go as nodes do, not by it: leave it out", config.controller),
            ("event_log", "it would go with the node of its shard: leave it out", config.event_log),
            (
                "shard_links.tls",
                "Ray says where shards are, so no certificate can name them: leave it out",
                config.shard_links.tls,
            ),
            (
                "shard_links.secret_file",
                "on Ray each start makes a secret of its own: leave it out",
                config.shard_links.secret_file,
            ),
        )
        if is_given
    ):
        raise ConfigError(file, problems)
    if config.layout is None:
        raise DocumentError(f"{file}: layout: it names none")
    amounts = _amounts(takes)
    workers = [each.worker for each in deployment.workers]
    layouts = split_layout(read_document(config.layout, Layout), shards, [worker.name for worker in workers])
    shard_of = {worker.name: number for number, layout in enumerate(layouts) for worker in layout.workers}
    by_device: dict[str, list[DeployedWorker]] = {}
    for worker in workers:
        by_device.setdefault(f"{worker.device.node}/{worker.device.id}", []).append(worker)
    devices = []
    for name, those in by_device.items():
        wanted = amounts.get(those[0].device.product, amounts[""])
        if wanted.get(GPU_RESOURCE) and (shares := [each.name for each in those if each.slice != WholeDevice()]):
            raise DeploymentError(
                f"worker {shares[0]!r} has a part of a GPU, and Ray lends whole ones alone: cut GPUs beforehand, start "
                "Ray's nodes with a resource for each part (`ray start --resources ...`), and name that with --takes"
            )
        devices.append(DevicePlan(name, tuple(those), shard_of[those[0].name], wanted))
    return RayPlan(deployment, tuple(devices), layouts, frontends)


def _amounts(takes: Sequence[str]) -> dict[str, Takes]:
    """Return the resources of a device by product; "": of any other product. Raises DeploymentError."""
    amounts: dict[str, Takes] = {"": ONE_CORE}
    for text in takes:
        product, *rest = text.split(",")
        if "=" in product:
            product, rest = "", [product, *rest]
        wanted = {}
        for word in rest:
            resource, _, amount = word.partition("=")
            try:
                wanted[resource] = float(amount)
            except ValueError:
                wanted[resource] = -1.0
            if not resource or not 0 < wanted[resource] < 1e6:
                raise DeploymentError(f"--takes {text}: {word!r} is not RESOURCE=AMOUNT, as in GPU=1")
        if not wanted:
            raise DeploymentError(f"--takes {text}: it names no resource: write {text},RESOURCE=AMOUNT, as in GPU=1")
        amounts[product] = wanted
    return amounts


def split_layout(layout: Layout, shards: int, started: Collection[str]) -> tuple[Layout, ...]:
    """Return the layouts of at most `shards` shards, with as equal numbers of workers as possible.

    Workers of one device, and all workers of one model, stay together. `started`: names of the workers that will exist;
    models without any are in no layout.
    """
    groups = [group for group in _groups(layout) if any(worker.name in started for worker in group)]
    members: list[list[LayoutWorker]] = [[] for _ in range(min(shards, len(groups)))]
    for group in sorted(groups, key=len, reverse=True):
        min(members, key=len).extend(group)
    return tuple(_of_workers(layout, [worker.name for worker in each]) for each in members)


def _groups(layout: Layout) -> list[list[LayoutWorker]]:
    """The workers, those together that share a device or a model."""
    model_of = {partition.name: partition.model for partition in layout.partitions}
    groups: list[tuple[set[object], list[LayoutWorker]]] = []
    for worker in layout.workers:
        shared: set[object] = {(worker.device.node, worker.device.id), *(model_of[name] for name in worker.hosts)}
        members = [worker]
        apart = []
        for keys, others in groups:
            if keys & shared:
                shared |= keys
                members = others + members
            else:
                apart.append((keys, others))
        groups = [*apart, (shared, members)]
    return [members for _, members in groups]


def _of_workers(layout: Layout, names: Collection[str]) -> Layout:
    """Return the part of a layout with these workers, which share no model with others."""
    workers = tuple(worker for worker in layout.workers if worker.name in names)
    hosted = {name for worker in workers for name in worker.hosts}
    partitions = tuple(partition for partition in layout.partitions if partition.name in hosted)
    models = {partition.model for partition in partitions}
    return layout.model_copy(
        update={
            "workers": workers,
            "partitions": partitions,
            "models": tuple(model for model in layout.models if model.name in models),
        }
    )
