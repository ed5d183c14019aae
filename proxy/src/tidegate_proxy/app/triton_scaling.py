"""Scaling of Tritons in Kubernetes: the replicas of their StatefulSet follow the load of their workers.

The rule is that of a HorizontalPodAutoscaler. What an autoscaler cannot do is to drain first: Tritons that are to go
leave before their pods are told to end.
"""

import asyncio
import logging
import math
import time
from collections import deque
from contextlib import suppress
from typing import Final

from tidegate_proxy.app.discovered_tritons import DiscoveredTritons
from tidegate_proxy.app.tritons import Tritons
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.triton_sources import KubernetesService, ScalingConfig, SourceError, TritonSource
from tidegate_proxy.observability.observability import Metrics
from tidegate_proxy.tritons.endpoint_slices import EndpointSlices
from tidegate_proxy.tritons.kubernetes_api import KubernetesApi

log = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 0.05
TOLERANCE_FRACTION: Final = 0.1
"""Deviation of the utilization from its target, as a fraction of that, up to which nothing changes."""
ADVICE_HOLDS_NS: Final = 60_000_000_000
"""Age in ns up to which a policy's recommendation counts."""
SCALE_GRANT: Final = "get and patch statefulsets/scale"


class ReplicaDemand:
    """Number of replicas that the load needs. It does not read the clock.

    Nothing is removed before it has seen the load for the stabilization window, as after a restart.
    """

    def __init__(self, scaling: ScalingConfig) -> None:
        self._scaling = scaling
        self._recent: deque[tuple[float, int]] = deque()
        """Demands within the stabilization window, each with its instant in seconds."""

    def replicas(self, now_s: float, replicas: int, ready: int, busy: float, advised: int) -> int:
        """Return the number of replicas to have now.

        `replicas`: number that is set; `ready`: number of Tritons that take part; `busy`: busy fraction of their
        workers; `advised`: replicas that the policy wants added, 0 for none.
        """
        scaling = self._scaling
        ratio = busy / scaling.target_utilization
        needed = ready if abs(ratio - 1) <= TOLERANCE_FRACTION else math.ceil(ready * ratio - 1e-9)
        if advised > 0:
            needed = max(needed, ready + advised)
        needed = min(max(needed, scaling.min_replicas), scaling.max_replicas)
        self._recent.append((now_s, needed if self._recent else max(needed, replicas)))
        while self._recent[0][0] < now_s - scaling.stabilization_window_s:
            self._recent.popleft()
        if needed > replicas:
            return needed
        is_settled = ready >= replicas  # otherwise some are starting, and the load is not theirs yet
        highest = max(each for _, each in self._recent) if is_settled else replicas
        return min(replicas, highest, scaling.max_replicas)


