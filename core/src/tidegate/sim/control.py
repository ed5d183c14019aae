"""Simulated layout changes: workers join after a start-up time, and leave when they have drained."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from tidegate.api import NEVER_NS, BatchFailed, StageFinished, WorkerJoined, WorkerLost
from tidegate.control import (
    Action,
    Controller,
    ControlLoop,
    LayoutRevision,
    QueryController,
    StartWorker,
    StopWorker,
    Switch,
    controller_answer,
)
from tidegate.engine import AnyEffect, AnyStimulus, Engine, TopologyChanged
from tidegate.observation import ChangeProgressed
from tidegate.sim.event_queue import EventQueue, ListenerWakeUp


class SimulatedControl:
    """Listener that carries out the actions of a control loop and reports the state of workers to it.

    Every change reaches the engine as a stimulus, so the event log contains it.
    """

    def __init__(
        self,
        controller: Controller,
        loop: ControlLoop,
        engine: Engine,
        *,
        switch: Callable[[int, LayoutRevision], TopologyChanged],
        startup: Callable[[int], int | None],
        until_ns: int,
    ) -> None:
        """Create the listener, which answers the queries of `loop` with `controller`.

        `switch(now_ns, revision)` adds a revision's workers and returns the stimulus for the engine.
        `startup(worker_id)`: start-up time of a worker in ns; None: it never starts. `until_ns`: time from which the
        controller is not asked any more.
        """
        self._controller = controller
        self._loop = loop
        self._engine = engine
        self._switch = switch
        self._startup = startup
        self._until_ns = until_ns
        self._agenda: EventQueue
        self._wake_up: ListenerWakeUp
        self._warm: list[tuple[int, int]] = []
        """When workers that were started will be warm, and their ids: a heap."""

    def begin(self, agenda: EventQueue) -> None:
        """Start control before the first event; `agenda`: queue in which stimuli are scheduled."""
        self._agenda, self._wake_up = agenda, ListenerWakeUp(agenda)
        self._wake()

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Handle an event: report workers' progress to the control loop, and carry out its actions."""
        del effects
        now_ns, loop = event.now_ns, self._loop
        if isinstance(event, WorkerLost):
            self._carry_out(now_ns, loop.on_worker_failed(now_ns, event.worker_id, "it was lost"))
        elif isinstance(event, WorkerJoined):
            loop.on_worker_returned(event.worker.id)
            if event.worker.id not in loop.revision.ids:  # it comes back, and is not wanted any more
                self._agenda.schedule(self._change_of(now_ns, loop.revision))
        while self._warm and self._warm[0][0] <= now_ns:
            self._carry_out(now_ns, loop.on_worker_warm(now_ns, heappop(self._warm)[1]))
        if isinstance(event, TopologyChanged):
            self._carry_out(now_ns, loop.on_switched(now_ns))
        if isinstance(event, StageFinished | BatchFailed | TopologyChanged):
            self._look_for_drained(now_ns)
        if now_ns >= loop.next_wake_ns and (loop.change is not None or now_ns < self._until_ns):
            self._carry_out(now_ns, loop.advance(now_ns))
        self._wake_up.passed(now_ns)
        self._wake()

    def _look_for_drained(self, now_ns: int) -> None:
        change = self._loop.change
        for worker_id in change.draining if change is not None else ():
            if not self._engine.has_work(worker_id):
                self._carry_out(now_ns, self._loop.on_worker_drained(now_ns, worker_id))

    def _carry_out(self, now_ns: int, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case QueryController():
                    answer = controller_answer(self._controller, action.observation)
                    self._carry_out(now_ns, self._loop.on_answer(now_ns, answer))
                case StartWorker():
                    took_ns = self._startup(action.worker_id)
                    if took_ns is not None:
                        heappush(self._warm, (now_ns + took_ns, action.worker_id))
                case Switch():
                    self._agenda.schedule(self._change_of(now_ns, action.revision))
                case StopWorker():
                    self._warm = sorted(entry for entry in self._warm if entry[1] != action.worker_id)
                    if self._engine.has_work(action.worker_id):
                        self._agenda.schedule(WorkerLost(now_ns, action.worker_id))
                case ChangeProgressed():
                    self._agenda.schedule(action)

    def _change_of(self, now_ns: int, revision: LayoutRevision) -> TopologyChanged:
        """Return the topology change for the engine, without workers that are away and come back by themselves."""
        event = self._switch(now_ns, revision)
        here = tuple(worker for worker in event.workers if worker.id not in self._loop.away)
        return TopologyChanged(event.now_ns, event.models, here, event.profiles, event.network)

    def _wake(self) -> None:
        """Schedule the next instant that the loop, or a starting worker, waits for."""
        wake_ns = min(self._loop.next_wake_ns, self._warm[0][0] if self._warm else NEVER_NS)
        if self._loop.change is not None or wake_ns < self._until_ns:
            self._wake_up.schedule(wake_ns)
