"""Path of an inference request from any server: see `Inference.handle`."""

import asyncio
import time
from collections.abc import Callable, Sequence

from tidegate_proxy.access.tenants import why_rejected
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.apis import Protocol
from tidegate_proxy.messages.forwarded_metadata import fits, keys_of
from tidegate_proxy.messages.model_signature import STRINGS_ASIDE_FROM, ModelSignature, signature_of_any
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import (
    ApplicationTags,
    AsyncPendingRequest,
    HeaderCache,
    InferenceRequest,
    NotSchedulable,
    PendingRequest,
    end_of_call_ns,
    open_known,
    response_deadline,
)
from tidegate_proxy.messages.slot_request import slot_request_of
from tidegate_proxy.messages.wire import first_string
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.slots import SlotWaiter
from tidegate_proxy.service.graph_runs import GraphRuns
from tidegate_proxy.service.on_demand import OnDemandModels
from tidegate_proxy.service.passthrough import BypassedInferences
from tidegate_proxy.service.slot_sequences import SlotSequences
from tidegate_proxy.transport import Metadata
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

Bypass = Callable[[InferenceRequest], bool]
"""Function that decides whether a schedulable request is bypassed; may be called in any thread."""


class Inference:
    """Entry point of inference: parses requests, in any thread, and schedules those that can be."""

    def __init__(
        self,
        directory: CurrentCatalog,
        driver: Driver,
        applications: ApplicationTags,
        bypasses: Sequence[Bypass],
        passages: BypassedInferences,
        observability: Observability,
        judged: Callable[[], Catalog] | None = None,
    ) -> None:
        """Create the entry point. `bypasses`, `judged`: see `replace_bypasses`; `passages`: bypass stages of graphs."""
        self._graphs = GraphRuns(directory, driver, passages, observability, self.open)
        self._rollout = tuple(bypasses), judged
        """One value, since threads read it."""
        self._directory = directory
        self._driver = driver
        self._applications = applications
        self._on_demand: OnDemandModels | None = None
        self._left_to_streams: dict[str, ModelSignature] = {}
        """Models whose requests are not scheduled where they come in streams, as they were when that was found."""
        self._headings: dict[str, HeaderCache] = {}
        """Header caches by model."""
        self._sequences = SlotSequences(driver, directory, self.handle)

    def load_on_demand(self, models: OnDemandModels) -> None:
        """Load models for their first requests from now on."""
        self._on_demand = models

    def is_on_demand(self, model: str) -> bool:
        """Return whether a model is loaded on demand."""
        return self._on_demand is not None and model in self._on_demand.names

    def must_load(self, model: str) -> bool:
        """Return whether a model has to be loaded before a request that has just arrived can be opened: see `load`."""
        return self._on_demand is not None and self._on_demand.must_load(model)

    def model_to_load(self, message: bytes) -> str:
        """Return the model of a request that has just arrived if it has to be loaded first, else ""."""
        if self._on_demand is None or not self._on_demand.names:
            return ""
        model = first_string(message)
        return model if self._on_demand.must_load(model) else ""

    async def load(self, model: str, remaining_s: float | None, owner: str) -> None:
        """Wait until a model is loaded. Raises RequestFailed if that takes too long, or is impossible.

        `remaining_s`: seconds until the client's own deadline, if it has one; `owner`: the client.
        """
        assert self._on_demand, "it says that models have to be loaded"
        await self._on_demand.load(model, remaining_s, owner)

    def leave_to_streams(self, model: str) -> None:
        """Stop scheduling stream requests to a model in its current version: only a Triton's stream can answer them."""
        if signature := self._directory.catalog.signatures.get(model):
            self._left_to_streams[model] = signature

    def is_left_to_streams(self, message: bytes) -> bool:
        """Return whether a request is for a model that only a Triton's stream can answer (`leave_to_streams`)."""
        if not self._left_to_streams:
            return False
        model = first_string(message)
        signature = self._left_to_streams.get(model)
        return signature is not None and signature is self._directory.catalog.signatures.get(model)

    def replace_bypasses(self, bypasses: Sequence[Bypass], judged: Callable[[], Catalog] | None) -> None:
        """Replace the functions that decide whether a schedulable request is bypassed.

        `judged`: returns the catalog of the models that they are asked about, if that is not the current one: then they
        bypass every request.
        """
        self._rollout = tuple(bypasses), judged

    def _schedulable(self) -> Catalog:
        """Return the catalog of the models that `open` returns requests of, unless they are bypassed."""
        _, judged = self._rollout
        return judged() if judged else self._directory.catalog

    def is_served(self, model: str) -> bool:
        """Return whether any Triton has this model, scheduled or not."""
        return model in self._directory.catalog.hosts

    def is_split(self, model: str) -> bool:
        """Return whether no Triton has a model whole: it is split, or a graph of the configuration."""
        return model in self._directory.catalog.split

    def is_scheduled(self, model: str) -> bool:
        """Return whether requests of a model are scheduled where possible: each has one response."""
        return model in self._schedulable().signatures or model in self._directory.catalog.graphs

    def why_not_bypassed(self, model: str, why: str) -> str:
        """Return the error for a request that can be neither scheduled nor bypassed, as only Tidegate runs its graph.

        `why`: why it cannot be scheduled. Returns "" if it can be bypassed.
        """
        graph = self._directory.catalog.graphs.get(model)
        if graph is None or not graph.is_operators:
            return ""
        return f"graph '{model}' is run by Tidegate, and this request cannot be scheduled: {why}"

    def signature_of(self, model: str) -> ModelSignature | None:
        """Return the signature of a model whose next request `open` may return; None: it bypasses."""
        bypasses, judged = self._rollout
        catalog = judged() if judged else self._directory.catalog
        if signature := catalog.signatures.get(model):
            return signature
        graph = catalog.graphs.get(model)
        return graph.signature if graph and not bypasses and self._graphs.expands(graph) else None

    def tensors_of(self, model: str) -> ModelSignature | None:
        """Return the tensors of a model by its config, scheduled or not; None if they are unknown."""
        catalog = self._directory.catalog
        for backend in catalog.hosts.get(model, ()):
            for loaded in catalog.loaded.get(backend, ()):
                if loaded.config.name == model and loaded.config.input:
                    return signature_of_any(loaded.config)
        return None

    def has_slots(self, message: bytes) -> bool:
        """Return whether a serialized ModelInferRequest is for a model with slots."""
        slots = self._directory.catalog.slots
        return bool(slots) and first_string(message) in slots

    def waits_for_slot(self, model: str) -> bool:
        """Return whether requests of a model wait for slots."""
        return model in self._directory.catalog.slots

    def answers_once(self, model: str) -> bool:
        """Return whether each request of a model with slots has one response, as its config says."""
        return model in self._directory.catalog.slots and not self._directory.catalog.slots[model].is_decoupled

    def takes_long(self, message: bytes) -> bool:
        """Return whether to parse a message in a thread."""
        if len(message) < STRINGS_ASIDE_FROM:
            return False
        signature = self.signature_of(first_string(message))
        return signature is not None and signature.has_strings

    def lets_in(self, model: str, protocol: Protocol, metadata: Metadata) -> bool:
        """Return whether a client's requests for a model may be scheduled: access is Tidegate's, or it has the keys."""
        guards = self._directory.catalog.guarded.get(model, ())
        return all(backend.shows_key(protocol, metadata) for backend in guards)

    def open(self, message: bytes, metadata: Metadata, protocol: Protocol = "grpc") -> InferenceRequest | None:
        """Parse a serialized ModelInferRequest; None if a Triton must get it unmodified.

        `metadata`: of the client's call over this protocol.
        """
        model = first_string(message)
        if self._directory.catalog.guarded and not self.lets_in(model, protocol, metadata):
            return None
        bypasses, _ = self._rollout
        signature = self.signature_of(model)
        if signature is None:
            self._headings.pop(model, None)
            return None
        headings = self._headings.get(model)
        if headings is None or headings.signature is not signature:
            headings = self._headings[model] = HeaderCache(
                signature, self._applications.parameter, self._applications.feature
            )
        try:
            envelope = open_known(message, headings)
        except NotSchedulable:
            return None
        graph = self._directory.catalog.graphs.get(model)
        if graph and graph.signature is signature and graph.why_bypassed(envelope.heading):
            return None
        if protocol == "grpc" and (patterns := self._directory.catalog.key_patterns.get(model)):
            envelope.merge_key += keys_of(metadata, patterns)
        for lets_pass in bypasses:
            if lets_pass(envelope):
                return None
        return envelope

    def open_for_slot(
        self, message: bytes, request: PassedThrough, metadata: Metadata, protocol: Protocol = "grpc"
    ) -> InferenceRequest | None:
        """Return a request of a model with slots in the form that the driver schedules; None: it is bypassed.

        So are requests of other models, of sequences that Tidegate has not seen begin, and those that a canary does not
        schedule; the first request of a sequence decides for all. `message`: the serialized request, empty over HTTP;
        `request`: facts about it.
        """
        catalog = self._directory.catalog
        signature = catalog.slots.get(request.model)
        if signature is None or not self.lets_in(request.model, protocol, metadata):
            return None
        may_be_alone = not request.sequence and request.model in catalog.ensembles
        if request.model in catalog.sequential and not may_be_alone and not self._sequences.takes(request):
            return None  # its Triton says what is wrong
        envelope = slot_request_of(message, request, signature)
        bypasses, _ = self._rollout
        if bypasses and not self._sequences.is_open(request) and any(passes(envelope) for passes in bypasses):
            return None
        return envelope

    def wait_for_slot(
        self, waiter: SlotWaiter, request: PassedThrough, arrival_ns: int, remaining_s: float | None
    ) -> None:
        """Have a request of a model with slots wait for one, or for its turn in that of its sequence.

        `request`: facts about it; `remaining_s`: seconds until the client's own deadline, if it has one.
        """
        if not request.sequence or request.model not in self._directory.catalog.sequential:
            self.handle(waiter, arrival_ns, remaining_s)
            return
        app = self._applications.of(waiter.envelope.heading, waiter.metadata)
        tenant = self._driver.tenant_of(waiter.owner, app) if self._sequences.is_open(request) else None
        if tenant and (rejected := why_rejected(tenant, waiter.envelope.rows, waiter.envelope.id)):
            self._driver.refuse(waiter, arrival_ns, rejected)
        else:
            self._sequences.add(waiter, request, arrival_ns, remaining_s)

    def handle(self, client: PendingRequest, arrival_ns: int, remaining_s: float | None) -> None:
        """Process a request to its response. `remaining_s`: seconds until the client's own deadline, if it has one.

        These are the steps of a request, this method being the middle; each wait ends with an event:

        arrive    a server reads it, access control admits it and identifies the client
                  (`servers.grpc.GrpcService.accept`, `servers.http.application.HttpApplication`,
                  `servers.streams.InferStream`)
        open      the fields for scheduling are read (`open`, above); if that is impossible, or shadow mode or a canary
                  wants it, the request is bypassed to a Triton (`service.passthrough.BypassedInferences.begin`)
        admit     it gets an id, and waits, unless it has expired or a queue is full (`scheduling.driver.Driver.admit`)
        schedule  the engine handles it and notifies the policy (`scheduling.clock.LiveEngine.take_in`), which decides
                  now, or when other requests arrive, a batch ends or a timer fires
        run       the engine's StartStage merges and sends its batch (`scheduling.stages.RunningBatches.start`)
        divide    the batch's response is split (`scheduling.payload.BatchPayload.outcomes`)
        answer    the client gets its own part (`scheduling.in_flight.PendingRequests.settle`), which its server sends
        """
        envelope = client.envelope
        catalog = self._directory.catalog
        graph = catalog.graphs.get(envelope.model)
        model = graph.model if graph else catalog.models.get(envelope.model)
        # None: gone since it was opened; the engine says so
        heading = envelope.heading
        wanted = response_deadline(
            arrival_ns, model, heading.times, remaining_s, heeds_timeout=envelope.signature.heeds_timeout
        )
        app = self._applications.of(heading, client.metadata)
        try:
            tenant = self._driver.tenant_of(client.owner, app)
            if tenant and (rejected := why_rejected(tenant, envelope.rows, envelope.id)):
                self._driver.refuse(client, arrival_ns, rejected)
            elif graph and graph.signature is envelope.signature:
                self._graphs.begin(graph, client, arrival_ns, wanted, end_of_call_ns(arrival_ns, remaining_s), app)
            elif request := self._driver.admit(client, arrival_ns, wanted, app):
                self._driver.schedule(request)
        except Exception as error:
            faults.report("taking in a request", error)
            self._driver.give_up(client)

    def leave(self, client: PendingRequest) -> None:
        """Handle a client that does not wait any more, if it still waited."""
        self._driver.leave(client)

    async def infer(self, message: bytes, remaining_s: float | None, metadata: Metadata = (), owner: str = "") -> bytes:
        """Schedule a client's HTTP request and return its response, a serialized ModelInferResponse.

        Raises NotSchedulable and RequestFailed. Cancel it when the client leaves. `remaining_s`: seconds until the
        client's deadline, or None; `owner`: the client.
        """
        arrival_ns = time.monotonic_ns()
        if self.takes_long(message):
            envelope = await asyncio.to_thread(self.open, message, metadata, "http")
        else:
            envelope = self.open(message, metadata, "http")
        if envelope is None:
            raise NotSchedulable("a Triton must get it unmodified")
        if not fits(metadata):
            if envelope.model not in self._directory.catalog.split:
                raise NotSchedulable("its headers are more than gRPC takes")
            metadata = ()  # no Triton has the model: what else could be done with them?
        client = AsyncPendingRequest(envelope, metadata, owner)
        self.handle(client, arrival_ns, remaining_s)
        try:
            return await client.answer
        except asyncio.CancelledError:
            self._driver.leave(client)
            raise
