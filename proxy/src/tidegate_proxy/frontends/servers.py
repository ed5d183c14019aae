"""The servers of a home whose clients its fronts have: they do what a home's own servers would do."""

import asyncio
from typing import Final

from tidegate_proxy.configuration.config import ServerTls
from tidegate_proxy.frontends.home import Home
from tidegate_proxy.transport.http2.connection import ALPN
from tidegate_proxy.transport.tls import server_context

_POLL_S: Final = 0.01


class GrpcOfFronts:
    """A `transport.Server` whose connections the fronts have."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return self._home.open_calls

    async def listen(self, _address: str, tls: ServerTls | None = None) -> int:
        """The port where the fronts listen. Raises TlsError for files that they could not use."""
        if tls:
            server_context(tls, ALPN)
        return self._home.grpc_port

    async def retire(self, within_s: float) -> None:
        """Have clients told to go elsewhere; return when they had time to hear it. Whoever stays is served."""
        await self._home.retire(within_s)

    async def stop(self, grace_s: float) -> bool:
        """Let what is under way end, cut off what has not ended then, and end the fronts; whether all had."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while self.open_calls and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        cut_off = self._home.cut_off()
        await self._home.close()  # what came over HTTP was ended before
        return not cut_off


class HttpOfFronts:
    """An `HttpListener` whose connections the fronts have."""

    def __init__(self, home: Home) -> None:
        self._home = home
        assert home.http_port is not None, "the fronts listen for HTTP where the home is asked to"
        self.port = home.http_port

    async def drain(self, until: float, serve_until: float = 0.0) -> None:
        """Let what is under way be answered, until an instant of the loop's clock; new requests until another."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._home.retire_http(max(0.0, until - now), max(0.0, serve_until - now))
        while loop.time() < min(serve_until, until):
            await asyncio.sleep(_POLL_S)
        while self._home.open_exchanges and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Take no more requests, and tell those under way that they will not be answered."""
        await self._home.cut_off_exchanges()
