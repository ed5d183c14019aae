"""Metrics endpoint: Tidegate's metrics and those of the Tritons behind it, on a port of its own."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidegate.api import NS_PER_MS
from tidegate_proxy.access.gate import AccessControl, HttpRefusal
from tidegate_proxy.app.actuation.actuator import Actuator
from tidegate_proxy.app.dashboard.history import STEP_S, HistoryRing
from tidegate_proxy.app.dashboard.live import LiveView
from tidegate_proxy.app.dashboard.routes import LivePage
from tidegate_proxy.app.dashboard.viewers import Viewers
from tidegate_proxy.app.tuning.policy_tuning import PolicyTuning
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.deployed.tritons import RunningTritons
from tidegate_proxy.observability.metrics import MetricsSnapshot, Observability
from tidegate_proxy.observability.metrics_registry import registry_of
from tidegate_proxy.observability.model_statistics import RequestCounts
from tidegate_proxy.observability.triton_metrics import merge, request_metrics
from tidegate_proxy.rollout.mode import RolloutMode
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.infer_response import error
from tidegate_proxy.servers.http.interface import HttpAnswer, HttpLimits, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import is_dashboard_path
from tidegate_proxy.servers.http.server import HttpServer, start_server
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.on_demand import OnDemandModels
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.transport.ports import bind
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.workers import scrape

MAX_BURST_PAGES: Final = 8
"""Number of pages that may be rendered back to back after some idle seconds."""
PER_S: Final = 1.0
"""Sustained number of pages per second."""
PageT = TypeVar("PageT")


class SharedPage(Generic[PageT]):
    """Latest page, and the task that renders the next. Use it only in one event loop."""

    def __init__(self, render: Callable[[], Awaitable[PageT]]) -> None:
        self._render = render
        self._rendering: asyncio.Future[PageT] | None = None
        self._credit, self._credited_s = float(MAX_BURST_PAGES), 0.0

    async def read(self) -> PageT:
        """Return the page being rendered, a new one, or, after too many, the latest. Raises as `render`."""
        now_s = asyncio.get_running_loop().time()
        self._credit = min(MAX_BURST_PAGES, self._credit + (now_s - self._credited_s) * PER_S)
        self._credited_s = now_s
        if self._rendering is None or (self._rendering.done() and self._credit >= 1):
            self._credit -= 1
            self._rendering = asyncio.ensure_future(self._render())
        return await asyncio.shield(self._rendering)


STUCK_S: Final = 30.0
"""Seconds after which a client that reads nothing is disconnected, so that it does not occupy a viewer's slot."""


class ServedDocument(NamedTuple):
    """Document served beside the metrics."""

    answer: "Callable[[MetricsPage], Awaitable[HttpAnswer]]"
    api: Api
    """API whose restriction applies to the document."""
    needs_credential: bool
    """Whether a credential is required, if any are configured, even where the API is open."""


