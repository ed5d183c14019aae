"""Connection of a frontend to one shard: the link, and the requests in flight."""

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from tidegate_proxy.base import refusal
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import SHUTTING_DOWN, Outcome, RequestFailed
from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.address import ShardAddress
from tidegate_proxy.frontends.frames import MAX_INLINE_BYTES, FrameType
from tidegate_proxy.frontends.link import Link
from tidegate_proxy.servers.http.interface import HttpAnswer
from tidegate_proxy.service.fan_out import ControlCall
from tidegate_proxy.transport.http2.headers import STATUS_BY_NUMBER

if TYPE_CHECKING:
    from tidegate_proxy.frontends.frontend import Frontend

log = logging.getLogger(__name__)

SCHEDULER_UNAVAILABLE: Final = "Tidegate's scheduler is not there: it is being started again"
SHARD_LOST: Final = "Tidegate's scheduler ended while the request was in flight"
_CONNECT_EVERY_S: Final = (0.02, 0.5)
"""How soon a shard is looked for again that was not there: at first, and at last."""
_NUMBERS: Final = (1 << 32) - 1
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


def scheduler_unavailable() -> RequestFailed:
    """Return the error for a client whose shard is not connected."""
    return RequestFailed(_UNAVAILABLE, SCHEDULER_UNAVAILABLE, reason=refusal.SCHEDULER_UNAVAILABLE)


def shard_lost() -> RequestFailed:
    """Return the error for a client whose shard ended during its request."""
    return RequestFailed(_UNAVAILABLE, SHARD_LOST, reason=refusal.SCHEDULER_UNAVAILABLE)


def shutting_down() -> RequestFailed:
    """Return the error for a client during shutdown."""
    return RequestFailed(_UNAVAILABLE, SHUTTING_DOWN, reason=refusal.SHUTTING_DOWN)


def failure_in(payload: bytes) -> RequestFailed:
    """Return the status in the payload of an END frame as an outcome; its code may be OK."""
    code, details, reason = frames.status_of(payload)
    return RequestFailed(STATUS_BY_NUMBER[code], details, reason=reason)


