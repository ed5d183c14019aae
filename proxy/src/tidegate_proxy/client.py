"""Those who wait for an answer, whichever way they came in."""

import asyncio
from abc import ABC, abstractmethod

import grpc

from tidegate_proxy.envelope import Envelope

TIMEOUT_EXPIRED = "Request timeout expired"
"""Triton's own words for a request whose time ran out in the queue."""


class RequestFailed(Exception):
    """What a client gets instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


Outcome = bytes | RequestFailed
"""A serialized ModelInferResponse, or why there is none."""


class Client(ABC):
    """One who waits for the answer to one request."""

    __slots__ = ("batch_id", "ended_ns", "envelope", "request_id")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.request_id = -1
        self.batch_id: int | None = None
        """The batch whose leg runs for it."""
        self.ended_ns = 0
        """When its last leg ended; 0: none has."""

    @abstractmethod
    def resolve(self, outcome: Outcome) -> None:
        """Take the answer, or what there is instead. Called once, from any thread; must not block."""


class AwaitingClient(Client):
    """One that awaits its answer in an event loop."""

    __slots__ = ("_loop", "answer")

    def __init__(self, envelope: Envelope) -> None:
        super().__init__(envelope)
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[bytes] = self._loop.create_future()

    def resolve(self, outcome: Outcome) -> None:
        """Hand the outcome over to the loop."""
        self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, RequestFailed):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)
