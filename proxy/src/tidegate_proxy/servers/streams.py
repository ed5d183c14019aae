"""ModelStreamInfer: schedules a stream's requests one by one, and forwards the others to a Triton, as a stream.

Responses leave in the order of the requests, as from Triton, whatever their source: a request to a model that is
scheduled has one response, scheduled or not. Those of other models (decoupled, sequences) leave as they arrive: any
number of them may belong to one request.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tidegate.api import NEVER_NS
from tidegate_proxy.base import refusal
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import SHUTTING_DOWN, Outcome, RequestFailed, own_fault
from tidegate_proxy.messages import guards
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest, PendingRequest, end_of_call_ns
from tidegate_proxy.messages.wire import encode_varint, first_string
from tidegate_proxy.rollout.versions import VersionRollouts
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.slot_streams import SlotStreams
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.passthrough import Routing
from tidegate_proxy.service.stream_passthrough import BypassedStreamRequest, StreamRelay, stream_answers
from tidegate_proxy.transport import CallFailed, Metadata, RpcCall
from tidegate_proxy.tritons.backend import Backend

MAX_UNDER_WAY: Final = 1000
"""Pending requests and responses of one stream from which on no more is read, from the client or from a Triton."""
_SEVERAL_RESPONSES: Final = "expected a single response, got "
"""Triton's words for a ModelInfer whose model has sent more than one."""
_LATE: Final = frozenset({refusal.DEADLINE_UNREACHABLE, refusal.DEADLINE_EXPIRED, "early_drop", "timeout"})
"""Why requests are given up that have too little time; the last two are words of policies."""
_EMPTY_BYTES: Final = 256
"""Answers of more bytes have outputs."""
_ERROR_MESSAGE_TAG: Final = b"\x0a"
"""ModelStreamInferResponse.error_message, which comes first."""
_INFER_RESPONSE_TAG: Final = b"\x12"
"""ModelStreamInferResponse.infer_response"""


def _final() -> bytes:
    response = service_pb2.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    serialized: bytes = response.SerializeToString()
    return serialized


_FINAL: Final = _final()
"""Appended to a serialized response, it adds the parameter with which Triton marks the last one of a request."""


