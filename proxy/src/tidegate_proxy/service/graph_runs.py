"""Runs of graphs: requests to an ensemble whose steps are scheduled as stages, with one deadline.

A stage may be a graph itself, which runs within its part of the deadline, or an ensemble that passes as a whole.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import grpc
from tritonclient.grpc import service_pb2

from tidegate.api import NEVER_NS
from tidegate.toolkit.stage_graph import stage_deadline
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.apis import Protocol
from tidegate_proxy.messages import wire
from tidegate_proxy.messages.merging import ScatterError, read_answer
from tidegate_proxy.messages.request import (
    FINAL_RESPONSE_PARAMETER,
    REMEMBERED_BYTES,
    InferenceRequest,
    ParsedHeader,
    PendingRequest,
    ResponseDeadline,
)
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.graph_load import GraphGroup, groups_of
from tidegate_proxy.service.passthrough import BypassedInference, BypassedInferences
from tidegate_proxy.transport import Metadata
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog
from tidegate_proxy.tritons.model_graphs import GraphStage, ModelGraph

OpenStage: TypeAlias = Callable[[bytes, Metadata, Protocol], InferenceRequest | None]
"""Function that parses the request of a stage; None if it cannot be scheduled."""
MAX_CACHED_HEADERS: Final = 512
MAX_RESPONSE_FORMS: Final = 64
"""Number of sets of outputs per graph whose response form is remembered; bounded, because clients choose them."""
_OF_ENSEMBLES: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
"""Parameters of every response that Triton gives to an ensemble's request."""


class GraphTensor(NamedTuple):
    """Tensor of a running graph; its content is a slice of the message that it came in."""

    datatype: str
    shape: tuple[int, ...]
    content: memoryview


@dataclass(frozen=True, slots=True)
class GraphResponseForm:
    """Form of the responses to an ensemble's requests for one set of outputs, as Triton gives them."""

    version: str
    parameters: tuple[tuple[str, bytes], ...]
    """Names and serialized values."""
    outputs: tuple[str, ...]
    """Outputs in Triton's order."""


@dataclass(slots=True)
class _GraphState:
    """Memory of one graph."""

    graph: ModelGraph
    forms: dict[tuple[str, ...], GraphResponseForm] = field(default_factory=dict)
    """Forms of responses, by the outputs that requests name."""
    is_unlike: bool = False
    """Whether Triton's responses have parameters of which Tidegate does not know the source."""
    needed: dict[tuple[str, ...], frozenset[int]] = field(default_factory=dict)
    """Stages that are needed, by the outputs that requests name."""
    headers: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    """Headers of stages' requests and of responses, by what they depend on."""

    def stages_for(self, wanted: tuple[str, ...]) -> frozenset[int]:
        """Return the stages that these outputs need."""
        needed = self.needed.get(wanted)
        if needed is None:
            needed = self.graph.needed(wanted)
            if len(wanted) <= len(self.graph.outputs):  # else it names some twice
                if len(self.needed) >= MAX_RESPONSE_FORMS:
                    self.needed.clear()
                self.needed[wanted] = needed
        return needed


