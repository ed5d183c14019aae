"""Bypassed inference: requests that go to a Triton without scheduling, and their responses.

A Triton is chosen by its requests in flight of the model, weighted by how fast it is; sequences keep their Triton.
"""

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.base import refusal, reserved_names
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import SHUTTING_DOWN, Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.apis import Api, Protocol
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages import guards
from tidegate_proxy.messages.forwarded_metadata import forwarded
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import NotSchedulable, PendingRequest, open_envelope
from tidegate_proxy.messages.wire import first_string
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.driver import Driver, refuse_stray
from tidegate_proxy.scheduling.slots import SlotWaiter
from tidegate_proxy.service.open_sequences import OpenSequences
from tidegate_proxy.transport import CallFailed, Metadata, PendingCall
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, INFER_METHOD, Backend, is_restricted, is_shutdown
from tidegate_proxy.tritons.catalog import CurrentCatalog

WINDOW_SAMPLES: Final = 32
"""Durations of which the shortest counts: it has the least waiting in it, whatever the load."""
MIN_SAMPLES: Final = 8
"""Durations of a model at a Triton from which on they are compared with those at others."""
MIN_RATIO: Final = 1.5
"""Ratio of two durations below which Tritons count as equally fast: requests differ, and clocks jitter."""


class _ShortestDuration:
    """Shortest duration of the present and the previous window."""

    __slots__ = ("before_ns", "now_ns", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.now_ns = self.before_ns = 0

    def add(self, duration_ns: int) -> None:
        if self.samples and self.samples % WINDOW_SAMPLES == 0:
            self.before_ns, self.now_ns = self.now_ns, duration_ns
        self.samples += 1
        self.now_ns = min(self.now_ns, duration_ns) if self.now_ns else duration_ns

    @property
    def shortest_ns(self) -> int:
        return min(self.now_ns, self.before_ns) if self.before_ns else self.now_ns


class TritonSpeeds:
    """Shortest recent duration of each model's bypassed inferences, by Triton."""

    def __init__(self) -> None:
        self._of_model: dict[str, dict[Hashable, _ShortestDuration]] = defaultdict(dict)

    def answered(self, triton: Hashable, model: str, duration_ns: int) -> None:
        """Record that a Triton answered an inference of a model, one that it has, `duration_ns` after it was sent."""
        of_model = self._of_model[model]
        if triton not in of_model:
            of_model[triton] = _ShortestDuration()
        of_model[triton].add(duration_ns)

    def slowdowns(self, model: str) -> dict[Hashable, float]:
        """Return how many times as long Tritons take for a model as the fastest one; without those about as fast."""
        of_model = self._of_model.get(model)
        if not of_model or len(of_model) < 2:
            return {}
        known = {key: each.shortest_ns for key, each in of_model.items() if each.samples >= MIN_SAMPLES}
        fastest_ns = max(1, min(known.values(), default=1))
        return {key: each / fastest_ns for key, each in known.items() if each >= MIN_RATIO * fastest_ns}


_SEQUENCE_ID = re.compile(rb'"sequence_id"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\d+))')
MAX_NAMED_MODELS = 5
"""Number of models that a sentence names."""


_SEQUENCE_START = re.compile(rb'"sequence_start"\s*:\s*true')
_SEQUENCE_END = re.compile(rb'"sequence_end"\s*:\s*true')


class SequencePosition(NamedTuple):
    """Sequence of a request over HTTP, and its place there."""

    id: str = ""
    """Id of the sequence, "" for none."""
    starts: bool = False
    ends: bool = False


def sequence_in_json(body: bytes) -> SequencePosition:
    """Return the sequence of an HTTP inference from the beginning of its body.

    A quotation mark within a JSON string is escaped, so the key cannot be confused. Whether the rest is valid is left
    to Triton.
    """
    found = _SEQUENCE_ID.search(body)
    if found is None:
        return NO_SEQUENCE
    text, number = found.groups()
    if text is not None:
        sequence = str(text.decode(errors="replace"))
    else:
        sequence = str(int(number) or "") if len(number) <= 20 else ""
    if not sequence:
        return NO_SEQUENCE
    return SequencePosition(sequence, bool(_SEQUENCE_START.search(body)), bool(_SEQUENCE_END.search(body)))


NO_SEQUENCE: Final = SequencePosition()
"""Position of a request that belongs to no sequence."""


class Routing:
    """Router that chooses a Triton for bypassed requests and other calls. Call only from the event loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        directory: CurrentCatalog,
        driver: Driver,
        observability: Observability,
        gate: AccessControl,
        in_force: SettingsHolder,
        sequences: OpenSequences | None = None,
    ) -> None:
        """Create the router. `sequences`: those that have begun; None: none."""
        self._backends = backends
        self._sequences = OpenSequences() if sequences is None else sequences
        self._directory = directory
        self._driver = driver
        self._observability = observability
        self._gate = gate
        self._in_force = in_force
        self._passed = Counter[str]()
        """Inferences that were sent on, by model."""
        self._speeds = TritonSpeeds()

    def route(self, model: str, protocol: Protocol = "grpc", api: Api | None = None) -> Backend:
        """Return the first live Triton with the model; else the first live one; else the first.

        Tritons that do not restrict the API themselves are preferred among those with the model, and those with unknown
        models to those without it.
        """
        hosts = self._directory.catalog.hosts.get(model, ())
        unseen = [backend for backend in self._backends if not backend.apis.lists_models]
        candidates = (*_open_first(hosts, protocol, api), *unseen, *_open_first(self._backends, protocol, api))
        return next((backend for backend in candidates if backend.alive), self._backends[0])

    def route_inference(self, message: bytes, request: PassedThrough) -> Backend:
        """Return a Triton for an unscheduled inference: sequences keep theirs, others get the one with the least work.

        `request`: facts about the message. Raises RequestFailed, see `check_inference`.
        """
        self.check_inference(message, request)
        model = first_string(message)
        backend = self._one_of_several(model, request.sequence, request.header, "grpc")
        if request.ends_sequence:
            self._sequences.end(model, request.sequence)
        return backend

    def check_inference(self, message: bytes, request: PassedThrough) -> None:
        """Raise RequestFailed for protected shared memory, and for invalid messages.

        `request`: facts about the message.
        """
        model = first_string(message)
        if model in self._directory.catalog.split:
            words = f"model '{model}' is split over several Tritons, and this request cannot go through them: "
            if self._directory.catalog.split[model].config.HasField("ensemble_scheduling"):
                words = f"graph '{model}' is run by Tidegate, and this request cannot be scheduled: "
            why = self._why_not_scheduled(model, message)
            raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words + why, queued=False)
        if request.refusal:
            raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, request.refusal, queued=False)
        for region in request.regions:
            if words := reserved_names.why_not_used(region, refuses=self._in_force.settings.refuses_shared_memory):
                raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words, queued=False)
        inputs = request.header.inputs if request.header else ()
        if words := guards.shape_problem((tensor.name, tensor.shape) for tensor in inputs):
            raise RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words, queued=False)

    def why_over_limit(self, owner: str) -> RequestFailed | None:
        """Count an inference that is not scheduled with its client's tenant; return why it is rejected, or None."""
        return self._gate.why_over_limit(owner)

    def looks_inside(self, model: str) -> bool:
        """Return whether the contents of an unscheduled inference of this model matter for routing or its slot."""
        catalog = self._directory.catalog
        if len(catalog.hosts.get(model, ())) > 1:
            return model in catalog.sequential or model in catalog.variants
        return model in catalog.slots and model in catalog.sequential

    def route_http_inference(
        self, model: str, sequence: SequencePosition, header: service_pb2.ModelInferRequest | None
    ) -> Backend:
        """Choose a Triton like `route_inference`, for a request over HTTP: by its sequence and its tensors."""
        backend = self._one_of_several(model, sequence.id, header, "http")
        if sequence.ends:
            self._sequences.end(model, sequence.id)
        return backend

    def _one_of_several(
        self, model: str, sequence: str, header: service_pb2.ModelInferRequest | None, protocol: Protocol
    ) -> Backend:
        living = [backend for backend in self._directory.catalog.takers(model, header) if backend.alive]
        if not living:
            living = [backend for backend in self._backends if backend.alive and not backend.apis.lists_models]
        if not living:
            return self.route(model)
        living = [backend for backend in living if (protocol, "inference") not in backend.apis.left] or living
        if sequence:
            present = [backend for backend in self._directory.whole.hosts.get(model, ()) if backend.alive]
            return self._sequences.route(time.monotonic(), model, sequence, living, present)
        if len(living) == 1:
            return living[0]
        slowdowns = self._speeds.slowdowns(model)
        first = self._passed[model] % len(living)
        self._passed[model] += 1
        return min(
            living[first:] + living[:first],
            key=lambda backend: (
                (backend.in_flight_by_model.get(model, 0) + 1) * slowdowns.get(backend, 1.0),
                backend.in_flight,
            ),
        )

    def _why_not_scheduled(self, model: str, message: bytes) -> str:
        catalog = self._directory.catalog
        signature = catalog.graphs[model].signature if model in catalog.graphs else catalog.signatures.get(model)
        if signature is None:
            return "a model of its steps is being unloaded"
        try:
            envelope = open_envelope(message, signature)
        except NotSchedulable as error:
            return str(error)
        if model in catalog.graphs and (why := catalog.graphs[model].why_bypassed(envelope.heading)):
            return why
        return "ask again: the model has just changed"

    async def ask(
        self, backend: Backend, method: str, message: bytes, metadata: Metadata, remaining_s: float | None
    ) -> bytes:
        """Send a client's call to one Triton and return the response. Raises RequestFailed.

        `metadata`: that of the client; `remaining_s`: seconds until its deadline, or None.
        """
        try:
            return await backend.ask(method, message, self.forwarded(metadata), remaining_s, for_client=True)
        except CallFailed as error:
            raise await self.failure(backend, error.code, error.details, None) from error

    async def failure(self, backend: Backend, code: grpc.StatusCode, details: str, owner: str | None) -> RequestFailed:
        """Return the client's error for a failed call to a Triton, and mark a lost Triton.

        `owner`: client of an inference, whose failure counts against the Triton; None for any other call, because any
        client can make Triton answer INTERNAL to those, and five of them would eject a healthy Triton.
        """
        if code is grpc.StatusCode.CANCELLED and not backend.alive:  # it was given up, and the call with it
            words = f"Triton at {backend.address} does not answer"
            return RequestFailed(grpc.StatusCode.UNAVAILABLE, words, reason=refusal.BACKEND_UNAVAILABLE)
        if is_restricted(details):  # which speaks neither against the Triton nor of its end
            return RequestFailed(code, details)
        gone = is_shutdown(code, details) and await self._driver.membership.lost(backend, details)
        if owner is not None and not gone:
            self._driver.membership.failed(backend, (owner,), code, details)
        return RequestFailed(code, details)

    def took(self, backend: Backend, model: str, sent_ns: int) -> None:
        """Record that a Triton answered a bypassed inference, sent at this instant."""
        if backend in self._directory.catalog.hosts.get(model, ()):  # clients choose the names of others
            self._speeds.answered(backend, model, time.monotonic_ns() - sent_ns)

    def did_well(self, backend: Backend, owner: str) -> None:
        """Record a Triton's response to a client's bypassed inference."""
        self._driver.outliers.did_well(backend, owner)

    async def unreachable(self, triton: Backend, details: str) -> None:
        """Record an HTTP call that did not reach its Triton; if that is lost, the next call goes to another."""
        await self._driver.membership.lost(triton, details)

    def may_try_again(self, lost: Backend, model: str, tries: int) -> bool:
        """Return whether an inference that failed with its Triton may be retried, and another one has its model.

        Never for models with sequences: their state is lost with the Triton. `tries`: number of tries so far.
        """
        catalog = self._directory.catalog
        others = any(backend.alive for backend in catalog.hosts.get(model, ()))
        return not lost.alive and others and model not in catalog.sequential and tries < self._driver.engine.max_tries

    def passed_through(self, request: PassedThrough, sent_ns: int, *, ok: bool) -> None:
        """Count an answered inference that bypassed scheduling, sent at this instant.

        `ok`: whether it succeeded.
        """
        if request.model in self._directory.catalog.versions:
            self._observability.passed_through(
                request.model,
                request.version,
                rows=request.rows,
                sent_ns=sent_ns,
                ok=ok,
                wanted=request.wanted,
                is_compared=self._is_compared(request.model, request.sequence, starts=request.starts_sequence),
            )

    def passed_through_http(
        self, model: str, version: str, sequence: SequencePosition, *, sent_ns: int, ok: bool
    ) -> None:
        """Count an inference that was forwarded over HTTP. Its rows are unknown: it counts as one.

        Args:
            model: its model.
            version: its version; "": the latest.
            sequence: its sequence.
            sent_ns: instant of sending.
            ok: whether it succeeded.
        """
        is_compared = self._is_compared(model, sequence.id, starts=sequence.starts)
        self._observability.passed_through(model, version, rows=1, sent_ns=sent_ns, ok=ok, is_compared=is_compared)

    def _is_compared(self, model: str, sequence: str, *, starts: bool) -> bool:
        """Whether a canary compares the response: of a sequence that might have had a slot only the first one."""
        return starts or not sequence or model not in self._directory.catalog.slots

    def forwarded(self, metadata: Metadata) -> list[tuple[str, str | bytes]]:
        """Return the part of a client's metadata to forward to a Triton."""
        return forwarded(metadata, self._gate.credential_headers())


def _open_first(backends: Iterable[Backend], protocol: Protocol, api: Api | None) -> list[Backend]:
    return sorted(backends, key=lambda backend: (protocol, api) in backend.apis.left)


class BypassedInference:
    """One bypassed inference in flight. Call only from the event loop."""

    __slots__ = (
        *("_backend", "_call", "_is_over", "_message", "_metadata", "_passages"),
        *("_owner", "_request", "_routing", "_sent_ns", "_then", "_tried_ns", "_tries", "_until_ns"),
    )

    def __init__(
        self,
        passages: "BypassedInferences",
        routing: Routing,
        message: bytes,
        metadata: Metadata,
        remaining_s: float | None,
        owner: str,
        then: Callable[[Outcome], None],
        request: PassedThrough,
    ) -> None:
        """Create the bypassed inference.

        `metadata`: forwarded to the Triton; `remaining_s`: seconds until the client's deadline, if any.

        `owner`: client of the request; `request`: facts about it. `then` is called once with the outcome, unless it is
        cancelled.
        """
        self._passages = passages
        self._routing = routing
        self._message = message
        self._metadata = metadata
        self._sent_ns = self._tried_ns = time.monotonic_ns()
        self._until_ns = None if remaining_s is None else self._sent_ns + round(remaining_s * 1e9)
        self._owner = owner
        self._then = then
        self._request = request
        self._backend: Backend | None = None
        self._call: PendingCall | None = None
        self._tries = 0
        self._is_over = False

    def begin(self) -> None:
        """Send the request, and retry it if `Routing.may_try_again` allows."""
        try:
            backend = self._routing.route_inference(self._message, self._request)
        except RequestFailed as failure:
            self._refuse(failure)
            return
        limit_s = None
        if self._until_ns is not None:
            # A Triton that gets a deadline may die of it: it gets a little more time, if one at all.
            limit_s = max(0.0, (self._until_ns - time.monotonic_ns()) / 1e9) + CANCEL_AFTER_S
        self._backend, self._tried_ns = backend, time.monotonic_ns()
        backend.passes(self._request.model)
        metadata = backend.opened_for_client(INFER_METHOD, self._metadata)
        self._call = backend.channel.unary(INFER_METHOD, self._message, self._over, metadata, limit_s)
        backend.open_calls.add(self._call)

    def cancel(self) -> None:
        """Cancel the request, because no client waits for it any more."""
        self._is_over = True
        self._passages.over(self)
        if self._call:
            self._call.cancel()

    def end(self, outcome: Outcome) -> None:
        """Deliver the outcome. Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        self._passages.over(self)
        self._then(outcome)
        self._routing.passed_through(self._request, self._sent_ns, ok=isinstance(outcome, bytes))

    def _refuse(self, failure: RequestFailed) -> None:
        """Refuse what no Triton may get, or what only Tidegate runs: as at Triton, no execution of the model failed."""
        self._is_over = True
        self._passages.over(self)
        self._then(failure)

    def _over(self, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        """The call to a Triton has ended."""
        try:
            self._judge(answer, code, details)
        except Exception as error:
            self._break(error)

    def _judge(self, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        backend, call = self._backend, self._call
        assert backend
        backend.open_calls.discard(call)
        backend.passed(self._request.model)
        if answer is None:
            if not self._is_over:
                self._passages.spawn(self._recovered(backend, code, details))
            return
        if self._request.header is not None:
            self._routing.did_well(backend, self._owner)
            self._routing.took(backend, self._request.model, self._tried_ns)
        self.end(answer)

    async def _recovered(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        try:
            await self._recover(backend, code, details)
        except Exception as error:
            self._break(error)

    async def _recover(self, backend: Backend, code: grpc.StatusCode, details: str) -> None:
        readable = self._request.header is not None
        failure = await self._routing.failure(backend, code, details, self._owner if readable else None)
        self._tries += 1
        if self._routing.may_try_again(backend, self._request.model, self._tries):
            self.begin()
        else:
            self.end(failure)

    def _break(self, error: Exception) -> None:
        faults.report("an inference that was passed on", error)
        self.end(own_fault())


class BypassedInferences:
    """Bypassed inferences in flight. Use it only in the event loop."""

    def __init__(self, routing: Routing, observability: Observability) -> None:
        self._routing = routing
        self._observability = observability
        self._under_way: set[BypassedInference] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        message: bytes,
        metadata: Metadata,
        remaining_s: float | None,
        owner: str,
        then: Callable[[Outcome], None],
        request: PassedThrough | None = None,
    ) -> BypassedInference:
        """Let a Triton answer a client's unschedulable inference; `then` is called with the outcome.

        `owner`: client of the request; `request`: facts about it, if they are known.
        """
        forwarded, request = self._routing.forwarded(metadata), request or PassedThrough.of(message)
        passage = BypassedInference(self, self._routing, message, forwarded, remaining_s, owner, then, request)
        self._under_way.add(passage)
        passage.begin()
        return passage

    def take_over(self, client: PendingRequest) -> None:
        """Bypass a request that cannot be scheduled any more; one that waits for a slot fails."""
        if isinstance(client, SlotWaiter):
            refuse_stray(client)
            return

        def answered(outcome: Outcome) -> None:
            client.resolve(outcome)
            self._observability.passed_on(client)

        self.begin(client.envelope.message, client.forwarded_metadata, None, client.owner, answered)

    def over(self, passage: BypassedInference) -> None:
        """Remove a bypassed inference that has ended."""
        self._under_way.discard(passage)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that handles a failure."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_all(self) -> None:
        """Fail all that are in flight."""
        for task in self._tasks:
            task.cancel()
        for passage in list(self._under_way):
            passage.end(RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, reason=refusal.SHUTTING_DOWN))


def bypassed_in_words(bypassed: Mapping[tuple[str, str], int]) -> str:
    """Return how many requests bypassed the scheduler, and of which models, the most first; empty: none."""
    of_models = Counter[str]()
    for (model, _), count in bypassed.items():
        of_models[model] += count
    if not of_models:
        return ""
    shown = [f"{model} {count}" for model, count in of_models.most_common(MAX_NAMED_MODELS)]
    more = len(of_models) - len(shown)
    return f"{of_models.total()} ({', '.join(shown)}{f', and {more} more models' if more > 0 else ''})"
