"""Live actuator of a controller: executes the actions of a control loop, and reports the state of workers to it.

New workers start as processes beside the running ones, are warmed up, and join at one instant; the old ones finish
their batches and stop. It changes the engine only by stimuli, so the event log contains all of it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidegate.api import NEVER_NS
from tidegate.control import (
    Action,
    ControlLoop,
    LayoutRevision,
    LayoutSteps,
    QueryController,
    StartWorker,
    StopWorker,
    Switch,
)
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Layout
from tidegate_proxy.app.actuation.controller_process import ControllerProcess
from tidegate_proxy.app.actuation.warm_up import NotWarm, warm
from tidegate_proxy.app.tritons import Tritons
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel, in_thread
from tidegate_proxy.deployed.folder import WorkerNotStarted
from tidegate_proxy.deployed.tritons import RunningTritons
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel

if TYPE_CHECKING:
    from tidegate_proxy.configuration.tritons import TritonAddress

log = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 0.05
"""Interval, in seconds, at which it checks during a change whether workers have drained or died."""
AFTERWARDS_S: Final = 10.0
"""Seconds after its startup timeout at which a process that was not stopped ends by itself."""
MAX_REPORTED_STEPS: Final = 100
"""Number of the latest steps of changes that are reported."""
NO_STEPS: Final = (
    "it changes MIG instances, which nothing here creates: set dry_run: true, and carry out what it proposes"
)
"""Reason why steps of a layout are not carried out."""
AT_A_TIME: Final = 4
"""Number of workers that start at once: each uses all its cores while it loads its models."""


@dataclass(eq=False, repr=False)
class Actuator:
    """Actuator that drives one control loop on the monotonic clock. Use it only in the event loop."""

    loop: ControlLoop
    _controller: ControllerProcess
    """Answers the queries of the loop."""
    _tritons: Tritons
    _processes: RunningTritons | None
    """None in a dry run, which starts nothing."""
    _start_limit_s: float

    def __post_init__(self) -> None:
        self._joining: dict[str, tuple[TritonAddress, Backend, list[LoadedModel]]] = {}
        """New workers that are up, by name, until they take part."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: dict[int, asyncio.Task[None]] = {}
        """Starts in progress, by worker."""
        self._room = asyncio.Semaphore(AT_A_TIME)
        self._poked = asyncio.Event()
        self._reported: deque[ChangeProgressed] = deque(maxlen=MAX_REPORTED_STEPS)
        """Reported steps of changes, the latest last."""

    @property
    def layout(self) -> Layout:
        """Current layout."""
        return self.loop.revision.layout

    @property
    def changes_layout(self) -> bool:
        """Whether the actuator may ever start or stop a worker."""
        return self._processes is not None

    def report(self) -> dict[str, Any]:
        """Return the state of the controller as JSON types."""
        change = self.loop.change
        states = {} if change is None else change.workers
        workers = {} if change is None else change.before.workers | change.after.workers
        return {
            "enabled": self.loop.is_enabled,
            "changes_layout": self.changes_layout,
            "change": None if change is None else change.number,
            "workers": {workers[worker_id].name: state for worker_id, state in states.items()},
            "events": [
                {
                    "ago_s": (time.monotonic_ns() - event.now_ns) / 1e9,
                    "change": event.change,
                    "state": event.state,
                    "starts": event.starts,
                    "stops": event.stops,
                    "gpus": event.gpus,
                    "reason": event.reason,
                }
                for event in self._reported
            ],
        }

    async def run(self) -> None:
        """Run forever: query the controller when it is due, and continue the change in progress."""
        while True:
            try:
                async with asyncio.timeout(self._patience_s()):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()
            await self._with_lock(self._turn)

    def halt(self) -> None:
        """Stop all control at once: a change that has not switched yet is rolled back."""
        self._carry_out(self.loop.halt(time.monotonic_ns()))
        self._poked.set()

    def resume(self) -> None:
        """Resume querying the controller."""
        self.loop.resume(time.monotonic_ns())
        self._poked.set()

    async def close(self) -> None:
        """Stop all control; the owner of processes that are starting ends them."""
        self.halt()
        await cancel(*self._tasks, *self._starts.values())
        self._controller.close()
        for _, backend, _ in self._joining.values():
            await self._tritons.part_with(backend)

    # Time --------------------------------------------------------------------------------------------------------

    def _patience_s(self) -> float | None:
        if self.loop.change is not None:
            return DRAIN_POLL_S
        wake_ns = self.loop.next_wake_ns
        return None if wake_ns == NEVER_NS else max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)

    async def _with_lock(self, tell: Callable[[], Sequence[Action]]) -> None:
        """Carry out the actions that follow from news, while no other task changes what the Tritons serve."""
        async with self._tritons.alone:
            with faults.contained("the control of the layout"):  # there is a next time
                self._carry_out(tell())

    def _turn(self) -> list[Action]:
        return self._look() + self.loop.advance(time.monotonic_ns())

    def _look(self) -> list[Action]:
        """See how the workers fare."""
        loop, actions = self.loop, list[Action]()
        for worker_id in loop.revision.ids:
            backend = self._tritons.backend_of(worker_id)
            is_there = backend is not None and backend.alive
            if is_there:
                loop.on_worker_returned(worker_id)
            elif worker_id not in loop.away:
                actions += loop.on_worker_failed(time.monotonic_ns(), worker_id, "its Triton does not answer")
        if loop.change is not None:
            after = loop.change.after.workers
            for worker_id, name in [(each_id, each.name) for each_id, each in after.items()]:
                if name in self._joining and self._processes and not self._processes.is_running(name):
                    why = "its Triton ended once it was warm"
                    actions += loop.on_worker_failed(time.monotonic_ns(), worker_id, why)
        for worker_id in loop.change.draining if loop.change is not None else ():
            backend = self._tritons.backend_of(worker_id)
            if not self._tritons.has_work(worker_id) and not (backend and backend.alive and backend.open_calls):
                actions += loop.on_worker_drained(time.monotonic_ns(), worker_id)
        return actions

    # Orders ------------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case QueryController():
                    self._spawn(self._ask(action))
                case StartWorker():
                    task = self._starts[action.worker_id] = asyncio.create_task(self._start(action))
                    task.add_done_callback(partial(self._started, action.worker_id))
                case Switch():
                    self._switch(action.revision)
                case StopWorker():
                    self._stop(action)
                case ChangeProgressed():
                    self._tell(action)

    async def _ask(self, action: QueryController) -> None:
        answer = await self._controller.ask(action.observation)
        if isinstance(answer, LayoutSteps) and self.changes_layout:
            answer = NO_STEPS
        await self._with_lock(lambda: self._look() + self.loop.on_answer(time.monotonic_ns(), answer))
        self._poked.set()

    async def _start(self, action: StartWorker) -> None:
        """Have a process come up, run each of its models once, and say so, or why not."""
        try:
            await self._come_up(action)
        except (WorkerNotStarted, NotWarm, BackendError) as error:
            why = str(error)
        except Exception as error:  # whatever it is, the change must not wait for ever
            faults.report(f"starting worker {action.worker.name!r}", error)
            why = f"{type(error).__name__}: {error}"
        else:
            await self._with_lock(lambda: self.loop.on_worker_warm(time.monotonic_ns(), action.worker_id))
            return
        await self._with_lock(lambda: self.loop.on_worker_failed(time.monotonic_ns(), action.worker_id, why))

    async def _come_up(self, action: StartWorker) -> None:
        processes, worker = self._processes, action.worker
        assert processes is not None, "a dry run starts nothing"
        async with self._room:
            log.info("worker starting", extra={"worker": worker.name})
            limit_s = self._start_limit_s
            at_most_s = limit_s + AFTERWARDS_S  # the loop undoes the change before, and says why
            triton = await in_thread(lambda: processes.start(action.worker_id, worker, action.layout, at_most_s))
        backend, models = await self._tritons.try_out(triton)
        try:
            for model in models:
                await warm(backend, model, limit_s)
        except BaseException:
            await self._tritons.part_with(backend)
            raise
        log.info("worker warm", extra={"worker": worker.name, "triton": triton.grpc})
        self._joining[worker.name] = triton, backend, models

    def _started(self, worker_id: int, task: "asyncio.Task[None]") -> None:
        self._starts.pop(worker_id, None)

    def _switch(self, revision: LayoutRevision) -> None:
        now_ns = time.monotonic_ns()
        try:
            self._tritons.switch(revision, self._joining)
        except (BackendError, ValueError) as error:
            actions = self.loop.on_switch_failed(now_ns, str(error))
        else:
            self._joining = {}
            actions = self.loop.on_switched(now_ns)
        self._carry_out(actions)

    def _stop(self, action: StopWorker) -> None:
        worker_id, name = action.worker_id, action.worker.name
        if start := self._starts.get(worker_id):
            start.cancel()
        backend = self._joining.pop(name)[1] if name in self._joining else self._tritons.backend_of(worker_id)
        if backend is not None and self._tritons.has_work(worker_id):
            self._tritons.give_up(backend, f"worker {name!r} has not drained in time, and is stopped")
        self._spawn(self._end(worker_id, name, backend))

    async def _end(self, worker_id: int, name: str, backend: Backend | None) -> None:
        if backend is not None:
            await self._tritons.part_with(backend)
        if (processes := self._processes) is not None:
            await in_thread(lambda: processes.stop(worker_id, name))
            log.info("worker stopped", extra={"worker": name})

    def _tell(self, event: ChangeProgressed) -> None:
        fields: dict[str, object] = {"change": event.change, "state": event.state, "error": event.reason}
        fields |= {"starts": ", ".join(event.starts)} if event.starts else {}
        fields |= {"stops": ", ".join(event.stops)} if event.stops else {}
        level = logging.WARNING if event.state in {"undone", "refused"} else logging.INFO
        self._reported.append(event)
        log.log(level, "layout change", extra=fields)
        self._tritons.tell(event)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
