"""Which Triton a call goes to that is not scheduled, and what it means where that fails."""

from collections import Counter
from collections.abc import Iterable, Sequence

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy import guards, refusal, reserved_names
from tidegate_proxy.access.apis import Api, Protocol
from tidegate_proxy.access.gate import Gate
from tidegate_proxy.affinity import keeper
from tidegate_proxy.backend import GOING, Backend, is_restricted
from tidegate_proxy.catalog import Directory
from tidegate_proxy.driver import Driver
from tidegate_proxy.envelope import PassedThrough, open_envelope
from tidegate_proxy.forwarded import forwarded
from tidegate_proxy.heading import NotSchedulable
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.outcome import RequestFailed
from tidegate_proxy.settings import InForce
from tidegate_proxy.transport import CallFailed, Metadata
from tidegate_proxy.wire import first_string


class Routing:
    """Lives in the event loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        directory: Directory,
        driver: Driver,
        observability: Observability,
        gate: Gate,
        in_force: InForce,
    ) -> None:
        self._backends = backends
        self._directory = directory
        self._driver = driver
        self._observability = observability
        self._gate = gate
        self._in_force = in_force
        self._passed = Counter[str]()
        """Inferences that were sent on, by model."""

    def route(self, model: str, protocol: Protocol = "grpc", api: Api | None = None) -> Backend:
        """The first living Triton that has the model; failing that, the first living one; failing that, the first.

        One that does not decide itself who may use the API goes before others that have the model, and one of which
        Tidegate does not know the models before those that do not have it.
        """
        hosts = self._directory.catalog.hosts.get(model, ())
        unseen = [backend for backend in self._backends if not backend.apis.lists_models]
        candidates = (*_open_first(hosts, protocol, api), *unseen, *_open_first(self._backends, protocol, api))
        return next((backend for backend in candidates if backend.alive), self._backends[0])

    def route_inference(self, message: bytes, request: PassedThrough) -> Backend:
        """A Triton for an inference that cannot be scheduled: a sequence keeps its own, others take the least busy one.

        `request`: what has to be known of the message. Raises RequestFailed for tensors in shared memory that is not
        for clients, and for what cannot be looked at.
        """
        model = first_string(message)
        if model in self._directory.catalog.split:
            words = f"model '{model}' is split over several Tritons, and this request cannot go through them: "
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
        return self._one_of_several(model, request.sequence, request.header, "grpc")

    def looks_inside(self, model: str) -> bool:
        """Whether it matters what is in an inference of this model that cannot be scheduled."""
        catalog = self._directory.catalog
        return len(catalog.hosts.get(model, ())) > 1 and (model in catalog.sequential or model in catalog.variants)

    def route_http_inference(self, model: str, sequence: str, header: service_pb2.ModelInferRequest | None) -> Backend:
        """As `route_inference`, for one that came over HTTP: the id of its sequence, what it says of its tensors."""
        return self._one_of_several(model, sequence, header, "http")

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
            return keeper(f"{model} {sequence}", living)
        first = self._passed[model] % len(living)
        self._passed[model] += 1
        return min(
            living[first:] + living[:first],
            key=lambda backend: (backend.in_flight_by_model.get(model, 0), backend.in_flight),
        )

    def _why_not_scheduled(self, model: str, message: bytes) -> str:
        try:
            open_envelope(message, self._directory.catalog.signatures[model])
        except NotSchedulable as error:
            return str(error)
        return "ask again: the model has just changed"

    async def ask(
        self, backend: Backend, method: str, message: bytes, metadata: Metadata, remaining_s: float | None
    ) -> bytes:
        """What one of them answers a client. Raises RequestFailed."""
        try:
            return await backend.ask(method, message, self.forwarded(metadata), remaining_s, for_client=True)
        except CallFailed as error:
            raise await self.failure(backend, error.code, error.details, None) from error

    async def failure(self, backend: Backend, code: grpc.StatusCode, details: str, owner: str | None) -> RequestFailed:
        """What the client is told of a call to a Triton that has failed; if that is gone, the next goes to another.

        `owner`: whose inference it was, which speaks against the Triton; None for any other call: to those any client
        can have Triton answer INTERNAL, and with five of them it would have a Triton ejected that does well.
        """
        if code is grpc.StatusCode.CANCELLED and not backend.alive:  # it was given up, and the call with it
            words = f"Triton at {backend.address} does not answer"
            return RequestFailed(grpc.StatusCode.UNAVAILABLE, words, refusal=refusal.NO_TRITON)
        if is_restricted(details):  # which speaks neither against the Triton nor of its end
            return RequestFailed(code, details)
        gone = code in GOING and await self._driver.membership.lost(backend, details)
        if owner is not None and not gone:
            self._driver.membership.failed(backend, (owner,), code, details)
        return RequestFailed(code, details)

    def did_well(self, backend: Backend, owner: str) -> None:
        """A Triton has answered a client's inference that was passed on."""
        self._driver.outliers.did_well(backend, owner)

    async def unreachable(self, triton: Backend, details: str) -> None:
        """A call over HTTP did not reach its Triton: if that is gone, the next call goes to another."""
        await self._driver.membership.lost(triton, details)

    def may_try_again(self, lost: Backend, model: str, tries: int) -> bool:
        """Whether an inference that was tried so often has failed with its Triton, and another has its model.

        Not for models with sequences: what a Triton knows of one is lost with it.
        """
        catalog = self._directory.catalog
        others = any(backend.alive for backend in catalog.hosts.get(model, ()))
        return not lost.alive and others and model not in catalog.sequential and tries < self._driver.engine.max_tries

    def passed_through(self, request: PassedThrough, sent_ns: int, *, ok: bool) -> None:
        """Count an inference that went to a Triton as it was, at this instant, and has its answer."""
        if request.model in self._directory.catalog.versions:
            self._observability.passed_through(
                request.model, request.version, rows=request.rows, sent_ns=sent_ns, ok=ok
            )

    def passed_through_http(self, model: str, version: str, *, sent_ns: int, ok: bool) -> None:
        """Count an inference that went to a Triton over HTTP. Its rows are not known: it counts as one."""
        self._observability.passed_through(model, version, rows=1, sent_ns=sent_ns, ok=ok)

    def forwarded(self, metadata: Metadata) -> list[tuple[str, str | bytes]]:
        """What of a client's metadata goes on to a Triton."""
        return forwarded(metadata, self._gate.credential_headers)


def _open_first(backends: Iterable[Backend], protocol: Protocol, api: Api | None) -> list[Backend]:
    return sorted(backends, key=lambda backend: (protocol, api) in backend.apis.left)
