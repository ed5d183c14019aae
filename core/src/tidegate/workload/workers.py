"""Workers of a scenario: groups of equal workers, each with a GPU of its own or a part of one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api.planner import DocumentSection
from tidegate.control.concurrency_limit import INITIAL_LIMIT
from tidegate.schemas import Device, Mps, Slice, WholeDevice
from tidegate.schemas.document import Name
from tidegate.workload.simulated import NetworkSpec


class WorkerSpec(DocumentSection):
    """A group of equal workers."""

    count: int = Field(ge=1, le=100_000)
    gpu: Name = Field(
        default="default", description="GPU product of the workers, e.g. `A100`; equal names are equally fast"
    )
    per_gpu: int = Field(
        default=1, ge=1, le=100, description="Workers that share one GPU, each with an equal MPS share"
    )
    percent: int | None = Field(
        default=None, ge=1, le=100, description="MPS share of each worker in percent; default: 100 / per_gpu"
    )
    slots: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = Field(
        default=1,
        description="Requests that each of them runs at a time, of models with `streaming`: its concurrency limit. "
        "auto: found by throughput and latency, as by the proxy",
    )
    device: int | None = Field(
        default=None,
        ge=0,
        description="Index in its node of the GPU that all of these workers share, also with other entries; default: "
        "GPUs of their own",
    )
    node: Name = Field(default="node0", description="Machine of the workers; they are lost together")
    per_node: int | None = Field(
        default=None, ge=1, description="Workers of each machine; nodes are then node-0, node-1, ..."
    )
    hosts: list[Name] | None = Field(
        default=None, min_length=1, description="Models or partitions that the workers host; default: all"
    )
    network: NetworkSpec | None = Field(
        default=None, description="Delays between the scheduler and simulated workers, unknown to policies"
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        if self.slots == "auto" and (self.per_gpu > 1 or self.device is not None):
            raise ValueError(
                "slots: auto is for workers with a GPU each: leave out per_gpu and device, or say a number"
            )
        if self.per_node is None:
            return self
        if self.device is not None:
            raise ValueError("per_node: workers of one device are in one machine: leave out one of the two")
        if self.per_node % self.per_gpu:
            raise ValueError(
                f"per_node: {self.per_node} workers fill no whole GPUs of {self.per_gpu}: give a multiple of per_gpu"
            )
        return self

    @property
    def slice(self) -> Slice:
        """Part of its GPU that each worker has."""
        if self.percent is not None:
            return Mps(self.percent)
        return WholeDevice() if self.per_gpu == 1 else Mps(100 // self.per_gpu)

    @property
    def device_class(self) -> str:
        """Device class by which their profiles are listed."""
        return Device(self.node, 0, self.gpu).device_class(self.slice)


def devices_of(pools: Sequence[WorkerSpec]) -> Iterator[tuple[WorkerSpec, Device]]:
    """Yield the entry and the GPU of every worker, or of each of its slots, in order.

    GPUs without a number are numbered on each node, skipping the numbers in use. `slots: auto` yields the
    slots that there are at the beginning.
    """
    named = {(pool.node, pool.device) for pool in pools if pool.device is not None}
    numbered: defaultdict[str, int] = defaultdict(int)

    def next_in(node: str) -> int:
        while (node, numbered[node]) in named:
            numbered[node] += 1
        numbered[node] += 1
        return numbered[node] - 1

    for pool in pools:
        number = pool.device or 0
        for index in range(pool.count):
            node = pool.node if pool.per_node is None else f"{pool.node}-{index // pool.per_node}"
            if pool.device is None and index % pool.per_gpu == 0:
                number = next_in(node)
            for _ in range(INITIAL_LIMIT if pool.slots == "auto" else pool.slots):
                yield pool, Device(node, number, pool.gpu)