@dataclass(eq=False, repr=False)
class GraphRuns:
    """All graphs that run. Use it only in the event loop, except `expands`."""

    directory: CurrentCatalog
    driver: Driver
    passages: BypassedInferences
    observability: Observability
    open_stage: OpenStage

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._states: dict[str, _GraphState] = {}
        self._groups: tuple[Catalog, dict[str, GraphGroup]] = self.directory.catalog, groups_of(self.directory.catalog)
        self._expected_of: tuple[Catalog, int] = self.directory.catalog, 0
        """Catalog and version of the profiles that the cached times are from."""
        self._expected: dict[tuple[str, int], tuple[int, int]] = {}
        """Cached times of steps, by name and rows."""

    def expands(self, graph: ModelGraph) -> bool:
        """Return whether the next request of a graph runs in stages, or teaches the form of responses.

        May be called in any thread.
        """
        state = self._states.get(graph.model.name)
        if state is not None and state.graph is not graph:
            state = None
        if state is not None and state.is_unlike:
            return False
        return graph.mode == "expanded" or self._is_contended(graph) or state is None or not state.forms

    def _is_contended(self, graph: ModelGraph) -> bool:
        catalog = self.directory.catalog
        if catalog is not self._groups[0]:
            self._groups = catalog, groups_of(catalog)
        group = self._groups[1].get(graph.model.name)
        if group is None:  # it has just changed
            return False
        passing = [backend.in_flight_by_model for backend in catalog.loaded]
        return group.rule.observe(time.monotonic_ns(), group.in_flight(passing, self.driver.clients.waiting_by_model))

    def begin(
        self,
        graph: ModelGraph,
        client: PendingRequest,
        arrival_ns: int,
        due: ResponseDeadline,
        end_ns: int,
        app: str,
    ) -> None:
        """Run a client's request in stages; the first one for each set of outputs bypasses.

        Args:
            graph: graph of the request.
            client: client that gets the response.
            arrival_ns: instant of the arrival.
            due: deadline of the whole graph.
            end_ns: instant at which the client's call ends by its own deadline; NEVER_NS: never.
            app: application of the request; "": none.
        """
        client.arrival_ns, client.due_ns, client.until_ns = arrival_ns, due.deadline_ns, max(due)
        state = self._states.get(graph.model.name)
        if state is None or state.graph is not graph:
            state = self._states[graph.model.name] = _GraphState(graph)
        wanted = client.envelope.heading.wanted
        form = _form_of(graph, wanted) if graph.is_operators else state.forms.get(wanted)
        if form is None:
            self._learn(state, wanted, client, end_ns)
            return
        if self.observability.traces:
            self.observability.arrived(client)
        GraphRun(self, state, form, client, due, end_ns, app).begin()

    def expected_ns(self, name: str, rows: int) -> tuple[int, int]:
        """Return the expected time of a step for one request, and for its largest batch.

        That of an ensemble or graph is the time of its longest path, or of all its steps if Triton runs them. 0:
        unknown. `name`: model, ensemble or graph; `rows`: rows of the request.
        """
        catalog, version = self.directory.catalog, self.driver.engine.expectations.version
        if catalog is not self._expected_of[0] or version != self._expected_of[1]:
            self._expected_of = catalog, version
            self._expected.clear()
        times = self._expected.get((name, rows))
        if times is None:
            times = self._expected[name, rows] = self._compute_expected_ns(catalog, name, rows)
        return times

    def _compute_expected_ns(self, catalog: Catalog, name: str, rows: int) -> tuple[int, int]:
        if model := catalog.models.get(name):
            expectations = self.driver.engine.expectations
            return expectations.fastest_ns(name, rows), expectations.fastest_ns(name, model.merged_rows)
        times = [self.expected_ns(step, rows) for step, _ in catalog.ensembles.get(name, ())]
        alone, batched = [each for each, _ in times], [each for _, each in times]
        graph = catalog.graphs.get(name)
        if graph is None:
            return sum(alone), sum(batched)
        return max(graph.order.remaining_ns(alone)), max(graph.order.remaining_ns(batched))

    def _learn(self, state: _GraphState, wanted: tuple[str, ...], client: PendingRequest, end_ns: int) -> None:
        """Have a Triton answer a request, and learn the form of its answer."""

        def answered(outcome: Outcome) -> None:
            if not isinstance(outcome, RequestFailed):
                self._learned(state, wanted, outcome)
            client.resolve(outcome)

        passage = self.passages.begin(
            client.envelope.message, client.forwarded_metadata, _remaining_s(end_ns), client.owner, answered
        )
        client.leaves_by(partial(_cancelled, passage))

    def _learned(self, state: _GraphState, wanted: tuple[str, ...], answer: bytes) -> None:
        try:
            header, _ = read_answer(answer)
        except ScatterError:
            state.is_unlike = True
            return
        state.is_unlike = state.is_unlike or not _OF_ENSEMBLES.issuperset(header.parameters)
        if len(wanted) > len(state.graph.outputs):
            return  # it names some twice
        if len(state.forms) >= MAX_RESPONSE_FORMS:
            state.forms.clear()
        state.forms[wanted] = GraphResponseForm(
            header.model_version,
            tuple((name, header.parameters[name].SerializeToString()) for name in sorted(header.parameters)),
            tuple(output.name for output in header.outputs),
        )