class TritonScaling:
    """Scaling of all sources of Tritons for which that is configured. Use it only in the event loop."""

    def __init__(self, config: ServeConfig, discovered: DiscoveredTritons, tritons: Tritons, metrics: Metrics) -> None:
        self._discovered = discovered
        self._tritons = tritons
        self._metrics = metrics
        self._sources: tuple[TritonSource, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._complaint = ""
        self.follow(config)

    def follow(self, config: ServeConfig) -> None:
        """Scale the sources of another configuration."""
        if config.discovery == self._sources:
            return
        self._sources = config.discovery
        for task in self._tasks:
            task.cancel()
        self._tasks = [
            asyncio.create_task(self._scale(source, source.kubernetes, source.kubernetes.scaling))
            for source in self._sources
            if source.kubernetes and source.kubernetes.scaling
        ]

    async def close(self) -> None:
        """Stop scaling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _scale(self, source: TritonSource, service: KubernetesService, scaling: ScalingConfig) -> None:
        """Look at the load of a source's Tritons forever, and change their number."""
        demand = ReplicaDemand(scaling)
        busy_ns = self._busy_ns()
        looked_ns = time.monotonic_ns()
        async with KubernetesApi(source.label, service) as api, EndpointSlices(source, service) as slices:
            scale = StatefulSetScale(api, scaling)
            while True:
                await asyncio.sleep(scaling.interval_s)
                before_ns, busy_ns = busy_ns, self._busy_ns()
                elapsed_ns, looked_ns = time.monotonic_ns() - looked_ns, time.monotonic_ns()
                try:
                    await self._look(source, scale, slices, demand, _busy_fraction(before_ns, busy_ns, elapsed_ns))
                    self._complaint = ""
                except SourceError as error:
                    if self._complaint != str(error):
                        self._complaint = str(error)
                        log.warning("scaling failed", extra={"detail": str(error)})
                except Exception as error:  # there is a next time
                    faults.report("scaling Tritons", error)

    async def _look(
        self,
        source: TritonSource,
        scale: "StatefulSetScale",
        slices: EndpointSlices,
        demand: ReplicaDemand,
        busy: float,
    ) -> None:
        replicas, version = await scale.read()
        in_use = {triton.grpc for triton in self._tritons.config.tritons}
        ready = sum(triton.grpc in in_use for triton in self._discovered.listed(source))
        wanted = demand.replicas(time.monotonic(), replicas, ready, busy, self._advised(max(1, ready)))
        if wanted == replicas:
            return
        fields = {"statefulset": scale.name, "replicas": replicas, "wanted": wanted, "utilization": round(busy, 3)}
        if scale.is_dry_run:
            await scale.write(wanted, version)
            log.info("scaling proposed (dry run)", extra=fields)
            return
        if wanted > replicas:
            await scale.write(wanted, version)
            # Pods that were to go, and whose end is now called off.
            self._discovered.readmit([triton.grpc for triton in self._discovered.listed(source)])
            log.info("scaled up", extra=fields)
            return
        pods = await slices.list_pods()
        leaving = {pods[name] for name in scale.pods(wanted, replicas) if name in pods}
        self._discovered.withhold(leaving)
        try:
            with suppress(TimeoutError):  # what still runs there is tried again elsewhere
                async with asyncio.timeout(scale.drain_timeout_s):
                    while not self._tritons.is_idle(leaving):
                        await asyncio.sleep(DRAIN_POLL_S)
            await scale.write(wanted, version)
        except BaseException:
            self._discovered.readmit(leaving)
            raise
        log.info("scaled down", extra=fields)

    def _busy_ns(self) -> dict[str, int]:
        return {worker.name: worker.busy_ns for worker in self._metrics.snapshot().workers if worker.up}

    def _advised(self, tritons: int) -> int:
        """Replicas that the policy wants added: it counts workers, of which a Triton may have several."""
        snapshot = self._metrics.snapshot()
        told_ns = snapshot.advised_at_ns
        if told_ns is None or time.monotonic_ns() - told_ns > ADVICE_HOLDS_NS or snapshot.advised <= 0:
            return 0
        workers = sum(worker.up for worker in snapshot.workers)
        return math.ceil(snapshot.advised * tritons / max(1, workers))


class StatefulSetScale:
    """Scale of a StatefulSet at the API server."""

    def __init__(self, api: KubernetesApi, scaling: ScalingConfig) -> None:
        self._api = api
        self._scaling = scaling

    @property
    def name(self) -> str:
        """Name of the StatefulSet."""
        return self._scaling.statefulset

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is changed."""
        return self._scaling.dry_run

    @property
    def drain_timeout_s(self) -> float:
        """Time in seconds for requests on Tritons that are to be removed."""
        return self._scaling.drain_timeout_s

    def pods(self, wanted: int, replicas: int) -> list[str]:
        """Return the names of the pods that go with a change from `replicas` to `wanted`: the highest ordinals."""
        return [f"{self.name}-{ordinal}" for ordinal in range(wanted, replicas)]

    async def read(self) -> tuple[int, str]:
        """Return the number of replicas and the version of the object. Raises SourceError."""
        async with self._api.get(self._path, {}, SCALE_GRANT) as response:
            document = await response.json(content_type=None)
            # Go leaves out a zero.
            return int(document["spec"].get("replicas", 0)), str(document["metadata"]["resourceVersion"])

    async def write(self, replicas: int, version: str) -> None:
        """Set the number of replicas, unless the object has another version. Raises SourceError."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._api.patch(self._path, body, SCALE_GRANT, dry_run=self.is_dry_run)

    @property
    def _path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self._api.namespace}/statefulsets/{self.name}/scale"


def _busy_fraction(before_ns: dict[str, int], now_ns: dict[str, int], elapsed_ns: int) -> float:
    """Busy fraction of the workers that were there at both instants."""
    busy = [now_ns[name] - before_ns[name] for name in now_ns if name in before_ns]
    return min(1.0, sum(busy) / (len(busy) * elapsed_ns)) if busy else 0.0
