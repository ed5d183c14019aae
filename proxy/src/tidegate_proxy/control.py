"""What is not inference by schedule: answered for all Tritons together, or by one of them as it is."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy import reserved_names
from tidegate_proxy.access.gate import Gate
from tidegate_proxy.affinity import keeper
from tidegate_proxy.backend import CANCEL_AFTER_S, GOING, SERVICE, Backend
from tidegate_proxy.catalog import Directory
from tidegate_proxy.client import SHUTTING_DOWN, Client, Outcome, RequestFailed
from tidegate_proxy.client_regions import Ask, ClientRegions, all_must
from tidegate_proxy.discovery import Discovery
from tidegate_proxy.driver import Driver
from tidegate_proxy.envelope import PassedThrough, open_envelope
from tidegate_proxy.forwarded import forwarded
from tidegate_proxy.heading import NotSchedulable
from tidegate_proxy.liveness import Liveness
from tidegate_proxy.observability.merged_statistics import merge_statistics
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.passage import Passage
from tidegate_proxy.settings import InForce
from tidegate_proxy.split_models import VERSION, SplitModel
from tidegate_proxy.transport import CallFailed, Metadata, Stream
from tidegate_proxy.wire import first_string

_TO_ALL = frozenset(
    SERVICE + method
    for method in (
        "TraceSetting",
        "LogSettings",
    )
)
"""What changes a server's state has to change it on every server."""
_REPOSITORY = frozenset(SERVICE + method for method in ("RepositoryModelLoad", "RepositoryModelUnload"))
"""What changes the models, too."""
LIVE, READY = SERVICE + "ServerLive", SERVICE + "ServerReady"
OF_OUR_OWN = frozenset((LIVE, READY, "/grpc.health.v1.Health/Check"))
"""How Tidegate itself is: answered as long as it runs."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""grpc.health.v1.HealthCheckResponse with its only field, the status."""


