"""Graphs in a simulation: their requests become requests of their stages, due by their parts of one deadline."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tidegate.api import Advise, Batch, Model, Request, RequestArrived, RequestCancelled
from tidegate.engine import Engine
from tidegate.observation import ChangeProgressed, OutcomeListener, StartStage
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.record import RunRecord
from tidegate.toolkit.stage_graph import stage_deadline
from tidegate.workload.graphs import GraphSpec


@dataclass(slots=True)
class _GraphRun:
    """Request of a graph that runs."""

    graph: GraphSpec
    request: Request
    left: set[int]
    """Stages that have not ended."""
    running: dict[int, int] = field(default_factory=dict)
    """Request of each stage that waits or runs, by stage."""


class SimulatedGraphs(OutcomeListener):
    """Graphs of one run. It listens in place of the record, which gets the outcomes of whole graphs."""

    def __init__(
        self, graphs: Sequence[GraphSpec], models: Iterable[Model], engine: Engine, record: RunRecord, first_id: int
    ) -> None:
        """Create the graphs of a run.

        Args:
            graphs: graphs of the scenario.
            models: models of the scenario.
            engine: engine that schedules the stages.
            record: record of models' and graphs' requests.
            first_id: id of the first request of a stage; those below are in the record.
        """
        self._graphs = {graph.name: graph for graph in graphs}
        self._most_rows = {model.name: model.merged_rows for model in models}
        self._engine = engine
        self._record = record
        self._first_id = self._next_id = first_id
        self._agenda: EventQueue | None = None
        self._stages: dict[int, tuple[_GraphRun, int]] = {}
        """Run and stage of each request of a stage, by id."""

    def begin(self, agenda: EventQueue) -> None:
        """Schedule later stages in this event queue."""
        self._agenda = agenda

    def arrivals(self, requests: Iterable[Request]) -> Iterator[RequestArrived]:
        """Yield the arrivals of requests; those of a graph as the requests of its first stages."""
        for request in requests:
            graph = self._graphs.get(request.model)
            if graph is None:
                yield RequestArrived(request.arrival_ns, request)
                continue
            run = _GraphRun(graph, request, set(range(len(graph.stages))))
            ready = [number for number, before in enumerate(graph.order.predecessors) if not before]
            yield from self._start(run, ready, request.arrival_ns)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Record direct requests, and start the stages that follow."""
        self._record.answered(batch, [each for each in requests if each.id < self._first_id], ended_ns)
        for request in requests:
            if request.id >= self._first_id and (found := self._stages.pop(request.id, None)):
                self._stage_ended(*found, ended_ns)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a drop; that of a stage ends its graph."""
        if run := self._abandoned(now_ns, request):
            request = run.request
        if request.id < self._first_id:
            self._record.dropped(now_ns, request, reason)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Record a failure; that of a stage ends its graph."""
        if run := self._abandoned(now_ns, request):
            request = run.request
        if request.id < self._first_id:
            self._record.failed(now_ns, request, reason)

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Record the busy time of a worker."""
        found = ((each, self._stages.get(each)) for each in effect.batch.request_ids)
        owners = [stage[0].request.id if stage else each for each, stage in found if stage or each < self._first_id]
        self._record.stage_ran(effect, started_ns, ended_ns, owners)

    def advised(self, now_ns: int, advice: Advise) -> None:
        """Record a recommendation."""
        self._record.advised(now_ns, advice)

    def change_progressed(self, event: ChangeProgressed) -> None:
        """Record the progress of a layout change."""
        self._record.change_progressed(event)

    def _start(self, run: _GraphRun, stages: Sequence[int], now_ns: int) -> Iterator[RequestArrived]:
        graph, expectations = run.graph, self._engine.expectations
        alone = [expectations.fastest_ns(stage.model, 1) for stage in graph.stages]
        batched = [expectations.fastest_ns(stage.model, self._most_rows[stage.model]) for stage in graph.stages]
        times = graph.order.path_times(alone), graph.order.split_weights(batched)
        for number in stages:
            due = stage_deadline(now_ns, run.request.deadline_ns, *(each[number] for each in times))
            of_graph = run.request
            request = Request(
                self._next_id,
                graph.stages[number].model,
                1,
                now_ns,
                due.due_ns,
                late_until_ns=due.latest_ns if due.latest_ns > due.due_ns else 0,
                client=of_graph.client,
                priority=of_graph.priority,
                tenant=of_graph.tenant,
                weight=of_graph.weight,
            )
            self._next_id += 1
            self._stages[request.id] = run, number
            run.running[number] = request.id
            yield RequestArrived(now_ns, request)

    def _stage_ended(self, run: _GraphRun, number: int, ended_ns: int) -> None:
        order = run.graph.order
        run.left.discard(number)
        run.running.pop(number, None)
        ready = [later for later in order.successors[number] if run.left.isdisjoint(order.predecessors[later])]
        if not run.left:
            self._record.graph_answered(run.request, ended_ns)
        assert self._agenda is not None, "it has begun"
        for event in self._start(run, ready, ended_ns):
            self._agenda.schedule(event)

    def _abandoned(self, now_ns: int, request: Request) -> _GraphRun | None:
        """Cancel the other stages of a graph one of whose requests has failed; None for a direct request."""
        run, number = self._stages.pop(request.id, (None, 0))
        if run is None:
            return None
        del run.running[number]
        assert self._agenda is not None, "it has begun"
        for other in run.running.values():
            del self._stages[other]
            self._agenda.schedule(RequestCancelled(now_ns, other))
        return run
