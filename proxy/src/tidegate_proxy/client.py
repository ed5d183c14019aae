"""The clients who wait for an answer, whichever way they came in."""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tidegate_proxy.envelope import Envelope
from tidegate_proxy.outcome import Outcome, RequestFailed
from tidegate_proxy.transport import Metadata

if TYPE_CHECKING:
    from tidegate_proxy.spoilers import Refusal


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
        self.refusal: Refusal | None = None
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
