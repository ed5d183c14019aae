"""The metrics page: Tidegate's own numbers and those of the Tritons behind it, on a port of its own."""

import asyncio
from collections.abc import Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidegate.api import NS_PER_MS
from tidegate_proxy.catalog import Directory
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.discovery import Discovery
from tidegate_proxy.driver import Driver
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.observability.triton_metrics import merge, request_metrics, scrape


class MetricsPage:
    """Serves GET /metrics, and GET /models: what happens to the requests of each. Lives in one event loop."""

    def __init__(
        self,
        registry: CollectorRegistry,
        observability: Observability,
        driver: Driver,
        directory: Directory,
        discovery: Discovery,
    ) -> None:
        self._registry = registry
        self._observability = observability
        self._driver = driver
        self._directory = directory
        self._discovery = discovery
        self._runner: web.AppRunner | None = None

    async def listen(self, address: str) -> int:
        """Bind and serve; the port. Raises OSError when the address cannot be bound."""
        application = web.Application()
        application.router.add_get("/metrics", self._page)
        application.router.add_get("/models", self._models)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host_of(address).strip("[]"), port_of(address))
        try:
            await site.start()
        except OSError as error:
            raise OSError(f"cannot listen on {address}: is the port taken?") from error
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Stop serving."""
        if self._runner:
            await self._runner.cleanup()

    async def _page(self, _request: web.Request) -> web.Response:
        addresses = {backend.address: backend.metrics for backend in self._discovery.backends if backend.metrics}
        pages = await scrape(addresses)
        body = await asyncio.to_thread(self._render, pages)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, _request: web.Request) -> web.Response:
        catalog = self._directory.catalog
        models = [
            {
                "name": name,
                "batch": consent.batch,
                "why": consent.why,
                "max_rows": model.max_rows if model else None,
                "merged_rows": model.merged_rows if model else None,
                "slo_ms": None if model is None or model.slo_ns is None else model.slo_ns / NS_PER_MS,
                "warning": consent.warning or None,
            }
            for name, consent in sorted(catalog.consents.items())
            for model in [catalog.models.get(name)]
        ]
        return web.json_response(models)

    def _render(self, pages: Mapping[str, str | None]) -> bytes:
        statistics = self._observability.statistics
        with self._driver.lock:
            waiting = self._observability.metrics.snapshot().waiting
        pending = {(model, version): waiting[model] for model, version in statistics.snapshot()}
        own = generate_latest(self._registry).decode()
        requests = request_metrics(statistics.snapshot(), pending)
        return merge(own, requests, pages, frozenset(self._directory.catalog.models)).encode()
