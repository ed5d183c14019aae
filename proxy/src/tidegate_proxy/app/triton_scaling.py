"""Scaling of Tritons in Kubernetes: the replicas of their StatefulSet follow their load.

The rule is that of a HorizontalPodAutoscaler. What an autoscaler cannot do is to drain first: Tritons that are to go
leave before Kubernetes ends their pods.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate_proxy.app.discovered_tritons import DiscoveredTritons
from tidegate_proxy.app.tritons import Tritons
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.triton_sources import KubernetesService, ScalingConfig, SourceError, TritonSource
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.tritons.endpoint_slices import EndpointSlices
from tidegate_proxy.tritons.kubernetes_api import KubernetesApi

log = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 0.05
LEAVE_TIMEOUT_S: Final = 10.0
"""Time in seconds after which Tritons that are to be removed and still take part stay."""
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

    def replicas(
        self, now_s: float, replicas: int, ready: int, busy: float, advised: int, *, is_partial: bool = False
    ) -> int:
        """Return the number of replicas to have now.

        `replicas`: number that is set; `ready`: number of Tritons that take part; `busy`: their busy fraction;
        `advised`: replicas that the policy wants added, 0 for none; `is_partial`: whether there is load besides, so
        that none may be removed.
        """
        scaling = self._scaling
        ratio = busy / scaling.target_utilization
        needed = ready if abs(ratio - 1) <= TOLERANCE_FRACTION else math.ceil(ready * ratio - 1e-9)
        if advised > 0:
            needed = max(needed, ready + advised)
        if is_partial:
            needed = max(needed, replicas)
        needed = min(max(needed, scaling.min_replicas), scaling.max_replicas)
        self._recent.append((now_s, needed if self._recent else max(needed, replicas)))
        while self._recent[0][0] < now_s - scaling.stabilization_window_s:
            self._recent.popleft()
        if needed > replicas:
            return needed
        is_settled = ready >= replicas  # otherwise some are starting, and the load is not theirs yet
        highest = max(each for _, each in self._recent) if is_settled else replicas
        return min(replicas, highest, scaling.max_replicas)


class TritonUtilization:
    """Busy fraction of the Tritons between one look and the next. It does not read the clock."""

    def __init__(self, tritons: Tritons, metrics: Metrics, now_ns: int) -> None:
        self._tritons = tritons
        self._metrics = metrics
        self._looked_ns = now_ns
        self._busy_ns = self._busy(now_ns)

    def look(self, now_ns: int) -> tuple[float, bool]:
        """Return the busy fraction since the last look, and whether it is a part of the load only.

        Of each Triton it is the time in which at least one batch runs, as if its workers were busy independently of
        each other; of several Tritons it is the mean. Bypassed requests, and those in slots, are not in it.
        """
        before_ns, self._busy_ns = self._busy_ns, self._busy(now_ns)
        elapsed_ns, self._looked_ns = max(1, now_ns - self._looked_ns), now_ns
        fractions: list[float] = []
        is_partial = False
        for backend, workers in self._tritons.batch_workers().items():
            both = [each for each in workers if each in before_ns and each in self._busy_ns]
            is_partial |= not both or bool(backend.in_flight or backend.open_calls)
            if both:
                ran_ns = (max(0, self._busy_ns[each] - before_ns[each]) for each in both)
                idle = math.prod(1 - min(1.0, each / elapsed_ns) for each in ran_ns)
                fractions.append(1 - idle ** (1 / self._tritons.gpus_of(backend)))
        return (sum(fractions) / len(fractions), is_partial) if fractions else (0.0, True)

    def _busy(self, now_ns: int) -> dict[int, int]:
        """Total busy time of all workers until now, in ns by id: also of the batches that run."""
        busy_ns = {number: worker.busy_ns for number, worker in self._metrics.counts.workers.items()}
        for number, ran_ns in self._tritons.running_ns(now_ns).items():
            if number in busy_ns:
                busy_ns[number] += ran_ns
        return busy_ns


@dataclass(slots=True)
class _ScaledSource:
    """Source of Tritons, with what its scaling remembers."""

    source: TritonSource
    scale: "StatefulSetScale"
    slices: EndpointSlices
    demand: ReplicaDemand
    utilization: TritonUtilization
    proposal: tuple[int, int] | None = None
    """Replicas that are set and wanted by the last dry run; None if nothing was to change."""


class TritonScaling:
    """Scaling of all sources of Tritons for which that is configured. Use it only in the event loop."""

    def __init__(self, config: ServeConfig, discovered: DiscoveredTritons, tritons: Tritons, metrics: Metrics) -> None:
        self._discovered = discovered
        self._tritons = tritons
        self._metrics = metrics
        self._sources: tuple[TritonSource, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        """Tasks of the current sources, and of former ones until they have ended."""
        self.follow(config)

    def follow(self, config: ServeConfig) -> None:
        """Scale the sources of another configuration."""
        if config.discovery == self._sources:
            return
        self._sources = config.discovery
        former = [task for task in self._tasks if not task.done()]
        for task in former:
            task.cancel()
        current = [
            asyncio.create_task(self._scale(source, source.kubernetes, source.kubernetes.scaling, former))
            for source in self._sources
            if source.kubernetes and source.kubernetes.scaling
        ]
        self._tasks = [*former, *current]

    async def close(self) -> None:
        """Stop scaling."""
        await cancel(*self._tasks)

    async def _scale(
        self,
        source: TritonSource,
        service: KubernetesService,
        scaling: ScalingConfig,
        former: Sequence[asyncio.Task[None]],
    ) -> None:
        """Look at the load of a source's Tritons forever, and change their number, once `former` tasks have ended."""
        if former:
            await asyncio.wait(former)
        complaint = ""
        async with KubernetesApi(source.label, service) as api, EndpointSlices(source, service) as slices:
            utilization = TritonUtilization(self._tritons, self._metrics, time.monotonic_ns())
            scaled = _ScaledSource(source, StatefulSetScale(api, scaling), slices, ReplicaDemand(scaling), utilization)
            while True:
                await asyncio.sleep(scaling.interval_s)
                try:
                    await self._look(scaled)
                    complaint = ""
                except SourceError as error:
                    if complaint != str(error):
                        complaint = str(error)
                        log.warning("scaling failed", extra={"detail": complaint})
                except Exception as error:  # there is a next time
                    faults.report("scaling Tritons", error)

    async def _look(self, scaled: _ScaledSource) -> None:
        """Compare the load with the replicas, and change them if need be. Raises SourceError."""
        source, scale = scaled.source, scaled.scale
        busy, is_partial = scaled.utilization.look(time.monotonic_ns())
        replicas, version = await scale.read()
        in_use = {triton.grpc for triton in self._tritons.config.tritons}
        ready = sum(triton.grpc in in_use for triton in self._discovered.listed(source))
        advised = self._advised(max(1, ready))
        wanted = scaled.demand.replicas(time.monotonic(), replicas, ready, busy, advised, is_partial=is_partial)
        proposal, scaled.proposal = scaled.proposal, None
        if wanted == replicas:
            return
        fields = {"statefulset": scale.name, "replicas": replicas, "wanted": wanted, "utilization": round(busy, 3)}
        if scale.is_dry_run:
            await scale.write(wanted, version)
            scaled.proposal = (replicas, wanted)
            if scaled.proposal != proposal:
                log.info("scaling proposed (dry run)", extra=fields)
            return
        if wanted > replicas:
            await scale.write(wanted, version)
            # Pods that were to go, and whose end is now called off.
            self._discovered.readmit([triton.grpc for triton in self._discovered.listed(source)])
            log.info("scaled up", extra=fields)
            return
        pods = await scaled.slices.list_pods()
        leaving = {pods[name] for name in scale.pods(wanted, replicas) if name in pods}
        self._discovered.withhold(leaving)
        try:
            await self._drain(source, leaving)
            await scale.write(wanted, version)
        except BaseException:
            self._discovered.readmit(leaving)
            raise
        log.info("scaled down", extra=fields)

    async def _drain(self, source: TritonSource, leaving: set[str]) -> None:
        """Return when withheld Tritons have left, and their requests ended or `drain_timeout_s` is over.

        Raises SourceError if they do not leave.
        """
        loop = asyncio.get_running_loop()
        leave_s = loop.time() + LEAVE_TIMEOUT_S
        while not self._tritons.is_idle(leaving):
            if loop.time() > leave_s and self._tritons.take_part(leaving):
                raise SourceError(
                    f"{source.label}: its replicas stay, because {', '.join(sorted(leaving))} cannot leave (after "
                    f"{LEAVE_TIMEOUT_S:g} s); that takes a list of each source and another live Triton"
                )
            await asyncio.sleep(DRAIN_POLL_S)

    def _advised(self, tritons: int) -> int:
        """Replicas that the policy wants added: it counts workers that run batches, several of a Triton."""
        counts = self._metrics.counts
        advised_ns = counts.advised_at_ns
        if advised_ns is None or time.monotonic_ns() - advised_ns > ADVICE_HOLDS_NS or counts.advised <= 0:
            return 0
        workers = sum(map(len, self._tritons.batch_workers().values()))
        return math.ceil(counts.advised * tritons / workers) if workers else 0


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