@dataclass(eq=False, repr=False)
class InferStream:
    """Inference stream of one client."""

    _call: RpcCall
    _owner: str
    _inference: Inference
    driver: Driver
    _routing: Routing
    _spawn: Callable[[RpcCall, Coroutine[Any, Any, None]], object]
    _versions: VersionRollouts

    def __post_init__(self) -> None:
        self._due: deque[_StreamClient | BypassedStreamRequest] = deque()
        """Whose answers are due, in their order."""
        self._outbox: deque[bytes] = deque()
        self._sending = False
        self._reading = False
        self._client_done = False
        """The client sends no more."""
        self._loading: asyncio.Task[Any] | None = None
        """Waits for the model of a request to be loaded."""
        self._over = False
        """Nothing is read, scheduled or forwarded any more."""
        self._error: RequestFailed | None = None
        """With what the stream ends, once what was sent before is on its way."""
        self._end: RequestFailed | None = None
        """With what it ends when all is answered; None: well."""
        self._relays: dict[tuple[Backend, str], StreamRelay] = {}
        """The relays, by Triton and model, or number of a relay for a single request."""
        self._alone = 0
        """Relays for single requests, so far."""
        self._strict = guards.asks_for_status(self._call.metadata)
        self._slots = SlotStreams(
            self._call,
            self.driver,
            self._routing,
            self._spawn,
            self._pass_back_of_slot,
            self._refuse,
            self.settled,
            lambda: len(self._outbox) < MAX_UNDER_WAY,
        )
        """The requests to models with slots."""

    def begin(self) -> None:
        """Start reading requests."""
        self._call.add_disconnect_callback(self._leave)
        self._read()

    def drain(self) -> None:
        """Accept no more requests; end when those in flight are answered."""
        if self._client_done:
            return
        self._client_done = True
        self._end = RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, reason=refusal.SHUTTING_DOWN)
        for relay in self._relays.values():
            relay.put(None)
        self._send()

    # Requests ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._reading or self._client_done or self._over or self._is_full():
            return
        self._reading = True
        self._call.receive(self._received)

    def _is_full(self) -> bool:
        waiting = (
            len(self._due)
            + len(self._outbox)
            + len(self._slots)
            + sum(relay.waiting for relay in self._relays.values())
        )
        return waiting >= MAX_UNDER_WAY

    def _received(self, message: bytes | None) -> None:
        try:
            self._take(message)
        except Exception as error:
            self._break(error)

    def _take(self, message: bytes | None) -> None:
        arrival_ns = time.monotonic_ns()
        self._reading = False
        if message is None:
            self._end_of_requests()
            return
        if self._versions.of_model:
            message = self._versions.route_in_stream(message)
        if model := self._inference.model_to_load(message):
            self._reading = True
            self._spawn(self._call, self._take_loaded(message, model, arrival_ns))
        elif self._inference.is_left_to_streams(message):
            self._forward(message)
        elif self._inference.takes_long(message):
            self._reading = True
            self._spawn(self._call, self._take_aside(message, arrival_ns))
        else:
            self._schedule(message, self._inference.open(message, self._call.metadata), arrival_ns)

    async def _take_loaded(self, message: bytes, model: str, arrival_ns: int) -> None:
        """Have a request taken once its model is loaded; what follows it is read afterwards."""
        if self._over:
            return
        self._loading = asyncio.current_task()
        failure: RequestFailed | None = None
        try:
            await self._inference.load(model, self._call.remaining_s(), self._owner)
        except RequestFailed as failed:
            failure = failed
        except asyncio.CancelledError:
            if not self._over:
                raise
            return
        finally:
            self._loading = None
        if failure:
            self._reading = False
            self._refuse_in_turn(message, PassedThrough.of(message), failure)
        else:
            await self._take_aside(message, arrival_ns)

    def _end_of_requests(self) -> None:
        """The client sends no more; the stream ends when all is answered."""
        self._client_done = True
        for relay in self._relays.values():
            relay.put(None)
        self._send()

    async def _take_aside(self, message: bytes, arrival_ns: int) -> None:
        """Have a large request opened in a thread of its own; what follows it is read afterwards."""
        envelope = await asyncio.to_thread(self._inference.open, message, self._call.metadata)
        self._reading = False
        self._schedule(message, envelope, arrival_ns)

    def _schedule(self, message: bytes, envelope: InferenceRequest | None, arrival_ns: int) -> None:
        """Have a request scheduled, or sent on unchanged if it cannot be."""
        if envelope is None:
            self._forward(message)
            return
        if self._over or self._client_done:
            return
        remaining_s = self._call.remaining_s()
        client = _StreamClient(envelope, self, self._call, self._owner, end_of_call_ns(arrival_ns, remaining_s))
        self._due.append(client)
        self._inference.handle(client, arrival_ns, remaining_s)
        if self._over:  # it ended before it was known whose request this is
            self.driver.leave(client)
        self._read()

    def pass_again(self, client: "_StreamClient") -> bool:
        """Retry a request in a stream to its Triton, which could not answer it otherwise; return whether that is done.

        Its model does not give one response per request, despite its config.
        """
        model = client.envelope.model
        if self._over or client not in self._due or not self._inference.is_served(model):
            return False
        self._inference.leave_to_streams(model)
        self._forward(client.envelope.message, client)
        return True

    def _forward(self, message: bytes, client: "_StreamClient | None" = None) -> None:
        """Have a request passed on. `client`: in whose place, where it was scheduled first."""
        request = PassedThrough.of(message)
        if request.is_no_message:
            # Triton takes it for the end of the requests, and may die of it while it answers others (seen with 2.51).
            self._end_of_requests()
            return
        if client is None and (named_first := request.with_name_first(message)) is not None:
            self._take(named_first)
            return
        try:
            has_slots = client is None and self._inference.has_slots(message)
            if has_slots and (envelope := self._inference.open_for_slot(message, request, self._call.metadata)):
                self._routing.check_inference(message, request)
                self._wait_for_slot(envelope, replace(request, header=None))
                return
            if client is None and (rejected := self._routing.why_over_limit(self._owner)):
                raise rejected
            backend = self._routing.route_inference(message, request)
        except RequestFailed as failure:
            self._refuse_in_turn(message, request, failure, client)
            return
        model = first_string(message)
        # A stream per model: Triton 2.51 may abort on one that mixes decoupled models with others.
        key = (backend, model if self._inference.is_served(model) else "")
        if self._over or (self._client_done and client is None):
            return
        # One per request where a model sends its responses itself: Triton 2.51 dies of a stream that has two of them.
        # One per stream of a model with slots, too: so its first response is known to be its own.
        has_many = has_slots and not request.sequence and not self._inference.answers_once(model)
        is_alone = client is not None or has_many or self._inference.is_left_to_streams(message)
        if is_alone:
            self._alone += 1
            key = (backend, f"{model} {self._alone}")
        relay = self._relays.get(key)
        is_new = relay is None
        if relay is None:
            relay = self._relays[key] = StreamRelay(self._taken, backend, model, is_alone=is_alone)
        request, passing = replace(request, header=None), None
        if self._inference.is_scheduled(model) or self._inference.answers_once(model):
            passing = BypassedStreamRequest(request, self.settled)
            self._put_in_order(passing, client)
        relay.put((message, request, passing))
        if is_alone:
            relay.put(None)
        if is_new:
            self._spawn(self._call, self._run_relay(key, relay))
        self._read()

    def _wait_for_slot(self, envelope: InferenceRequest, request: PassedThrough) -> None:
        """Have a request wait for a slot; one of a model with one response each is answered in order."""
        if self._over or self._client_done:
            return
        passing = None
        if self._inference.answers_once(request.model):
            passing = BypassedStreamRequest(request, self.settled)
            self._due.append(passing)
        self._slots.begin(self._inference, envelope, request, time.monotonic_ns(), passing)
        if self._over:  # it ended before it was known whose request this is
            self._slots.leave()
        self._read()

    def _refuse_in_turn(
        self, message: bytes, request: PassedThrough, failure: RequestFailed, client: "_StreamClient | None" = None
    ) -> None:
        """Answer a request with a failure, in its turn, behind those that wait for their answers."""
        refused = BypassedStreamRequest(replace(request, header=None), self.settled)
        self._put_in_order(refused, client)
        refused.resolve(failure)
        self._call.release(len(message))
        self._read()

    def _put_in_order(self, passing: BypassedStreamRequest, client: "_StreamClient | None") -> None:
        if client:
            self._due[self._due.index(client)] = passing
        else:
            self._due.append(passing)

    def _taken(self, size: int) -> None:
        """A request is on its way to a Triton."""
        self._call.release(size)
        self._read()

    async def _run_relay(self, key: tuple[Backend, str], relay: StreamRelay) -> None:
        error = None
        try:
            relay.enter()
            call = self._call
            answers = stream_answers(self._routing, key[0], call.method, relay.messages(), call.metadata)
            async with aclosing(answers):
                async for answer in answers:
                    if not self._pass_back(relay, answer):
                        break
                    while len(self._outbox) >= MAX_UNDER_WAY:
                        await relay.wait_for_room(lambda: len(self._outbox) < MAX_UNDER_WAY)
            if not self._over:
                await self._refuse_unanswered(key[0], relay)
        except CallFailed as failed:
            error = await self._routing.failure(key[0], failed.code, failed.details, self._call.owner)
        except RequestFailed as failure:
            error = failure
        except asyncio.CancelledError:
            if not self._over:
                raise
        finally:
            relay.close()
        del self._relays[key]
        if relay.is_alone and not error:
            self.settled()
            return
        self._error = self._error or error
        self._client_done = True
        if error:
            self._abandon()
        for other in self._relays.values():
            other.put(None)
        self.settled()

    def _pass_back(self, relay: StreamRelay, answer: bytes) -> bool:
        """Give a Triton's answer to the client. False where it ends the stream."""
        is_error = answer.startswith(_ERROR_MESSAGE_TAG)
        passing = relay.answered(self._routing, ok=not is_error)
        failed = guards.failed_answer(answer) if is_error and self._strict else None
        if passing:
            passing.resolve(RequestFailed(*failed) if failed else answer)
        elif failed:
            self._error = self._error or RequestFailed(*failed)
            self._abandon()
            self._send()
            return False
        else:
            self._outbox.append(answer)
            self._send()
        return True

    def _pass_back_of_slot(self, passing: BypassedStreamRequest | None, answer: bytes) -> bool:
        """Give a response of a slot to the client. False where the client's stream has ended, or ends with it."""
        if self._over:
            return False
        failed = guards.failed_answer(answer) if self._strict and answer.startswith(_ERROR_MESSAGE_TAG) else None
        if failed:
            self._refuse(None, RequestFailed(*failed))
            return False
        if passing:
            passing.resolve(answer)
        else:
            self._outbox.append(answer)
            self._send()
        return True

    def _refuse(self, request: PassedThrough | None, failure: RequestFailed) -> None:
        """Tell the client of a failed request whose responses leave as they come; None: its stream ends with it."""
        if self._over:
            return
        if request is None or (failure.queued and self._strict):
            self._error = self._error or failure
            self._abandon()
        else:
            self._outbox.append(_refused(request, failure))
        self._send()

    async def _refuse_unanswered(self, backend: Backend, relay: StreamRelay) -> None:
        """A Triton has ended its stream, and well: what it has not answered by now it never will."""
        ends_well = self._client_done or relay.is_alone
        if ends_well and not relay.unanswered and not relay.is_cut_short:
            self._routing.did_well(backend, self._call.owner)
            return
        words = f"Triton at {backend.address} ended the stream early"
        owner = None if relay.is_alone else self._call.owner  # a model may give no response, and its Triton be well
        failure = await self._routing.failure(backend, grpc.StatusCode.UNAVAILABLE, words, owner)
        if self._over:
            return
        if self._strict or relay.is_cut_short or not ends_well:  # which may have sent more than was read
            self._end = self._end or failure
        for request, passing in relay.unanswered:
            if passing:
                passing.resolve(failure)
            elif not self._strict:
                self._outbox.append(_refused(request, failure))

    # Answers -----------------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """Send the next responses, as a request has its outcome."""
        try:
            self._answer()
        except Exception as error:
            self._break(error)

    def _answer(self) -> None:
        """Send the outcomes that are there, in the order of their requests."""
        while not self._error and self._due and (outcome := self._due[0].outcome) is not None:
            client = self._due.popleft()
            asked = client.request if isinstance(client, BypassedStreamRequest) else client.envelope
            if isinstance(outcome, RequestFailed) and outcome.queued and self._strict:
                self._error = outcome
            elif isinstance(outcome, RequestFailed):
                self._outbox.append(_refused(asked, outcome))
            else:
                self._outbox.append(outcome if isinstance(client, BypassedStreamRequest) else _wrapped(outcome))
            if isinstance(client, _StreamClient):
                self._call.release(len(client.envelope.message))
        if self._error:
            self._abandon()
        self._send()
        self._read()

    def _sent(self, _event: object) -> None:
        try:
            self._go_on()
        except Exception as error:
            self._break(error)

    def _go_on(self) -> None:
        self._sending = False
        for relay in self._relays.values():
            relay.make_room()
        self._slots.make_room()
        self._send()
        self._read()

    def _send(self) -> None:
        """Send the next message, or end the stream when there will be none."""
        if self._sending:
            return
        if self._outbox:
            self._sending = True
            self._call.send(self._outbox.popleft(), self._sent)
        elif self._error:
            self._call.end(self._error.code, self._error.details, self._error.grpc_reason)
        elif self._client_done and not self._due and not self._relays and not self._slots:
            self._call.end(*(self._end.code, self._end.details, self._end.grpc_reason) if self._end else ())

    def _break(self, error: Exception) -> None:
        """A fault of Tidegate's own ends the stream."""
        faults.report("a stream", error)
        self._error = self._error or own_fault()
        self._outbox.clear()
        self._abandon()
        self._call.end(self._error.code, self._error.details, self._error.grpc_reason)

    def _leave(self) -> None:
        """The client is gone."""
        self._client_done = True
        self._outbox.clear()
        self._abandon()

    def _abandon(self) -> None:
        """Give up unanswered requests: no client waits for them."""
        self._over = True
        due, self._due = self._due, deque()
        for client in due:
            if isinstance(client, _StreamClient):
                self.driver.leave(client)
        for relay in list(self._relays.values()):
            relay.end()
        self._slots.leave()
        if self._loading:
            self._loading.cancel()