class GraphRun:
    """One request of a graph that runs in stages."""

    __slots__ = (
        *("_app", "_client", "_due", "_end_ns", "_form", "_is_over", "_left", "_needed"),
        *("_runs", "_running", "_state", "_tensors"),
    )

    def __init__(
        self,
        runs: GraphRuns,
        state: _GraphState,
        form: GraphResponseForm,
        client: PendingRequest,
        due: ResponseDeadline,
        end_ns: int,
        app: str,
    ) -> None:
        self._end_ns = end_ns
        self._runs = runs
        self._state = state
        self._form = form
        self._client = client
        self._due = due
        self._app = app
        envelope = client.envelope
        wanted = envelope.heading.wanted
        self._needed = state.stages_for(wanted)
        self._left = set(self._needed)
        """Stages that have not ended."""
        self._running: dict[int, StageRequest | BypassedInference] = {}
        self._tensors = {
            declared.name: GraphTensor(declared.datatype, tuple(declared.shape), content)
            for declared, content in zip(envelope.heading.header.inputs, envelope.tensors, strict=True)
        }
        self._is_over = False

    @property
    def client(self) -> PendingRequest:
        """Client of the graph."""
        return self._client

    def begin(self) -> None:
        """Start the stages without predecessors."""
        self._client.leaves_by(self.leave)
        try:
            self._go_on([number for number in sorted(self._left) if not self._awaited(number)])
        except Exception as error:
            faults.report("the first stages of a graph", error)
            self._fail(own_fault())

    def leave(self) -> bool:
        """Cancel all stages, because the client left; return whether it waited."""
        if self._is_over:
            return False
        self._end()
        self._runs.observability.graph_failed(self._client, None)
        return True

    def stage_ended(self, number: int, outcome: Outcome) -> None:
        """Handle the outcome of a stage soon: the responses of its batch are divided first."""
        self._running.pop(number, None)
        if not self._is_over:
            self._runs.loop.call_soon(self._proceed, number, outcome)

    def _proceed(self, number: int, outcome: Outcome) -> None:
        if self._is_over:
            return
        try:
            if isinstance(outcome, RequestFailed):
                self._fail(outcome)
                return
            self._take(number, outcome)
            self._left.discard(number)
            if self._left:
                following = self._state.graph.order.successors[number]
                self._go_on([later for later in following if later in self._left and not self._awaited(later)])
            else:
                self._answer()
        except ScatterError as error:
            self._fail(RequestFailed(grpc.StatusCode.INTERNAL, str(error), category="BACKEND"))
        except Exception as error:
            faults.report("a stage of a graph", error)
            self._fail(own_fault())

    def _awaited(self, number: int) -> bool:
        """Whether a stage waits for others to end."""
        return not self._left.isdisjoint(self._state.graph.order.predecessors[number])

    def _take(self, number: int, answer: bytes) -> None:
        """Keep the outputs of a stage that the graph uses. Raises ScatterError."""
        header, contents = read_answer(answer)
        made = dict(self._state.graph.stages[number].outputs)
        for output, content in zip(header.outputs, contents, strict=True):
            if tensor := made.get(output.name):
                self._tensors[tensor] = GraphTensor(output.datatype, tuple(output.shape), content)

    def _go_on(self, stages: Sequence[int]) -> None:
        if not stages:
            return
        now_ns = time.monotonic_ns()
        graph, client = self._state.graph, self._client
        alone, batched = [0] * len(graph.stages), [0] * len(graph.stages)
        for number in self._needed:
            alone[number], batched[number] = self._runs.expected_ns(graph.stages[number].model, client.envelope.rows)
        times = graph.order.path_times(alone), graph.order.split_weights(batched)
        for number in stages:
            if self._is_over:
                return
            due = stage_deadline(now_ns, self._due.deadline_ns, *(each[number] for each in times))
            # A stage that misses its part is not dropped while its graph may be on time.
            late_until_ns = max(self._due.late_until_ns, due.latest_ns if due.latest_ns > due.due_ns else 0)
            self._start(number, now_ns, ResponseDeadline(due.due_ns, late_until_ns))

    def _start(self, number: int, now_ns: int, due: ResponseDeadline) -> None:
        runs, client = self._runs, self._client
        message = self._message(number, self._state.graph.stages[number])
        if message is None:
            return
        envelope = runs.open_stage(message, client.metadata, client.protocol)
        if envelope is None:  # its Triton says why not, or answers it
            ended = partial(self.stage_ended, number)
            remaining_s = _remaining_s(self._end_ns)
            passage = runs.passages.begin(message, client.forwarded_metadata, remaining_s, client.owner, ended)
            self._running[number] = passage
            return
        stage = self._running[number] = StageRequest(envelope, self, number)
        inner = runs.directory.catalog.graphs.get(envelope.model)
        if inner is not None and inner.signature is envelope.signature:
            runs.begin(inner, stage, now_ns, due, self._end_ns, self._app)
        elif request := runs.driver.admit(stage, now_ns, due, self._app):
            runs.driver.schedule(request)

    def _message(self, number: int, stage: GraphStage) -> bytes | None:
        """The request of a stage; None if the stage before did not give a tensor of it, for which the graph fails."""
        tensors = []
        for name, source in stage.inputs:
            tensor = self._tensors.get(source)
            if tensor is None:
                words = f"step {number} ({stage.model}): its input {name!r} takes {source!r}, which no step gave"
                self._fail(RequestFailed(grpc.StatusCode.INTERNAL, words, category="BACKEND"))
                return None
            tensors.append(tensor)
        heading = self._client.envelope.heading
        key = (number, heading.merge_key, *((tensor.datatype, tensor.shape) for tensor in tensors))
        header = self._state.headers.get(key)
        if header is None:
            header = _header_of(stage, heading, tensors)
            if heading.private.isdisjoint(heading.header.parameters):  # which the key does not have
                self._remember(key, header)
        header += self._client.envelope.id_field
        return wire.join(header, [(tensor.content,) for tensor in tensors], wire.REQUEST_RAW_FIELD)

    def _remember(self, key: tuple[object, ...], header: bytes) -> None:
        if len(header) > REMEMBERED_BYTES:
            return
        headers = self._state.headers
        if len(headers) >= MAX_CACHED_HEADERS:
            headers.clear()
        headers[key] = header

    def _answer(self) -> None:
        """Give the client the outputs of the graph."""
        tensors = []
        for name in self._form.outputs:
            if name not in self._tensors:
                words = f"no step gave its output {name!r}"
                self._fail(RequestFailed(grpc.StatusCode.INTERNAL, words, category="BACKEND"))
                return
            tensors.append(self._tensors[name])
        key = (self._form.outputs, *((tensor.datatype, tensor.shape) for tensor in tensors))
        header = self._state.headers.get(key)
        if header is None:
            header = _answer_header(self._state.graph.model.name, self._form, tensors)
            self._remember(key, header)
        header += self._client.envelope.id_field
        answer = wire.join(header, [(tensor.content,) for tensor in tensors], wire.RESPONSE_RAW_FIELD)
        self._end()
        self._client.resolve(answer)
        self._runs.observability.graph_answered(self._client)

    def _fail(self, failure: RequestFailed) -> None:
        """Fail the client's request with a stage's error, in Triton's words for ensembles, and cancel other stages."""
        if self._is_over:
            return
        failed = RequestFailed(
            failure.code,
            f"in ensemble '{self._state.graph.model.name}', {failure.details}",
            queued=failure.queued,
            category=failure.category,
            outcome=failure.outcome,
            reason=failure.reason,
            retry_after_s=failure.retry_after_s,
        )
        self._end()
        self._client.resolve(failed)
        self._runs.observability.graph_failed(self._client, failed)

    def _end(self) -> None:
        self._is_over = True
        running, self._running, self._tensors = self._running, {}, {}
        for stage in running.values():
            if isinstance(stage, StageRequest):
                self._runs.driver.leave(stage)
            else:
                stage.cancel()


