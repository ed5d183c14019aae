"""Server of the dashboard for a recorded run, on this machine only, until interrupted."""

import asyncio
import hmac
import secrets
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path

from tidegate_proxy.app.dashboard.recording import RecordedRun
from tidegate_proxy.app.dashboard.routes import LivePage
from tidegate_proxy.configuration.addresses import names_this_machine
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.infer_response import error
from tidegate_proxy.servers.http.interface import HttpAnswer, Receive, Scope, Send
from tidegate_proxy.servers.http.routes import DASHBOARD_PATH, is_dashboard_path
from tidegate_proxy.servers.http.server import start_server
from tidegate_proxy.transport.ports import bind


async def show(log: Path, port: int, *, notify: Callable[[str], None], browser: bool) -> None:
    """Serve the dashboard for an event log until cancelled.

    `port`: 0 picks a free one; `notify`: called with its address; `browser`: whether to open one. Raises OSError, and
    ValueError for a file that is no event log.
    """
    token = secrets.token_urlsafe(16)
    expected = f"Bearer {token}".encode()

    def refusal(headers: Mapping[str, str]) -> HttpAnswer | None:
        given = headers.get("authorization", "").encode(errors="surrogatepass")
        if names_this_machine(headers.get("host", "")) and hmac.compare_digest(given, expected):
            return None
        return error(401, "open the address that `tidegate view` printed: there is a token in it")

    recording = RecordedRun(log)
    try:
        page = LivePage(recording, None, refusal)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            exchange = HttpExchange(scope, receive, send)
            if is_dashboard_path(exchange.path):
                await page.answer(exchange, scope["query_string"])
            else:
                await exchange.reply(error(404, f"the dashboard is at {DASHBOARD_PATH.decode()}"))

        server = await start_server(answer, bind(f"127.0.0.1:{port}"), served="metrics")
        try:
            address = f"http://127.0.0.1:{server.port}{DASHBOARD_PATH.decode()}#token={token}"
            notify(address)
            if browser:
                await asyncio.to_thread(webbrowser.open, address)
            await asyncio.Event().wait()
        finally:
            await server.stop()
    finally:
        recording.close()
