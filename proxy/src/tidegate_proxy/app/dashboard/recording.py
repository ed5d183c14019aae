"""Dashboard source for a recorded run: any instant at once; the history is read in the background."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.api import NS_PER_MS, Model, Setup, Worker, WorkerJoined, WorkerLost
from tidegate.observation import Reducer, TopologyChanged
from tidegate.sim.what_if import WhatIfQuestion
from tidegate_proxy.app.dashboard.decisions import latest_decisions
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent, moment_of
from tidegate_proxy.app.dashboard.figures import NS_PER_US, SHOWN_STAGES, WINDOW_NS, FinishedStages, RollingFigures
from tidegate_proxy.app.dashboard.history import History, HistoryReader
from tidegate_proxy.app.dashboard.latency_explanation import LatencyExplanation, explain
from tidegate_proxy.app.dashboard.log_file import LogFile
from tidegate_proxy.app.dashboard.request_facts import RequestFacts, names_of
from tidegate_proxy.app.dashboard.snapshot import DashboardSnapshot, PageHello, StageBar
from tidegate_proxy.app.dashboard.tick_buffer import TickBuffer
from tidegate_proxy.app.dashboard.timeline_builder import LEAD_NS
from tidegate_proxy.app.dashboard.what_if import what_if

LOOK_BACK_NS: Final = 60_000_000_000
MAX_BYTES: Final = 32 << 20
"""Bytes of the log that are read for one instant: in busy logs less than a minute."""
TICK_NS: Final = 1_000_000_000
MOST_OF_TIMELINE: Final = 300_000
"""Number of entries searched for the end of a request."""
_RARE: Final = WorkerJoined | WorkerLost | TopologyChanged


class RecordedRun:
    """Recorded run in an event log. `at`, `timeline` and `what_if` may be called concurrently."""

    def __init__(self, path: Path) -> None:
        """Create the recorded run. Raises OSError, or ValueError if the file is no event log."""
        self._log = LogFile(path)
        self._name = path.name
        self._rare: list[WorkerJoined | WorkerLost | TopologyChanged] = []
        """Changes of models and workers in the part that was read."""
        setup: Setup = self._log.header.setup
        slos_ns = {model.name: model.slo_ns for model in setup.models}
        self._reader = HistoryReader(self._log.first_ns, self._log.last_ns, slos_ns)
        self._reader.know(setup.workers)
        self._stop = threading.Event()
        self._scan = threading.Thread(target=self._read_all, daemon=True, name="history")
        self._scan.start()

    def close(self) -> None:
        """Stop the background reader."""
        self._stop.set()
        self._scan.join()
        self._log.close()

    def hello(self) -> PageHello:
        """Return the first message to the page."""
        length_ms = (self._log.last_ns - self._log.first_ns) / NS_PER_MS
        return PageHello("recording", self._log.header.policy, version("tidegate-proxy"), self._name, length_ms)

    def history(self, since: int) -> History:
        """Return the history of the part that was read."""
        del since  # points that were read already may still change
        return self._reader.history()

    def at(self, at_ms: int) -> DashboardSnapshot:
        """Return the snapshot at an instant, with the stages of the window before it.

        Raises ValueError for a broken log.
        """
        until_ns = self._log.first_ns + at_ms * NS_PER_MS
        figures, recent = RollingFigures(self._log.first_ns), TickBuffer()
        reducer = Reducer(recent)
        models, workers, away = self._as_of(until_ns)
        figures.know(self._all_workers(until_ns))
        taken: list[FinishedStages] = []
        moments: list[BufferedEvent] = []
        next_ns = self._log.first_ns
        for entry, _ in self._log.entries(self._from(until_ns), until_ns):
            now_ns = entry.event.now_ns
            if now_ns >= next_ns:
                taken.append(figures.take(recent.take(), now_ns))
                next_ns = now_ns + TICK_NS
            reducer.handled(entry.event, entry.effects)
            if now_ns > until_ns - TICK_NS:
                moments.append(moment_of(entry))
        taken.append(figures.take(recent.take(), until_ns))
        names, stages = _together(taken, (until_ns - WINDOW_NS - self._log.first_ns) // NS_PER_US)
        slos_ms = {model.name: None if model.slo_ns is None else model.slo_ns / NS_PER_MS for model in models}
        model_rows, more_models = figures.models(slos_ms, reducer.waiting())
        states = [(worker, "away" if worker.id in away else "up") for worker in workers]
        worker_rows, more_workers = figures.workers(states, reducer.sent)
        answers = sum(moment.answers for moment in moments)
        decisions, more_decisions = latest_decisions(reversed(moments), answers, figures.ms, names_of(workers))
        most = SHOWN_STAGES * (WINDOW_NS // TICK_NS)
        return DashboardSnapshot(
            at_ms,
            figures.window_ns / 1e9,
            model_rows,
            more_models,
            worker_rows,
            more_workers,
            figures.shapes(),
            names,
            stages[-most:],
            max(0, len(stages) - most),
            decisions,
            more_decisions,
            figures.worst(),
        )

    async def timeline(self, request_id: int) -> LatencyExplanation | None:
        """Return the timeline of a request, or None if the log does not contain it."""
        return await asyncio.to_thread(self._timeline, request_id)

    def _timeline(self, request_id: int) -> LatencyExplanation | None:
        found = self._log.offset_of(request_id)
        if found is None:
            return None
        arrival = next(self._log.entries(found))[0].event
        models, workers, _ = self._as_of(arrival.now_ns)
        facts = RequestFacts(request_id, models, workers)
        for number, (entry, _) in enumerate(self._log.entries(self._log.offset_at(arrival.now_ns - LEAD_NS))):
            facts.feed([moment_of(entry)])
            if facts.outcome or number > MOST_OF_TIMELINE:
                break
        return explain(facts, names_of(workers), self._ms)

    async def what_if(self, at_ms: int | None) -> object:
        """Simulate the requests of the minute before an instant with other settings. Raises ValueError."""
        until_ns = self._log.last_ns if at_ms is None else self._log.first_ns + at_ms * NS_PER_MS
        moments = await asyncio.to_thread(self._moments, until_ns)
        header = self._log.header
        models, workers, away = self._as_of(until_ns)
        here = tuple(worker for worker in workers if worker.id not in away)
        profiles = header.setup.profiles + tuple(
            profile
            for event in list(self._rare)
            if isinstance(event, TopologyChanged) and event.now_ns <= until_ns
            for profile in event.profiles
        )
        setup = replace(header.setup, models=tuple(models), workers=here, profiles=profiles)
        question = WhatIfQuestion(setup, header.policy, header.options, header.settings, ())
        return await what_if(question, moments, learned=False)

    def _moments(self, until_ns: int) -> list[BufferedEvent]:
        return [moment_of(entry) for entry, _ in self._log.entries(self._from(until_ns), until_ns)]

    def _from(self, until_ns: int) -> int:
        """Where to begin to read for an instant."""
        first = self._log.offset_at(until_ns - LOOK_BACK_NS)
        least = self._log.offset_at(until_ns) - MAX_BYTES
        return first if first >= least else self._log.later(least)

    def _ms(self, at_ns: int) -> float:
        return round((at_ns - self._log.first_ns) / NS_PER_MS, 3)

    def _as_of(self, at_ns: int) -> tuple[list[Model], list[Worker], set[int]]:
        """The models and workers of an instant, and which of these were away, as far as is known."""
        setup: Setup = self._log.header.setup
        models, workers = list(setup.models), {worker.id: worker for worker in setup.workers}
        away: set[int] = set()
        for event in list(self._rare):
            if event.now_ns > at_ns:
                break
            if isinstance(event, WorkerLost):
                away.add(event.worker_id)
            elif isinstance(event, WorkerJoined):
                workers[event.worker.id] = event.worker
                away.discard(event.worker.id)
            else:
                models, workers = list(event.models), {worker.id: worker for worker in event.workers}
                away.intersection_update(workers)
        return models, list(workers.values()), away

    def _all_workers(self, until_ns: int) -> Iterator[Worker]:
        """All that there were up to an instant, in the order in which they came, as far as is known."""
        yield from self._log.header.setup.workers
        for event in list(self._rare):
            if event.now_ns > until_ns:
                return
            yield from _workers_of(event)

    def _read_all(self) -> None:
        """In a thread: the whole of it once."""
        try:
            for entry, _ in self._log.entries(self._log.begin):
                if self._stop.is_set():
                    return
                if isinstance(entry.event, _RARE):
                    self._rare.append(entry.event)
                    self._reader.know(_workers_of(entry.event))
                self._reader.take(entry)
            self._reader.end()
        except (ValueError, msgspec.MsgspecError) as error:
            self._reader.end(str(error))


def _workers_of(event: WorkerJoined | WorkerLost | TopologyChanged) -> Iterable[Worker]:
    """The workers that came with an event."""
    match event:
        case WorkerJoined():
            return (event.worker,)
        case TopologyChanged():
            return event.workers
        case _:
            return ()


def _together(taken: Iterable[FinishedStages], since_us: int) -> tuple[list[str], list[StageBar]]:
    """The stages of several ticks that ended since an instant, over the same names."""
    names: dict[str, int] = {}
    stages = [
        bar._replace(model=names.setdefault(some.names[bar.model], len(names)))
        for some in taken
        for bar in some.bars
        if bar.start_us + bar.took_us >= since_us
    ]
    return list(names), stages
