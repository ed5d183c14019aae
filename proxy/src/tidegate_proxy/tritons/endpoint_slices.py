"""EndpointSlices of a service of Kubernetes, listed and watched at the API server: the Tritons behind it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, Final, Self

import aiohttp

from tidegate_proxy.configuration.triton_sources import KubernetesService, SourceError, TritonSource
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.tritons.kubernetes_api import ANSWER_TIMEOUT_S, KubernetesApi

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""Label of an EndpointSlice with the name of its service."""
NODE_LABELS: Final = {"topology.kubernetes.io/zone": "zone", "kubernetes.io/hostname": "nodeName"}
"""Labels of a node that an endpoint has as a field."""
WATCH_TIMEOUT_S: Final = 60
"""Length of a watch in seconds; then the slices are listed and watched again, so that no missed event lasts."""
MIN_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 30.0
"""Longest delay in seconds before the API server is asked again; it doubles with each failure."""
LIST_SLICES: Final = "list and watch endpointslices.discovery.k8s.io"
GET_PODS: Final = "get pods"
MAX_EVENT_BYTES: Final = 16 << 20
"""Largest event of a watch: a slice has at most 1000 endpoints."""


class EndpointSlices:
    """EndpointSlices of one service. Use it as a context manager."""

    def __init__(self, source: TritonSource, service: KubernetesService) -> None:
        """Create the reader. `source`: settings of the Tritons; `service`: its entry `kubernetes`."""
        self._source = source
        self._service = service
        self._api = KubernetesApi(source.label, service)
        self._slices: dict[str, Mapping[str, Any]] = {}
        """The slices by name, as the API server has them."""
        self._device_classes: dict[str, str | None] = {}
        """Device class of each pod that was asked for, by its uid."""

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.__aexit__()

    async def list_tritons(self) -> tuple[TritonAddress, ...]:
        """Return the Tritons of all ready pods. Raises SourceError."""
        await self._list()
        return await self._tritons()

    async def list_pods(self) -> dict[str, str]:
        """Return the gRPC address of each ready pod by its name. Raises SourceError."""
        await self._list()
        pods = [(host, endpoint.get("targetRef") or {}) for host, endpoint in self._ready_endpoints()]
        return {pod["name"]: self._source.address(host).grpc for host, pod in pods if pod.get("kind") == "Pod"}

    async def watch(self) -> AsyncGenerator[tuple[TritonAddress, ...] | SourceError]:
        """Yield the Tritons of all ready pods, or why they are unknown, now and after each change. Never ends."""
        delay_s = MIN_RETRY_DELAY_S
        while True:
            try:
                version = await self._list()
                yield await self._tritons()
                delay_s = MIN_RETRY_DELAY_S
                async for event in self._events(version):
                    if self._take_up(event):
                        yield await self._tritons()
            except SourceError as error:
                yield error
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_DELAY_S)

    async def _list(self) -> str:
        """Read all slices; the version of the list, from which it can be watched."""
        async with self._api.get(self._slices_path, {"labelSelector": self._selector}, LIST_SLICES) as response:
            document = await response.json(content_type=None)
        self._slices = {each["metadata"]["name"]: each for each in document.get("items") or ()}
        return str(document["metadata"]["resourceVersion"])

    async def _events(self, version: str) -> AsyncIterator[Mapping[str, Any]]:
        query = {
            "labelSelector": self._selector,
            "watch": "1",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }
        limit = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_TIMEOUT_S, sock_read=WATCH_TIMEOUT_S + 5)
        async with self._api.get(self._slices_path, query, LIST_SLICES, limit) as response:
            line = bytearray()
            async for chunk in response.content.iter_any():
                line += chunk
                *complete, rest = line.split(b"\n")
                if len(rest) > MAX_EVENT_BYTES:
                    raise SourceError(f"{self._source.label}: the API server sends an event of {len(rest)} bytes")
                line = bytearray(rest)
                for event in map(json.loads, complete):
                    if event["type"] == "ERROR":  # the version is too old, say: the slices are listed again
                        return
                    yield event

    def _take_up(self, event: Mapping[str, Any]) -> bool:
        """Apply an event of a watch; whether a slice has changed."""
        event_type, slice_ = event["type"], event["object"]
        if event_type == "DELETED":
            return self._slices.pop(slice_["metadata"]["name"], None) is not None
        if event_type in ("ADDED", "MODIFIED"):
            self._slices[slice_["metadata"]["name"]] = slice_
        return event_type in ("ADDED", "MODIFIED")

    async def _tritons(self) -> tuple[TritonAddress, ...]:
        try:
            return await self._tritons_in_slices()
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise SourceError(f"{self._source.label}: the API server's slices make no sense: {error!r}") from error

    async def _tritons_in_slices(self) -> tuple[TritonAddress, ...]:
        found: dict[str, TritonAddress] = {}
        before, self._device_classes = self._device_classes, {}
        for host, endpoint in self._ready_endpoints():
            triton = self._source.address(host, await self._device_class(endpoint, before))
            found[triton.grpc] = triton
        return tuple(found[address] for address in sorted(found))

    def _ready_endpoints(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Host and endpoint of each: over IPv4 if any is, since a pod with both addresses would count twice."""
        types = {slice_.get("addressType") for slice_ in self._slices.values()}
        is_four = types != {"IPv6"}
        for slice_ in self._slices.values():
            if is_four and slice_.get("addressType") == "IPv6":
                continue
            for endpoint in slice_.get("endpoints") or ():
                # No condition stands for ready, and a service that publishes all its pods calls all of them ready.
                conditions = endpoint.get("conditions") or {}
                if conditions.get("ready") is not False and conditions.get("terminating") is not True:
                    address = endpoint["addresses"][0]
                    yield address if is_four else f"[{address}]", endpoint

    async def _device_class(self, endpoint: Mapping[str, Any], known: Mapping[str, str | None]) -> str | None:
        """`known`: device classes of pods, by uid."""
        label = self._service.device_class_label
        if label is None:
            return None
        if label in NODE_LABELS:
            return endpoint.get(NODE_LABELS[label])
        pod = endpoint.get("targetRef") or {}
        if pod.get("kind") != "Pod":
            return None
        uid = pod.get("uid") or pod["name"]
        if uid in known:
            device_class = known[uid]
        else:
            path = f"/api/v1/namespaces/{self._api.namespace}/pods/{pod['name']}"
            async with self._api.get(path, {}, GET_PODS) as response:
                document = await response.json(content_type=None)
            device_class = (document["metadata"].get("labels") or {}).get(label)
        self._device_classes[uid] = device_class
        return device_class

    @property
    def _selector(self) -> str:
        return f"{SERVICE_NAME_LABEL}={self._service.service}"

    @property
    def _slices_path(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self._api.namespace}/endpointslices"