class _StreamClient(PendingRequest):
    """One request of a stream."""

    __slots__ = ("_call", "_end_ns", "_stream", "outcome")

    def __init__(self, envelope: InferenceRequest, stream: InferStream, call: RpcCall, owner: str, end_ns: int) -> None:
        """`end_ns`: when the stream ends by its own deadline."""
        super().__init__(envelope, owner)
        self.outcome: Outcome | None = None
        self._end_ns = end_ns
        self._stream = stream
        self._call = call

    @property
    def metadata(self) -> Metadata:
        return self._call.metadata

    def resolve(self, outcome: Outcome) -> None:
        if self.until_ns == self._end_ns < NEVER_NS and _is_late(outcome):
            return  # the stream itself ends by then, and says so, as at Triton
        if _is_for_streams(outcome) and self._stream.pass_again(self):
            return
        self.outcome = outcome
        self._stream.settled()


def _is_for_streams(outcome: Outcome) -> bool:
    """Whether a model has sent no response, or more than one: Triton gives the first one in streams only."""
    if isinstance(outcome, RequestFailed):
        return outcome.details.startswith(_SEVERAL_RESPONSES)
    return len(outcome) < _EMPTY_BYTES and not service_pb2.ModelInferResponse.FromString(outcome).outputs


def _is_late(outcome: Outcome) -> bool:
    """Whether a request was given up as it cannot be answered on time, not as too many wait."""
    return isinstance(outcome, RequestFailed) and outcome.reason in _LATE


def _refused(asked: InferenceRequest | PassedThrough, failure: RequestFailed) -> bytes:
    """A serialized ModelStreamInferResponse: why a request is not answered."""
    failed = service_pb2.ModelStreamInferResponse(error_message=failure.details)
    failed.infer_response.id = asked.id
    if failure.queued:
        failed.infer_response.model_name = asked.model
        failed.infer_response.parameters["triton_final_response"].bool_param = True
    serialized: bytes = failed.SerializeToString()
    return serialized


def _wrapped(answer: bytes) -> bytes:
    """A serialized ModelStreamInferResponse of a serialized ModelInferResponse."""
    return b"".join((_INFER_RESPONSE_TAG, encode_varint(len(answer) + len(_FINAL)), answer, _FINAL))