class StageRequest(PendingRequest):
    """Request of one stage of a graph."""

    __slots__ = ("_number", "_run")

    def __init__(self, envelope: InferenceRequest, run: GraphRun, number: int) -> None:
        super().__init__(envelope, run.client.owner)
        self._run = run
        self._number = number

    @property
    def metadata(self) -> Metadata:
        """Metadata of the graph's client."""
        return self._run.client.metadata

    @property
    def forwarded_metadata(self) -> Metadata:
        """Metadata of the graph's client that its steps may get."""
        return self._run.client.forwarded_metadata

    @property
    def protocol(self) -> Protocol:
        """Protocol of the graph's client."""
        return self._run.client.protocol

    def resolve(self, outcome: Outcome) -> None:
        """Pass the outcome to the graph."""
        self._run.stage_ended(self._number, outcome)


def _header_of(stage: GraphStage, heading: ParsedHeader, tensors: Sequence[GraphTensor]) -> bytes:
    """The header of a stage's request, without its id: the parameters are those of the ensemble's request."""
    header = service_pb2.ModelInferRequest(model_name=stage.model, model_version=stage.version)
    for name, value in heading.header.parameters.items():
        if name != FINAL_RESPONSE_PARAMETER:
            header.parameters[name].CopyFrom(value)
    for (name, _), tensor in zip(stage.inputs, tensors, strict=True):
        header.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
    for name, _ in stage.outputs:
        header.outputs.add(name=name)
    serialized: bytes = header.SerializeToString()
    return serialized


def _answer_header(model: str, form: GraphResponseForm, tensors: Sequence[GraphTensor]) -> bytes:
    header = service_pb2.ModelInferResponse(model_name=model, model_version=form.version)
    for name, value in form.parameters:
        header.parameters[name].ParseFromString(value)
    for name, tensor in zip(form.outputs, tensors, strict=True):
        header.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
    serialized: bytes = header.SerializeToString()
    return serialized


def _form_of(graph: ModelGraph, wanted: Sequence[str]) -> GraphResponseForm:
    """The form of the responses of a graph that no Triton has: its outputs in the order of the configuration."""
    outputs = tuple(name for name in graph.outputs if not wanted or name in wanted)
    return GraphResponseForm(graph.version, (), outputs)


def _remaining_s(end_ns: int) -> float | None:
    """Seconds until a client's call ends by its own deadline; None: never."""
    return None if end_ns == NEVER_NS else (end_ns - time.monotonic_ns()) / 1e9


def _cancelled(passage: BypassedInference) -> bool:
    passage.cancel()
    return True
