"""Legs that their Triton would merge are sent one after the other has begun: a batch stays what the policy made of it.

A Triton with `dynamic_batching` makes one batch of what waits in a model's queue, whoever made batches of it before: of
two legs for two of its instances one, on one of them, for so long that both miss their deadlines, while the other idles
and nobody knows. A leg waits there for as long as the worker that it was sent to in advance runs another one, and for
some tenths of a millisecond where it is idle. So long the next one is held back, if that costs less than being merged.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.running_legs import LegRun, RunningLegs
from tidegate_proxy.tritons.catalog import Catalog, Directory

if TYPE_CHECKING:
    from tidegate.api import Worker
    from tidegate_proxy.tritons.backend import Backend

BEGINS_WITHIN_NS: Final = 1_000_000
"""How long a leg takes to begin on an idle instance: Triton has merged what was sent .2 to 1 ms apart."""
WORTH: Final = 2
"""A leg is held back where a merged batch would take so many times as much longer."""
LONGEST_NS: Final = 10_000_000
"""No leg is held back longer for the sake of one before it, whatever becomes of that."""

Send = Callable[[], None]


@dataclass(slots=True)
class _Queue:
    """What is known of the queue of one model at one Triton."""

    latest: LegRun | None = None
    """The leg that was sent last, if it may wait there still."""
    is_behind: bool = False
    """Whether it waits for another one to end."""
    until_ns: int = 0
    """When it has begun, as far as is known."""
    timer: asyncio.TimerHandle | None = None
    held: deque[tuple[LegRun, Send]] = field(default_factory=deque)


class Spacing:
    """Holds legs back. Lives in an event loop."""

    def __init__(self, engine: LiveEngine, directory: Directory, running: RunningLegs) -> None:
        self._engine = engine
        self._directory = directory
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._catalog: Catalog | None = None
        self._workers: dict[int, Worker] = {}
        self._largest: dict[tuple[Backend, str], int] = {}
        """The rows of the largest batch that a Triton makes of a model's requests by itself, for several workers."""
        self._queues: dict[Backend, dict[str, _Queue]] = {}

    def send(self, run: LegRun, send: Send) -> None:
        """Have a leg sent: now, or as soon as it stays by itself, which is when it started then."""
        partition = run.effect.batch.legs[run.effect.leg].partition
        if self._directory.catalog is not self._catalog:
            self._look()
        if (run.backend, partition) not in self._largest:
            send()
            return
        queue = self._queues.setdefault(run.backend, {}).setdefault(partition, _Queue())
        if queue.held or self._must_wait(queue, run):
            queue.held.append((run, send))
            self._look_again(queue)
        else:
            self._let_go(queue, run, send)

    def over(self, run: LegRun) -> None:
        """A leg's call is over: what waited behind it has begun."""
        queues = self._queues.get(run.backend)
        if not queues:
            return
        worker = self._workers.get(run.worker_id)
        for partition, queue in list(queues.items()):  # to send may add to them
            if queue.latest is run or (queue.is_behind and worker is not None and partition in worker.hosts):
                queue.latest, queue.is_behind = None, False
                self._go_on(queue)

    def close(self) -> None:
        """Send nothing more of what is held back."""
        for queues in self._queues.values():
            for queue in queues.values():
                queue.held.clear()

    def _go_on(self, queue: _Queue) -> None:
        """Send what need not wait any more."""
        while queue.held:
            run, send = queue.held[0]
            if self._must_wait(queue, run):
                self._look_again(queue)
                return
            queue.held.popleft()
            run.started_ns = time.monotonic_ns()
            self._let_go(queue, run, send)

    def _let_go(self, queue: _Queue, run: LegRun, send: Send) -> None:
        queue.latest, queue.is_behind = run, self._running.is_behind(run)
        queue.until_ns = time.monotonic_ns() + (LONGEST_NS if queue.is_behind else BEGINS_WITHIN_NS)
        send()

    def _look_again(self, queue: _Queue) -> None:
        """Look when what is in the way has begun; event loops wake up early, too."""
        if queue.timer:
            queue.timer.cancel()
        left_ns = queue.until_ns - time.monotonic_ns()
        queue.timer = self._loop.call_later(max(0, left_ns) / 1e9, self._go_on, queue)

    def _must_wait(self, queue: _Queue, run: LegRun) -> bool:
        latest = queue.latest
        return latest is not None and time.monotonic_ns() < queue.until_ns and self._is_better_apart(latest, run)

    def _is_better_apart(self, latest: LegRun, run: LegRun) -> bool:
        """Whether Triton would merge the two, and it would cost more than to wait."""
        engine, leg = self._engine.engine, run.effect.batch.legs[run.effect.leg]
        flight, worker = engine.flight(run.batch_id), self._workers.get(run.worker_id)
        rows = latest.effect.rows + run.effect.rows
        if not flight or not worker or rows > self._largest.get((run.backend, leg.partition), 0):
            return False
        profile = engine.expectations.profiles.get((leg.partition, worker.kind, flight.shape))
        if not profile or rows > profile.max_rows:
            return False
        alone_ns = profile.expected_ns(max(latest.effect.rows, run.effect.rows))
        return profile.expected_ns(rows) - alone_ns > WORTH * BEGINS_WITHIN_NS

    def _look(self) -> None:
        """The Tritons have changed."""
        catalog = self._catalog = self._directory.catalog
        self._workers = {worker.id: worker for worker in catalog.workers}
        self._largest = {}
        for backend, models in catalog.loaded.items():
            hosts = [worker.hosts for worker in catalog.workers if catalog.backend_of[worker.id] is backend]
            for config in (model.config for model in models):
                if config.HasField("dynamic_batching") and sum(config.name in each for each in hosts) > 1:
                    self._largest[backend, config.name] = config.max_batch_size
        for backend in self._queues.keys() - catalog.loaded.keys():
            del self._queues[backend]  # what is held back there is sent by its timer