class ShardRelay(Protocol):
    """Call or exchange that is relayed."""

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the shard."""

    def fail(self, failure: RequestFailed) -> None:
        """End the relayed call or stream."""

    def again(self) -> None:
        """Send the call or stream again once the lost shard is connected again."""


class ShardConnection:
    """Connection of a frontend to a shard. Call only from the event loop."""

    def __init__(self, number: int, address: ShardAddress, frontend: "Frontend") -> None:
        self.number = number
        self._address = address
        self._frontend = frontend
        self.has_stopped = False
        """Whether it has ended because everything shuts down."""
        self._link: Link | None = None
        self._is_refused = False
        self._has_said_hello = False
        self._under_way: dict[int, ShardRelay] = {}
        self._numbers = count(1)
        self._lost = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._away: asyncio.TimerHandle | None = None
        """Runs while the shard is about to end and come back."""
        self._waiting: list[ShardRelay] = []
        """Frames that arrived meanwhile."""

    @property
    def is_linked(self) -> bool:
        """Whether there is a link, over which it may still answer."""
        return self._link is not None

    @property
    def alive(self) -> bool:
        """Whether the shard can take requests."""
        return self._has_said_hello and self._away is None

    @property
    def is_leaving(self) -> bool:
        """Whether the shard is about to restart, or restarts."""
        return self._away is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight or waits."""
        return not self._under_way and not self._waiting

    def stopped(self) -> None:
        """Mark the shard as ended during shutdown."""
        self.has_stopped = True

    # For what is relayed -----------------------------------------------------------------------------------------

    def begin(self, relayed: ShardRelay) -> int:
        """Register a request; return its number, or 0 without a shard: it is failed then, or resumed later."""
        if self._away:
            self._waiting.append(relayed)
            return 0
        if not self._has_said_hello:
            relayed.fail(shutting_down() if self.has_stopped else scheduler_unavailable())
            return 0
        number = next(self._numbers) & _NUMBERS
        while not number or number in self._under_way:
            number = next(self._numbers) & _NUMBERS
        self._under_way[number] = relayed
        return number

    def send(self, kind: FrameType, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame; after a loss of the shard it is discarded, as its request was or will be failed.

        `number`: its call or exchange, 0: none; `payload`: its content.
        """
        if self._link:
            self._link.send(kind, number, payload)

    def over(self, number: int) -> None:
        """Remove the call or exchange of this number."""
        self._under_way.pop(number, None)

    def forget(self, relayed: ShardRelay) -> None:
        """Remove a waiting request whose client has left."""
        if relayed in self._waiting:
            self._waiting.remove(relayed)

    # Questions ---------------------------------------------------------------------------------------------------

    async def ask(self, call: ControlCall) -> Outcome:
        """Return the shard's response to a call; a failure counts as a response."""
        asked = _Asked(self)
        inline = call.message if len(call.message) <= MAX_INLINE_BYTES else None
        opening = frames.call(call.method, "", call.metadata, call.remaining_s, inline)
        try:
            answer = await asked.of(FrameType.CALL, opening, call.message if inline is None else None)
        except RequestFailed as failure:
            return failure
        return answer.body

    async def ask_over_http(self, scope: dict[str, Any], body: bytes, *, is_page: bool = False) -> HttpAnswer:
        """Return the shard's response to an HTTP request. Raises RequestFailed if the shard is lost.

        `scope`: ASGI scope of the request; `body`: its body. `is_page`: the request is for its metrics.
        """
        asked = _Asked(self)
        inline = body if len(body) <= MAX_INLINE_BYTES else None
        return await asked.of(FrameType.ASK, frames.encode((scope, inline, is_page)), body if inline is None else None)

    async def has(self, model: str) -> bool:
        """Query whether it has a model of this name after all."""
        try:
            return (await _Asked(self).of(FrameType.FIND, model.encode("utf-8", "surrogatepass"), None)).body == b"\x01"
        except RequestFailed:
            return False

    # For the frontend -----------------------------------------------------------------------------------------------

    async def keep_linked(self) -> None:
        """Run forever: connect to the shard, and reconnect."""
        wait_s, longest_s = _CONNECT_EVERY_S
        logged_error = ""
        while True:
            self._lost.clear()
            self._connecting = asyncio.ensure_future(self._address.connect(self._linked, self._refused))
            try:
                await self._connecting
            except asyncio.CancelledError:
                this = asyncio.current_task()
                if this is None or this.cancelling():
                    raise
                continue  # it has moved meanwhile
            except OSError as error:
                if self._address.is_elsewhere and str(error) != logged_error and wait_s == longest_s:
                    logged_error = str(error)
                    log.warning(
                        "shard unreachable",
                        extra={"shard": self.number, "address": str(self._address), "error": logged_error},
                    )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)
                continue
            began_s = asyncio.get_running_loop().time()
            await self._lost.wait()
            if asyncio.get_running_loop().time() - began_s > longest_s:
                wait_s, logged_error = _CONNECT_EVERY_S[0], ""
            else:  # it closes the link at once, and may do so again
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)

    def move(self, address: ShardAddress) -> None:
        """Change its address; requests in flight at the old one fail."""
        if str(address) == str(self._address):
            return
        log.info("shard moved", extra={"shard": self.number, "address": str(address)})
        self._address = address
        if self._link:
            self._link.abort()
        elif self._connecting:
            self._connecting.cancel()  # no server may answer there for seconds

    def said_hello(self) -> None:
        """Accept requests from now on."""
        self._has_said_hello = True
        self._end_wait()

    def is_away(self, for_s: float) -> None:
        """Hold requests for a shard that restarts, for `for_s` seconds."""
        self._end_wait()
        self._away = asyncio.get_running_loop().call_later(for_s, self._end_wait)

    def close(self) -> None:
        """Close the link, and fail waiting requests."""
        if self._link:
            self._link.close()
        self._end_wait()

    def _end_wait(self) -> None:
        if self._away:
            self._away.cancel()
        self._away = None
        waiting, self._waiting = self._waiting, []
        for relayed in waiting:
            relayed.again()

    # For its link ------------------------------------------------------------------------------------------------

    def _linked(self, link: Link) -> "ShardConnection":
        self._link, self._is_refused = link, False
        return self

    def _refused(self) -> None:
        if not self._is_refused:
            log.error(
                "shard refused the connection: is shard_links.secret_file the same there?",
                extra={"shard": self.number, "address": str(self._address)},
            )
        self._is_refused = True
        self._lost.set()

    def take(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame of the shard.

        `kind`: type of the frame; `number`: its call or exchange, 0: none; `payload`: its content.
        """
        if relayed := self._under_way.get(number):
            relayed.take(kind, payload)
        elif not number:
            self._frontend.shard_said(self, kind, payload)

    def lost(self) -> None:
        """Handle the loss of the shard."""
        self._link, self._has_said_hello = None, False
        relayed, self._under_way = list(self._under_way.values()), {}
        for one in relayed:
            with faults.contained("ending a call whose shard is lost"):  # the others still hear of it
                one.fail(shutting_down() if self.has_stopped else shard_lost())
        self._frontend.shard_lost(self)
        self._lost.set()


class _Asked:
    """One question, whose whole answer is awaited: a body, and over HTTP its head."""

    def __init__(self, shard: ShardConnection) -> None:
        self._shard = shard
        self._number = 0
        self._rest: bytes | None = None
        """Rest of the request, sent when the shard can take it."""
        self._status, self._headers = 200, list[tuple[bytes, bytes]]()
        self._parts: list[bytes] = []
        self._answered: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        self._kind, self._opening = FrameType.CALL, b""

    async def of(self, kind: FrameType, opening: bytes, rest: bytes | None) -> HttpAnswer:
        """Send a request; return the answer. `rest`: bytes after the opening. Raises RequestFailed."""
        self._kind, self._opening, self._rest = kind, opening, rest
        self.again()
        try:
            return await self._answered
        except asyncio.CancelledError:
            self._shard.forget(self)
            if self._number:
                self._shard.over(self._number)
                self._shard.send(FrameType.GONE, self._number)
            raise

    def again(self) -> None:
        """Begin."""
        self._number = self._shard.begin(self)
        if not self._number:
            return
        self._shard.send(self._kind, self._number, self._opening)
        if self._rest is not None and self._kind == FrameType.CALL:
            self._shard.send(FrameType.MESSAGE, self._number, self._rest)

    def take(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the shard."""
        if kind == FrameType.START:
            start = frames.start_of(payload)
            self._status, self._headers = start.status, start.headers
        elif kind == FrameType.PART:
            self._parts.append(payload)
            self._shard.send(FrameType.TAKEN, self._number)
        elif kind in (FrameType.ANSWER, FrameType.LAST):
            self._end(HttpAnswer(self._status, self._headers, b"".join((*self._parts, payload))))
        elif kind == FrameType.END:
            self.fail(failure_in(payload))
        elif kind == FrameType.GONE:
            self.fail(RequestFailed(_UNAVAILABLE, "the shard broke the answer off", reason=refusal.INTERNAL_ERROR))
        elif kind == FrameType.WANT and self._rest is not None and self._kind == FrameType.ASK:
            self._shard.send(FrameType.BODY_END, self._number, self._rest)
            self._rest = None

    def fail(self, failure: RequestFailed) -> None:
        """It is not answered."""
        self._shard.over(self._number)
        if not self._answered.done():
            self._answered.set_exception(failure)

    def _end(self, answer: HttpAnswer) -> None:
        self._shard.over(self._number)
        if not self._answered.done():
            self._answered.set_result(answer)
