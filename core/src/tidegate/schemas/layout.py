"""The layout: which partitions are loaded on which workers, and the pipelines of each model.

Planners make it from a plan (`PlannerSpec.layout`, `tidegate plan --layout`); the generator writes model repositories
from it; the simulator and the proxy run it. A versioned document like every plan.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from tidegate.api import Model, Network, Pipeline, Profile, VersionedDocument, Worker, ms_to_ns
from tidegate.api.device import Device, Mig, WholeDevice, mig_instance
from tidegate.api.mig import mig_geometries
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import DeviceField, Name, Positive, SliceField
from tidegate.schemas.validation_errors import check_each_once


class LayoutPipeline(DocumentSection):
    """A sequence of partitions with one batch size."""

    partitions: tuple[Name, ...] = Field(min_length=1)
    batch: int = Field(ge=1, le=65536, description="Maximum batch size in rows")


class LayoutModel(DocumentSection):
    """A model as clients see it, with its SLO and pipelines."""

    name: Name
    slo_ms: Positive | None = None
    rate_rps: float = Field(
        default=0.0, ge=0, lt=1e12, description="Rate in requests per second that the plan sustains; 0: unknown"
    )
    pipelines: tuple[LayoutPipeline, ...] = Field(min_length=1)
    outputs: tuple[Name, ...] = Field(
        default=(),
        description="Outputs that clients get, in order; default: outputs of partitions that no partition consumes",
    )


class LayoutPartition(DocumentSection):
    """Consecutive blocks of a model, loaded as a Triton model of its own."""

    name: Name
    model: Name
    blocks: tuple[int, int] = Field(description="[first, end) of the model's blocks")
    bytes_per_row: int = Field(default=0, ge=0, description="Bytes of one row of output, as transferred")
    latency_ms: dict[Name, tuple[Positive, ...]] = Field(
        min_length=1, description="Latency in ms of a batch of 1, 2, ... rows, by device class"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 <= self.blocks[0] < self.blocks[1]:
            raise ValueError(f"blocks: {list(self.blocks)} is no [first, end)")
        for device_class, table in self.latency_ms.items():
            if not table or any(later < earlier for earlier, later in pairwise(table)):
                raise ValueError(
                    f"latency_ms.{device_class}: needs a value for each batch size from 1 on, none falling"
                )
        return self


class LayoutWorker(DocumentSection):
    """A worker: runs one batch at a time on a device or a part of it."""

    name: Name
    device: DeviceField = Field(description="GPU; workers with equal devices share it")
    slice: SliceField = Field(
        default=WholeDevice(), description="Part of the GPU: whole, a MIG instance or an MPS share"
    )
    device_class: Name | None = Field(
        default=None,
        description="Device class of the worker; default: product and slice, e.g. `A100/mps-50`",
    )
    hosts: tuple[Name, ...] = Field(min_length=1, description="Partitions loaded there")

    @property
    def speed(self) -> str:
        """Device class by which latencies are listed, given or derived."""
        return self.device_class or self.device.device_class(self.slice)


class LayoutNetwork(DocumentSection):
    """The network between the nodes of a layout."""

    gbps: Positive = Field(description="Bandwidth of each node's uplink and of its downlink, in Gbit/s")
    latency_ms: float = Field(default=0.0, ge=0, lt=1e6)


class Layout(VersionedDocument):
    """Models, their partitions, and the workers that host them."""

    kind: Literal["layout"] = "layout"
    models: tuple[LayoutModel, ...] = Field(min_length=1)
    partitions: tuple[LayoutPartition, ...] = Field(min_length=1)
    workers: tuple[LayoutWorker, ...] = Field(min_length=1)
    network: LayoutNetwork | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_each_once("models", (model.name for model in self.models))
        check_each_once("partitions", (part.name for part in self.partitions))
        check_each_once("workers", (worker.name for worker in self.workers))
        parts = {part.name: part for part in self.partitions}
        hosted: set[str] = set()
        for worker in {(worker.hosts, worker.speed): worker for worker in self.workers}.values():
            for name in worker.hosts:
                if name not in parts:
                    raise ValueError(f"workers: {worker.name!r} hosts {name!r}, which is no partition of this layout")
                if worker.speed not in parts[name].latency_ms:
                    raise ValueError(
                        f"partitions: {name!r} has no latency_ms for {worker.speed!r}, the device class of a host"
                    )
            hosted.update(worker.hosts)
        self._check_devices()
        for model in self.models:
            for pipeline in model.pipelines:
                self._check_pipeline(model, pipeline, parts, hosted)
        return self

    def _check_devices(self) -> None:
        """A device is the same wherever it is named, and has no more MIG instances than it can be cut into."""
        known: dict[tuple[str, int | str], Device] = {}
        instances: dict[Device, set[Mig]] = {}
        uncut: dict[Device, str] = {}
        for worker in self.workers:
            device = worker.device
            if known.setdefault((device.node, device.id), device) != device:
                raise ValueError(
                    f"workers: {worker.name!r}: device {device.id} of node {device.node!r} is of another product or "
                    "size than at a worker before it: say the same of it everywhere"
                )
            if instance := mig_instance(worker.slice):
                instances.setdefault(device, set()).add(instance)
            else:
                uncut.setdefault(device, worker.name)
        for device, placed in instances.items():
            if device in uncut:
                raise ValueError(
                    f"workers: {uncut[device]!r} is to have device {device.id} of node {device.node!r} uncut, of which "
                    "others have MIG instances: give it an instance, or those another device"
                )
            names = {instance.profile for instance in placed}
            geometries = mig_geometries(device.product, device.memory_mib)
            if geometries and not any(geometry.is_legal(placed) for geometry in geometries):
                likely = max(geometries, key=lambda each: len(names & {profile.name for profile in each.profiles}))
                raise ValueError(f"workers: device {device.id} of node {device.node!r}: {likely.why_not(placed)}")

    def _check_pipeline(
        self, model: LayoutModel, pipeline: LayoutPipeline, parts: Mapping[str, LayoutPartition], hosted: set[str]
    ) -> None:
        where = f"models: {model.name!r}: pipeline {list(pipeline.partitions)}"
        for name in pipeline.partitions:
            part = parts.get(name)
            if part is None or part.model != model.name:
                raise ValueError(f"{where}: {name!r} is no partition of this model")
            if name not in hosted:
                raise ValueError(f"{where}: no worker hosts {name!r}")
            short = next(
                (device_class for device_class, table in part.latency_ms.items() if len(table) < pipeline.batch), None
            )
            if short is not None:
                raise ValueError(f"{where}: latency_ms of {name!r} on {short!r} ends before the batch {pipeline.batch}")
        blocks = [parts[name].blocks for name in pipeline.partitions]
        if blocks[0][0] != 0 or any(end != start for (_, end), (start, _) in pairwise(blocks)):
            raise ValueError(
                f"{where}: its blocks {[list(each) for each in blocks]} do not follow each other from 0 on"
            )

    def contract(self) -> tuple[tuple[Model, ...], tuple[Worker, ...], tuple[Profile, ...], Network | None]:
        """Return models, workers (numbered in order), profiles and network in the types of `tidegate.api`."""
        models = tuple(
            Model(
                model.name,
                max(pipeline.batch for pipeline in model.pipelines),
                None if model.slo_ms is None else ms_to_ns(model.slo_ms),
                self._pipelines(model),
            )
            for model in self.models
        )
        workers = tuple(
            Worker(number, worker.name, tuple(sorted(worker.hosts)), worker.speed, worker.device, worker.slice)
            for number, worker in enumerate(self.workers)
        )
        parts = {part.name: part for part in self.partitions}
        profiles = tuple(
            Profile.from_table(
                name, tuple(map(ms_to_ns, parts[name].latency_ms[device_class])), device_class=device_class
            )
            for name, device_class in sorted(
                {(name, worker.device_class) for worker in workers for name in worker.hosts}
            )
        )
        network = None
        if self.network:
            sizes = {part.name: part.bytes_per_row for part in self.partitions}
            network = Network(sizes, self.network.gbps * 1e9 / 8, ms_to_ns(self.network.latency_ms))
        return models, workers, profiles, network

    @staticmethod
    def _pipelines(model: LayoutModel) -> tuple[Pipeline, ...]:
        pipelines = tuple(Pipeline(pipeline.partitions, pipeline.batch) for pipeline in model.pipelines)
        return () if [pipeline.partitions for pipeline in pipelines] == [(model.name,)] else pipelines
