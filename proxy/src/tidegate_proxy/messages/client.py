"""The clients who wait for an answer, whichever way they came in."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tidegate_proxy.base.outcome import Outcome, RequestFailed
from tidegate_proxy.messages.request import Envelope
from tidegate_proxy.transport import Metadata

Sender = tuple[str, str]
"""Whom requests come from, and their model."""


class BatchRefusal:
    """What a batch that was refused is found to have been refused for.

    As long as none of its requests has an answer it may be the Triton that fails, and nobody is to blame.
    """

    def __init__(self, spoiled: Callable[[Sender], None]) -> None:
        """`spoiled`: is told of each sender that is to blame."""
        self._spoiled = spoiled
        self._failed: list[Sender] = []
        self.somebody_answered = False
        """Whether a sender of the batch has had an answer since, to a request of it or to a later one."""

    def sender_answered(self) -> None:
        """One of its senders had an answer to a later request."""
        self.somebody_answered = True

    def answered(self) -> None:
        """One of the requests was answered after all."""
        if self.somebody_answered and not self._failed:
            return
        self.somebody_answered = True
        failed, self._failed = self._failed, []
        for sender in failed:
            self._spoiled(sender)

    def failed(self, sender: Sender) -> None:
        """One of them failed alone, too."""
        if self.somebody_answered:
            self._spoiled(sender)
        else:
            self._failed.append(sender)


class Client(ABC):
    """One who waits for the answer to one request."""

    __slots__ = (
        "arrival_ns", "batch_id", "due_ns", "ended_ns", "envelope", "owner", "refusal", "request_id", "runs_apart",
        "span", "started_ns", "until_ns",
    )  # fmt: skip

    def __init__(self, envelope: Envelope, owner: str = "") -> None:
        self.envelope = envelope
        self.owner = owner
        """Whose request it is (`access.owners`)."""
        self.request_id = -1
        self.arrival_ns = 0
        self.due_ns = 0
        """When the client wants its answer."""
        self.until_ns = 0
        """Until when the client wants an answer, if a late one."""
        self.batch_id: int | None = None
        """The batch whose leg runs for it."""
        self.started_ns = 0
        """When its first leg started; 0: none has."""
        self.ended_ns = 0
        """When its last leg ended; 0: none has."""
        self.refusal: BatchRefusal | None = None
        """The refusal of the batch that it was in; None: it was not refused."""
        self.runs_apart = False
        """Whether not everybody can share its batch, as it or others of its sender spoiled theirs, or may have."""
        self.span: Any = None
        """The OpenTelemetry span of its trace; None: nobody wants to know."""

    @property
    def metadata(self) -> Metadata:
        """What came along with the request: gRPC metadata, or HTTP headers."""
        return ()

    @property
    def forwarded_metadata(self) -> Metadata:
        """What of it may go on to a Triton over gRPC."""
        return self.metadata

    @abstractmethod
    def resolve(self, outcome: Outcome) -> None:
        """Take the answer, or what there is instead. Called once; must not block."""


class AwaitingClient(Client):
    """One that awaits its answer in an event loop."""

    __slots__ = ("_metadata", "answer")

    def __init__(self, envelope: Envelope, metadata: Metadata, owner: str = "") -> None:
        super().__init__(envelope, owner)
        self._metadata = metadata
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def metadata(self) -> Metadata:
        """What came along with the request."""
        return self._metadata

    @property
    def forwarded_metadata(self) -> Metadata:
        """HTTP headers go on where no model can see what a Triton makes of them as metadata."""
        return () if self.envelope.signature.reads_headers else self._metadata

    def resolve(self, outcome: Outcome) -> None:
        """Give the outcome to whoever awaits it."""
        if self.answer.done():
            return
        if isinstance(outcome, RequestFailed):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)