class Control:
    """Lives in the event loop."""

    def __init__(
        self,
        directory: Directory,
        discovery: Discovery,
        driver: Driver,
        observability: Observability,
        gate: Gate,
        liveness: Liveness,
        in_force: InForce,
    ) -> None:
        self._backends = discovery.backends
        self._directory = directory
        self._discovery = discovery
        self._driver = driver
        self._observability = observability
        self._gate = gate
        self.liveness = liveness
        self._in_force = in_force
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.passages: set[Passage] = set()
        """Inferences that were passed on and are under way."""
        driver.on_stray = self.take_over
        self.draining = False
        """Not ready for more: the proxy is about to stop."""
        self.shared_memory = ClientRegions(lambda: self.route(""), self._ask, self._ask_all)
        """What clients registered."""
        self._answers: dict[str, Callable[[bytes, Metadata, float | None], Awaitable[bytes]]] = {
            LIVE: self._live,
            READY: self._ready,
            "/grpc.health.v1.Health/Check": self._health,
            SERVICE + "RepositoryIndex": self._index,
            SERVICE + "ModelStatistics": self._statistics,
            SERVICE + "ModelReady": self._of_split(SERVICE + "ModelReady", _ready_answer),
            SERVICE + "ModelMetadata": self._of_split(SERVICE + "ModelMetadata", _metadata_answer),
            SERVICE + "ModelConfig": self._of_split(SERVICE + "ModelConfig", _config_answer),
            **{method: self._to_all(method) for method in _TO_ALL},
            **self.shared_memory.answers,
            **{method: self._and_look_again(self._to_all(method)) for method in _REPOSITORY},
        }

    async def unary(self, method: str, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        """The answer to a call. Raises RequestFailed with what its client is to be told."""
        if answer := self._answers.get(method):
            return await answer(message, metadata, remaining_s)
        return await self._ask(self.route(""), method, message, metadata, remaining_s)

    async def stream(
        self,
        backend: Backend,
        method: str,
        messages: AsyncIterator[bytes],
        metadata: Metadata,
        remaining_s: float | None,
        owner: str,
    ) -> AsyncIterator[bytes]:
        """The answers of one Triton to a client's stream. Raises RequestFailed."""
        # A Triton that is told of a deadline may die of it: it is told a little later, if at all.
        limit_s = None if remaining_s is None else remaining_s + CANCEL_AFTER_S
        stream = backend.stream(method, self._forwarded(metadata), limit_s)
        backend.forwarded.add(stream)
        writing = asyncio.create_task(_write(stream, messages))
        try:
            while (answer := await stream.read()) is not None:
                yield answer
            self.did_well(backend, owner)
        except CallFailed as error:
            raise await self.failure(backend, error.code, error.details, owner) from error
        finally:
            backend.forwarded.discard(stream)
            stream.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def pass_on(
        self, message: bytes, metadata: Metadata, remaining_s: float | None, owner: str, then: Callable[[Outcome], None]
    ) -> Passage:
        """Have a Triton answer a client's inference that cannot be scheduled; `then` is called with the outcome."""
        passage = Passage(self, message, self._forwarded(metadata), remaining_s, owner, then)
        self.passages.add(passage)
        passage.begin()
        return passage

    def take_over(self, client: Client) -> None:
        """Have a request answered, as it is, that cannot be scheduled any more."""

        def answered(outcome: Outcome) -> None:
            client.resolve(outcome)
            self._observability.passed_on(client)

        self.pass_on(client.envelope.message, client.metadata, None, client.owner, answered)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have a passage's failure looked at."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_passages(self) -> None:
        """Tell the clients of inferences that were passed on and are under way that there will be no answer."""
        for task in self._tasks:
            task.cancel()
        for passage in list(self.passages):
            passage.end(RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN))

    def may_try_again(self, lost: Backend, model: str, tries: int) -> bool:
        """Whether an inference that was tried so often has failed with its Triton, and another has its model.

        Not for models with sequences: what a Triton knows of one is lost with it.
        """
        catalog = self._directory.catalog
        others = any(backend.alive for backend in catalog.hosts.get(model, ()))
        return not lost.alive and others and model not in catalog.sequential and tries < self._driver.engine.max_tries

    async def unreachable(self, triton: Backend, details: str) -> None:
        """A call over HTTP did not reach its Triton: if that is gone, the next call goes to another."""
        await self._driver.membership.lost(triton, details)

    def passed_through(self, request: PassedThrough, sent_ns: int, *, ok: bool) -> None:
        """Count an inference that went to a Triton as it was, at this instant, and has its answer."""
        if request.model in self._directory.catalog.versions:
            self._observability.passed_through(
                request.model, request.version, rows=request.rows, sent_ns=sent_ns, ok=ok
            )

    def passed_through_http(self, model: str, version: str, *, sent_ns: int, ok: bool) -> None:
        """Count an inference that went to a Triton over HTTP. Its rows are not known: it counts as one."""
        self._observability.passed_through(model, version, rows=1, sent_ns=sent_ns, ok=ok)

    def route(self, model: str) -> Backend:
        """The first living Triton that has the model; failing that, the first living one; failing that, the first."""
        candidates = (*self._directory.catalog.hosts.get(model, ()), *self._backends)
        return next((backend for backend in candidates if backend.alive), self._backends[0])

    def route_inference(self, message: bytes, request: PassedThrough) -> Backend:
        """A Triton for an inference that cannot be scheduled: a sequence stays with one, all others take turns.

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
        return self._one_of_several(model, request.sequence, request.header)

    def looks_inside(self, model: str) -> bool:
        """Whether it matters what is in an inference of this model that cannot be scheduled."""
        catalog = self._directory.catalog
        return len(catalog.hosts.get(model, ())) > 1 and (model in catalog.sequential or model in catalog.variants)

    def route_http_inference(self, model: str, sequence: str, header: service_pb2.ModelInferRequest | None) -> Backend:
        """As `route_inference`, for one that came over HTTP: the id of its sequence, what it says of its tensors."""
        return self._one_of_several(model, sequence, header)

    def _one_of_several(self, model: str, sequence: str, header: service_pb2.ModelInferRequest | None) -> Backend:
        living = [backend for backend in self._directory.catalog.takers(model, header) if backend.alive]
        if not living:
            return self.route(model)
        return keeper(f"{model} {sequence}", living) if sequence else living[next(self._turn) % len(living)]

    def _why_not_scheduled(self, model: str, message: bytes) -> str:
        try:
            open_envelope(message, self._directory.catalog.signatures[model])
        except NotSchedulable as error:
            return str(error)
        return "ask again: the model has just changed"

    async def _ask(
        self, backend: Backend, method: str, message: bytes, metadata: Metadata, remaining_s: float | None
    ) -> bytes:
        forwarded = self._forwarded(metadata)
        try:
            return await backend.ask(method, message, forwarded, remaining_s, for_client=True)
        except CallFailed as error:
            raise await self.failure(backend, error.code, error.details, None) from error

    async def failure(self, backend: Backend, code: grpc.StatusCode, details: str, owner: str | None) -> RequestFailed:
        """What the client is told of a call to a Triton that has failed; if that is gone, the next goes to another.

        `owner`: whose inference it was, which speaks against the Triton; None for any other call: to those any client
        can have Triton answer INTERNAL, and with five of them it would have a Triton ejected that does well.
        """
        if code is grpc.StatusCode.CANCELLED and not backend.alive:  # it was given up, and the call with it
            return RequestFailed(grpc.StatusCode.UNAVAILABLE, f"Triton at {backend.address} does not answer")
        gone = code in GOING and await self._driver.membership.lost(backend, details)
        if owner is not None and not gone:
            self._driver.membership.failed(backend, (owner,), code, details)
        return RequestFailed(code, details)

    def did_well(self, backend: Backend, owner: str) -> None:
        """A Triton has answered a client's inference that was passed on."""
        self._driver.outliers.did_well(backend, owner)

    async def _ask_all(
        self, method: str, message: bytes, metadata: Metadata, remaining_s: float | None, ask: Ask | None = None
    ) -> list[bytes | RequestFailed]:
        """What every living Triton says. `ask`: how one of them is asked, if not simply."""
        living = [backend for backend in self._backends if backend.alive] or self._backends[:1]

        async def one(backend: Backend) -> bytes | RequestFailed:
            try:
                return await (ask or self._ask)(backend, method, message, metadata, remaining_s)
            except RequestFailed as failure:
                return failure

        return await asyncio.gather(*map(one, living))

    def _to_all(self, method: str) -> Callable[[bytes, Metadata, float | None], Awaitable[bytes]]:
        """Ask every living Triton, whatever the others say: the first error is the client's, else the first answer."""

        async def answer(message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
            return all_must(await self._ask_all(method, message, metadata, remaining_s))

        return answer

    def _of_split(
        self, method: str, answer_of: Callable[[SplitModel], bytes]
    ) -> Callable[[bytes, Metadata, float | None], Awaitable[bytes]]:
        """Answer for a model that no Triton has by that name; a Triton answers for the others."""

        async def answer(message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
            name = first_string(message)
            if split := self._directory.catalog.split.get(name):
                return answer_of(split)
            return await self._ask(self.route(name), method, message, metadata, remaining_s)

        return answer

    def _and_look_again(
        self, answer: Callable[[bytes, Metadata, float | None], Awaitable[bytes]]
    ) -> Callable[[bytes, Metadata, float | None], Awaitable[bytes]]:
        async def answered(message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
            try:
                return await answer(message, metadata, remaining_s)
            finally:
                await self._discovery.refresh()

        return answered

    async def _statistics(self, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        if first_string(message) in self._directory.catalog.split:
            name = first_string(message)
            own = {key: counts for key, counts in self._observability.statistics.snapshot().items() if key[0] == name}
            alone: bytes = merge_statistics((), own, split=(name,)).SerializeToString()
            return alone
        outcomes = await self._ask_all(SERVICE + "ModelStatistics", message, metadata, remaining_s)
        answers = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        if not answers:
            raise next(outcome for outcome in outcomes if isinstance(outcome, RequestFailed))
        responses = [service_pb2.ModelStatisticsResponse.FromString(answer) for answer in answers]
        catalog, counted = self._directory.catalog, self._observability.statistics.snapshot()
        merged: bytes = merge_statistics(responses, counted, catalog.hidden, catalog.split).SerializeToString()
        return merged

    async def statistics(self, model: str, version: str) -> service_pb2.ModelStatisticsResponse:
        """What clients are told of a model, or of all: "". Raises RequestFailed."""
        request = service_pb2.ModelStatisticsRequest(name=model, version=version)
        answer = await self._statistics(request.SerializeToString(), (), None)
        return service_pb2.ModelStatisticsResponse.FromString(answer)

    async def _live(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        serialized: bytes = service_pb2.ServerLiveResponse(live=not self.liveness.complaint()).SerializeToString()
        return serialized

    async def _ready(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        serialized: bytes = service_pb2.ServerReadyResponse(ready=await self.is_ready()).SerializeToString()
        return serialized

    async def _health(self, _message: bytes, _metadata: Metadata, _remaining_s: float | None) -> bytes:
        return _SERVING if await self.is_ready() else _NOT_SERVING

    async def _index(self, message: bytes, metadata: Metadata, remaining_s: float | None) -> bytes:
        """Every model of any Triton, once: ready where it is ready somewhere."""
        catalog = self._directory.catalog
        models: dict[tuple[str, str], service_pb2.RepositoryIndexResponse.ModelIndex] = {
            (name, VERSION): service_pb2.RepositoryIndexResponse.ModelIndex(name=name, version=VERSION, state="READY")
            for name in catalog.split
        }
        outcomes = await self._ask_all(SERVICE + "RepositoryIndex", message, metadata, remaining_s)
        answers = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        if not answers:
            raise next(outcome for outcome in outcomes if isinstance(outcome, RequestFailed))
        for answer in answers:
            for model in service_pb2.RepositoryIndexResponse.FromString(answer).models:
                key = (model.name, model.version)
                if model.name in catalog.hidden:
                    continue
                if key not in models or model.state == "READY":
                    models[key] = model
        merged: bytes = service_pb2.RepositoryIndexResponse(
            models=[models[key] for key in sorted(models)]
        ).SerializeToString()
        return merged

    async def repository_index(self) -> list[service_pb2.RepositoryIndexResponse.ModelIndex]:
        """Every model of any Triton. Raises RequestFailed."""
        return list(service_pb2.RepositoryIndexResponse.FromString(await self._index(b"", (), None)).models)

    async def is_ready(self) -> bool:
        """Whether requests are welcome: some Triton is ready, and the proxy is not about to stop."""
        if self.draining or self.liveness.complaint():
            return False
        probes = [asyncio.ensure_future(backend.is_ready()) for backend in self._backends if backend.alive]
        try:
            for probe in asyncio.as_completed(probes):  # one that hangs must not hold up the answer of the others
                if await probe:
                    return True
            return False
        finally:
            for probe in probes:
                probe.cancel()

    def _forwarded(self, metadata: Metadata) -> list[tuple[str, str | bytes]]:
        return forwarded(metadata, self._gate.credential_headers)


async def _write(stream: Stream, messages: AsyncIterator[bytes]) -> None:
    """Send the messages of a stream, and that there are no more; how it ends, its reader learns."""
    async for message in messages:
        await stream.write(message)
    stream.half_close()


def _ready_answer(_split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
    return serialized


def _metadata_answer(split: SplitModel) -> bytes:
    serialized: bytes = split.metadata.SerializeToString()
    return serialized


def _config_answer(split: SplitModel) -> bytes:
    serialized: bytes = service_pb2.ModelConfigResponse(config=split.config).SerializeToString()
    return serialized