@dataclass(eq=False, repr=False)
class MetricsPage:
    """HTTP application of the metrics port. Use it only in one event loop.

    It serves GET /metrics, GET /models (scheduling of each), GET /layout (layout and controller), GET /shadow (gain of
    a policy), GET /canary (the gain measured by a canary), GET /rollouts (new versions), and the dashboard.
    """

    _policy: Callable[[], str]
    _liveness: Liveness
    _observability: Observability
    _driver: Driver
    _directory: CurrentCatalog
    _discovery: Discovery
    _gate: AccessControl
    _bounds: ClientBounds
    _limits: HttpLimits
    _rollout: RolloutMode
    _tuning: PolicyTuning
    _on_demand: OnDemandModels
    _actuator: Actuator | None = None
    _processes: RunningTritons | None = None

    def __post_init__(self) -> None:
        self._history = HistoryRing(self._observability.metrics)
        self._sampling: asyncio.Task[None] | None = None
        live = LiveView(self._driver, self._directory, self._discovery, self._rollout, self._tuning, self._history)
        self._live_page = LivePage(live, Viewers(live), self._looks_refused)
        self._shared = SharedPage(self._rendered)
        self._server: HttpServer | None = None

    async def listen(self, address: str, *, reuse_port: bool = False) -> int:
        """Bind and serve; return the port. Raises OSError if the address cannot be bound."""
        listener = bind(address, reuse_port=reuse_port)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what the kernel keeps for a client could be minutes of snapshots
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STUCK_S * 1000))
        self._server = await start_server(
            self.answer,
            listener,
            limits=replace(self._limits, send_s=min(STUCK_S, self._limits.send_s or STUCK_S)),
            bounds=self._bounds,
            served="metrics",
        )
        self._sampling = asyncio.create_task(self._sample_history())
        return self._server.port

    async def close(self) -> None:
        """Stop serving."""
        await cancel(self._sampling)
        await self._live_page.close()
        if self._server:
            await self._server.stop()

    async def _sample_history(self) -> None:
        """Add a point to the dashboard's history every few seconds, where there is a dashboard."""
        while True:
            await asyncio.sleep(STEP_S)
            if self._gate.page_refusal() is None:
                with faults.contained("the dashboard's history"):
                    self._history.sample()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; an ASGI application."""
        exchange = HttpExchange(scope, receive, send)
        if is_dashboard_path(exchange.path):
            await self._look(exchange, scope["query_string"])
            return
        page = self.ROUTES.get(exchange.path)
        if refusal := self._refusal(page, exchange.first_headers()):
            await exchange.reply(_answer_of(refusal))
        elif page is None:
            words = (
                "metrics are at /metrics, each model at /models, the layout at /layout, the dashboard at /dashboard, "
            )
            words += "what a policy would have gained at /shadow, what it gained at /canary, new versions at /rollouts"
            await exchange.reply(error(404, words))
        elif exchange.method not in ("GET", "HEAD"):
            await exchange.reply(error(405, "this is read with GET", (b"allow", b"GET, HEAD")))
        else:
            await exchange.reply(await page.answer(self))

    def _refusal(self, page: "ServedDocument | None", headers: Mapping[str, str]) -> HttpRefusal | None:
        if page is None or page.needs_credential:
            refusal = self._gate.http_refusal(None, headers)
            if refusal or page is None:
                return refusal
        return self._gate.http_refusal(page.api, headers)

    async def _look(self, exchange: HttpExchange, query: bytes) -> None:
        """Answer a request for the dashboard: the page needs no credentials, its data have their own access rules."""
        if refusal := self._gate.page_refusal():
            await exchange.reply(_answer_of(refusal))
        else:
            await self._live_page.answer(exchange, query)

    def _looks_refused(self, headers: Mapping[str, str]) -> HttpAnswer | None:
        refusal = self._gate.look_refusal(headers)
        return refusal and _answer_of(refusal)

    async def _metrics(self) -> HttpAnswer:
        return await self._shared.read()

    async def _rendered(self) -> HttpAnswer:
        addresses = {backend.address: backend.metrics for backend in self._discovery.backends if backend.metrics}
        pages = await scrape(addresses)
        # The numbers are copied here, where they change, and written out in a thread, as that takes a while.
        snapshot, counts = self._observability.metrics.snapshot(), self._observability.statistics.snapshot()
        ejections = self._driver.outliers.ejections(self._discovery.backends)
        left_apis = [(each.address, *left) for each in self._discovery.backends for left in each.apis.left]
        body = await asyncio.to_thread(self._render, snapshot, counts, ejections, left_apis, pages)
        return HttpAnswer(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], body)

    async def _shadow(self) -> HttpAnswer:
        return _json_answer(self._rollout.shadow.document())

    async def _canary(self) -> HttpAnswer:
        return _json_answer(self._rollout.canary.document())

    async def _rollouts(self) -> HttpAnswer:
        return _json_answer(self._rollout.versions.document())

    async def _models(self) -> HttpAnswer:
        catalog, counts = self._directory.catalog, self._observability.metrics.counts.models
        models = [
            {
                "name": name,
                "scheduling": consent.scheduling,
                "why": consent.why,
                "max_rows": model.max_rows if model else None,
                "merged_rows": model.merged_rows if model else None,
                "slo_ms": None if model is None or model.slo_ns is None else model.slo_ns / NS_PER_MS,
                "late": None if model is None or model.slo_ns is None else model.on_deadline_miss,
                "warning": consent.warning or None,
                "rows": dict(sorted(counts[name].rows.items())) if name in counts else {},
                "shapes": {
                    shape: {"requests": requests, "mean_ms": sum_ns / requests / NS_PER_MS}
                    for shape, (requests, sum_ns) in sorted(counts[name].shapes.items() if name in counts else ())
                },
            }
            for name, consent in sorted(catalog.consents.items())
            for model in [catalog.models.get(name)]
        ]
        return _json_answer(models)

    async def _layout(self) -> HttpAnswer:
        actuator, layout = self._actuator, self._directory.catalog.layout
        if layout is None:
            return error(404, "the Tritons follow no layout")
        document = {
            "layout": layout.model_dump(mode="json"),
            "workers": {
                worker.name: "up" if self._directory.catalog.backend_of[worker.id].alive else "away"
                for worker in self._directory.catalog.workers
            },
            "control": actuator.report() if actuator else None,
        }
        return _json_answer(document)

    def _render(
        self,
        snapshot: MetricsSnapshot,
        counts: Mapping[tuple[str, str], RequestCounts],
        ejections: Mapping[str, tuple[int, bool]],
        left_apis: Collection[tuple[str, str, str]],
        pages: Mapping[str, str | None],
    ) -> bytes:
        restarts = self._processes.restarts if self._processes else {}
        registry = registry_of(
            snapshot, self._policy(), time.monotonic_ns(), ejections, self._bounds, restarts, left_apis
        )
        registry.register(self._liveness)
        registry.register(self._rollout.shadow)
        registry.register(self._rollout.canary)
        registry.register(self._rollout.versions)
        registry.register(self._tuning)
        registry.register(self._on_demand)
        pending = {(model, version): snapshot.waiting[model] for model, version in counts}
        requests = request_metrics(counts, pending)
        own = generate_latest(registry).decode()
        return merge(own, requests, pages, frozenset(self._directory.catalog.models)).encode()

    ROUTES: ClassVar[Mapping[bytes, ServedDocument]] = MappingProxyType(
        {
            b"/metrics": ServedDocument(_metrics, "metrics", needs_credential=False),
            b"/models": ServedDocument(_models, "metrics", needs_credential=False),
            b"/layout": ServedDocument(_layout, "metrics", needs_credential=True),
            b"/shadow": ServedDocument(_shadow, "metrics", needs_credential=True),
            b"/canary": ServedDocument(_canary, "metrics", needs_credential=True),
            b"/rollouts": ServedDocument(_rollouts, "metrics", needs_credential=True),
        }
    )


def _json_answer(document: object) -> HttpAnswer:
    return HttpAnswer(200, [(b"content-type", b"application/json")], json.dumps(document).encode())


def _answer_of(refusal: HttpRefusal) -> HttpAnswer:
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
    return HttpAnswer(refusal.status, headers, refusal.body)
