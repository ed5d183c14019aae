"""Runs the tuner of a policy in virtual time. Its comparisons take as long as their CPU time does within its budget."""

from collections.abc import Sequence

from tidegate.api import WorkerJoined, WorkerLost
from tidegate.control.settings import TuningOptions
from tidegate.engine import AnyEffect, AnyStimulus, Engine, TopologyChanged
from tidegate.host import Plugins
from tidegate.sim.event_queue import EventQueue, ListenerWakeUp
from tidegate.sim.recent_traffic import RecentTraffic
from tidegate.sim.tuning.candidates import candidates_of, first_candidate
from tidegate.sim.tuning.policy_comparison import Comparison, compare
from tidegate.sim.tuning.traffic_window import MAX_REQUESTS, window_of
from tidegate.sim.tuning.tuner import CpuBudget, PolicyTuner


class SimulatedTuning:
    """A listener that lets a tuner look at the simulated engine's traffic, and schedules its events."""

    def __init__(self, engine: Engine, options: TuningOptions, plugins: Plugins, *, until_ns: int) -> None:
        """`until_ns`: the tuner is not asked from then on."""
        first = first_candidate(plugins, engine.name, options.model_dump(exclude_unset=True))
        self._tuner = PolicyTuner(options, first, lambda setup: candidates_of(setup, plugins))
        self._budget = CpuBudget(options.cpu_fraction, 0)
        self._engine = engine
        self._plugins = plugins
        self._until_ns = until_ns
        self._traffic = RecentTraffic(max_requests=MAX_REQUESTS)
        engine.reducer.add_listener(self._traffic)
        self._agenda: EventQueue
        self._wake_up: ListenerWakeUp
        self._found: tuple[int, Comparison] | None = None
        """The comparison that runs: when it ends, and its result."""

    def begin(self, agenda: EventQueue) -> None:
        """Reset the state before the first event."""
        self._agenda, self._wake_up = agenda, ListenerWakeUp(agenda)
        self._wake()

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Handle an event: begin a comparison that is due, or carry out what follows from one."""
        del effects
        now_ns, tuner = event.now_ns, self._tuner
        if isinstance(event, WorkerLost | WorkerJoined | TopologyChanged):
            self._traffic.clear()
            self._found = None
            tuner.disturbed(now_ns)
        if self._found is not None and now_ns >= self._found[0]:
            found, self._found = self._found[1], None
            self._schedule(tuner.decide(now_ns, found))
        if tuner.next_wake_ns <= now_ns < self._until_ns:
            job, events = tuner.begin(window_of(self._traffic, self._engine, tuner.since_ns, now_ns))
            self._schedule(events)
            if job is not None:
                found = compare(job, self._plugins)
                self._found = now_ns + max(found.cpu_ns, self._budget.spend(now_ns, found.cpu_ns)), found
        self._wake_up.passed(now_ns)
        self._wake()

    def _schedule(self, events: Sequence[AnyStimulus]) -> None:
        for event in events:
            self._agenda.schedule(event)

    def _wake(self) -> None:
        """Schedule the next instant that the tuner, or a running comparison, waits for."""
        wake_ns = self._tuner.next_wake_ns if self._found is None else self._found[0]
        if wake_ns < self._until_ns:
            self._wake_up.schedule(wake_ns)
