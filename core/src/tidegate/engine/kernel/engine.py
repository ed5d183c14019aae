"""The engine: applies events to its state, calls the policy, checks its commands and returns effects for the driver.

It is pure: the simulator drives it in virtual time, the proxy on the monotonic clock. A driver passes each event to
`handle(event)` and carries out the effects; it calls `handle(ClockAdvanced(now))` when `next_wake_ns` has come.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    BatchFailed,
    Policy,
    PolicyOptions,
    Profile,
    ProfileKey,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    StageFinished,
    TimerFired,
    TimerLatencyUpdated,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.kernel.event_handlers import EventHandlers
from tidegate.engine.kernel.invariants import InvariantViolation
from tidegate.engine.kernel.policy_runner import PolicyRunner, worker_readiness_events
from tidegate.engine.kernel.state import EngineState, Policies, PolicyRetry
from tidegate.engine.kernel.validation import validate
from tidegate.engine.state_tables import InFlightBatch, Reservations
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    ClockAdvanced,
    EngineRestarted,
    EngineSettings,
    Observer,
    ObserverRemoved,
    OutcomeCounts,
    PolicyChanged,
    PolicyOverran,
    PolicyTraceObserver,
    Reducer,
    RequestTimeline,
    TimelineRecorder,
    TopologyChanged,
)
from tidegate.toolkit import FirstComeFirstServed


class Observers:
    """Observers of one engine; isolates the engine from their exceptions."""

    def __init__(self, observers: Sequence[Observer], *, strict: bool) -> None:
        """Create the list. `strict`: exceptions of observers reach the caller, as for the assertions of tests."""
        self._observers = list(observers)
        self._strict = strict
        self._removed: list[AnyEffect] = []
        """Not yet reported."""
        self.watch = bool(observers)
        """Whether anybody watches, or did and is still to be reported: `handled` need not be called otherwise."""

    def add(self, observer: Observer) -> None:
        """Add an observer, which sees everything from the next event on."""
        self._observers.append(observer)
        self.watch = True

    def remove(self, observer: Observer) -> None:
        """Remove an observer; without effect if it was removed already."""
        self._observers = [each for each in self._observers if each is not observer]
        self.watch = bool(self._observers or self._removed)

    def started(self, policy: str, options: dict[str, object], setup: Setup, settings: EngineSettings) -> None:
        """Notify the observers before the first event of the policy's name, options, setup and engine settings."""
        for observer in tuple(self._observers):
            try:
                observer.started(policy, options, setup, settings)
            except Exception as fault:
                self._remove(observer, fault)

    def handled(self, event: AnyStimulus, commands: list[AnyCommand], effects: list[AnyEffect]) -> list[AnyEffect]:
        """Notify the observers of an event; return the effects that concern observers since the last one."""
        broken = []
        for observer in self._observers:
            try:
                observer.handled(event, commands, effects)
            except Exception as fault:
                broken.append((observer, fault))
        for observer, raised in broken:
            self._remove(observer, raised)
        return self._reported() if self._removed else []

    def close(self) -> list[AnyEffect]:
        """Notify the observers after the last event."""
        for observer in tuple(self._observers):
            try:
                observer.close()
            except Exception as fault:
                self._remove(observer, fault)
        return self._reported()

    def _remove(self, observer: Observer, fault: Exception) -> None:
        if self._strict:
            raise fault
        self._observers.remove(observer)
        self._removed.append(ObserverRemoved(type(observer).__name__, f"{type(fault).__name__}: {fault}"))

    def _reported(self) -> list[AnyEffect]:
        removed, self._removed = self._removed, []
        self.watch = bool(self._observers)
        return removed


REFUSABLE_EVENTS = frozenset({WorkerJoined, TopologyChanged, PolicyChanged, TimerFired, WorkerReady, WorkerDelayed})
"""Event types that can be rejected; all others are always applied."""


def check_event(event: AnyStimulus, state: EngineState, policies: Policies | None) -> None:
    """Raise an error if an engine in this state must reject an event; nothing is changed.

    `policies`: creates a policy by name; None: the engine keeps its own. Raises ValueError for a worker without
    profiles, an inconsistent topology or a policy that cannot be created, InvariantViolation for a timer.
    """
    try:
        match event:
            case WorkerJoined():
                state.expectations.check([event.worker], state.models)
                state.policy.check_worker(event.worker)
            case TopologyChanged():
                _check_plan(event, state.policy, state.fleet.bookings, state.expectations)
            case PolicyChanged():
                _check_policy(event, state, policies)
            case TimerFired() | WorkerReady() | WorkerDelayed():
                raise InvariantViolation(3, f"{type(event).__name__} comes from the engine, not from its driver")
    except (InvariantViolation, ValueError):
        raise
    except Exception as fault:  # such as a policy's, over models that it does not expect
        raise ValueError(f"the check of {type(event).__name__} broke: {type(fault).__name__}: {fault}") from fault


def _check_policy(event: PolicyChanged, state: EngineState, policies: Policies | None) -> None:
    if policies is None:
        raise ValueError("this engine keeps its policy: make it with Engine(..., policies=plugins.make_policy)")
    setup = state.succession.setup(state.models.values(), (), state.next_batch_id)
    try:
        policy = policies(event.policy, setup, event.options)
        policy.check_plan(state.models.values(), state.fleet.workers.values())
    except Exception as fault:
        raise ValueError(f"policy {event.policy!r} cannot take over: {fault}") from fault


def _check_plan(
    event: TopologyChanged, policy: Policy, bookings: Mapping[int, Reservations], expectations: Expectations
) -> None:
    wanted = {worker.id: worker for worker in event.workers}
    for worker_id, booked in bookings.items():
        if booked.stages and wanted.get(worker_id, booked.worker) != booked.worker:
            raise ValueError(f"{booked.worker.name!r} is busy and is to be another worker: give that a new id")
    policy.check_plan(event.models, event.workers)
    extended = Expectations(expectations.profiles.values(), learn=False)
    extended.extend(event.profiles, event.models)
    extended.check(event.workers, {model.name: model for model in event.models})


_FOLLOWED = frozenset({TopologyChanged, PolicyChanged, PolicyOverran})
"""Events with which another policy takes over."""
MAX_TRIES = 2
"""Default number of tries of a request whose workers fail."""
MAX_FAULTS = 3
"""Number of successive internal errors while the state is rebuilt after which all waiting requests fail."""


class Engine:
    """Scheduling engine: one policy over one sub-cluster. Handles events and returns effects for its driver."""

    def __init__(
        self,
        policy: Policy,
        *,
        name: str,
        strict: bool = False,
        learn: bool = True,
        observers: Sequence[Observer] = (),
        max_tries: int = MAX_TRIES,
        first_lead_ns: int = 0,
        timelines: TimelineRecorder | None = None,
        policies: Policies | None = None,
        priority_floors: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Create the engine of a policy, under the name that reports and metrics show.

        `strict`: raise a policy's exception instead of falling back. `learn`: correct the profiles by observations.
        `max_tries`: number of tries of a request whose workers fail; then it fails. `first_lead_ns`: initial lead of
        early dispatch in ns; 0: none. `timelines`: records what `timeline` returns; None: nothing. `policies`: creates
        the policy of a PolicyChanged; None: such events are rejected. `priority_floors`: fraction of worker time that a
        priority class keeps, by priority.
        """
        setup = policy.setup
        self.name = name
        """The name of the policy that decides, as long as it does not break."""
        self.reducer = Reducer()
        """Derives the outcome of requests and stages from the stream; drivers and metrics add listeners.

        An exception in a listener is an error of the driver; use an observer for code that must be isolated.
        """
        self._strict = strict
        self._timelines = timelines
        self._witness: PolicyTraceObserver | None = timelines
        self._policies = policies
        settings = EngineSettings(
            learn=learn, max_tries=max_tries, first_lead_ns=first_lead_ns, priority_floors=dict(priority_floors)
        )
        self._retry = PolicyRetry(policy)
        self._begin(policy, settings)
        self._state.expectations.check(setup.workers, self._state.models)
        self._observers = Observers([*observers, timelines] if timelines else observers, strict=strict)
        self._observers.started(name, policy.options.model_dump(mode="json"), setup, settings)

    def _begin(self, policy: Policy, settings: EngineSettings) -> None:
        self._state = EngineState(policy, settings, self._retry)
        self._policy = PolicyRunner(self._state, self.name, strict=self._strict, witness=self._witness)
        self._intake = EventHandlers(self._state, self._policy, self._made)

    @property
    def tally(self) -> OutcomeCounts:
        """Counts of ended requests by outcome."""
        return self.reducer.tally

    @property
    def now_ns(self) -> int:
        """Time of the last event, in ns."""
        return self._state.now_ns

    @property
    def expectations(self) -> Expectations:
        """The current profiles."""
        return self._state.expectations

    @property
    def decides(self) -> str:
        """Name of the current policy, and of the fallback where it or a part of it failed."""
        if type(self._state.policy) is FirstComeFirstServed:
            return f"first come, first served, as {self.name} broke"
        broken = self._policy.broken_parts
        return f"{self.name} without {' and '.join(broken)}, which broke" if broken else self.name

    @property
    def policy(self) -> Policy:
        """The current policy."""
        return self._state.policy

    @property
    def current_setup(self) -> Setup:
        """The setup of a policy that would start now: models, workers that are there, and profiles."""
        state = self._state
        return state.succession.setup(state.models.values(), state.fleet.workers.values(), 0)

    @property
    def settings(self) -> EngineSettings:
        """The current settings."""
        return self._state.settings

    @property
    def max_tries(self) -> int:
        """Number of tries of a request whose workers fail; `RetryLimitChanged` changes it."""
        return self._state.settings.max_tries

    @property
    def next_wake_ns(self) -> int | None:
        """Time for the next `handle(ClockAdvanced(...))`, in ns, unless an event comes first; None: never."""
        wake_ns = self._state.next_wake_ns
        return None if wake_ns == NEVER_NS else wake_ns

    @property
    def queued(self) -> int:
        """Number of requests that wait for a batch."""
        return len(self._state.waiting)

    @property
    def in_flight(self) -> int:
        """Number of batches in flight."""
        return len(self._state.flights)

    def flight(self, batch_id: int) -> InFlightBatch | None:
        """Return the batch in flight with this id; None if there is none."""
        return self._state.flights.get(batch_id)

    def has_work(self, worker_id: int) -> bool:
        """Whether a worker has reservations, including those that a worker finishes after it left the topology."""
        booked = self._state.fleet.bookings.get(worker_id)
        return booked is not None and bool(booked.stages)

    def is_awaited(self, worker_id: int) -> bool:
        """Whether a further stage may follow at once when the running stage of a worker ends."""
        booked = self._state.fleet.bookings.get(worker_id)
        return self.queued > 0 or booked is None or len(booked.stages) > 1

    def idle_on_time(self, request: Request, profiles: Mapping[ProfileKey, Profile]) -> Worker | None:
        """Return an idle worker on which a request would be on time if it started now; None if there is none.

        `profiles`: profiles to use. For split models it returns None.
        """
        state = self._state
        model = state.models.get(request.model)
        if model is None or model.pipelines:
            return None
        for (partition, device_class, shape), profile in profiles.items():
            if (partition, shape) != (model.name, request.shape):
                continue
            if state.now_ns + profile.upper_ns(request.rows) <= request.deadline_ns:
                for worker in state.fleet.idle(partition, device_class):
                    return worker
        return None

    def handle(self, event: AnyStimulus) -> list[AnyEffect]:
        """Apply an event; return the effects for the driver, in order.

        Raises InvariantViolation if the clock runs backwards or a driver fires a timer, and ValueError for a worker
        without profiles, an inconsistent topology or a policy that cannot be created; then nothing is applied. A strict
        engine also raises exceptions of its policy and its own.
        """
        state = self._state
        before_ns = state.now_ns
        if event.now_ns < before_ns:
            raise InvariantViolation(4, f"an event of {event.now_ns} came after {before_ns}")
        if type(event) in REFUSABLE_EVENTS:
            check_event(event, state, self._policies)
        state.now_ns = event.now_ns
        state.effects, state.commands = [], []
        try:
            if type(event) is WorkerLost:
                state.fleet.lose(event.worker_id)
            elif type(event) is WorkerJoined:  # its loss was not noticed
                state.fleet.lose(event.worker.id)
            if type(event) in _FOLLOWED:  # another policy follows, which has set no timers yet
                state.flights.start_due(event.now_ns)
            else:
                self._fire_timers(before_ns)
                self._pass_time(event)
            self._intake.take_in(event)
            self._settle()
        except Exception as fault:
            if self._strict:
                raise
            return self.rebuild_state(event, fault)
        if state.effects or type(event) is not ClockAdvanced:
            self.reducer.handled(event, state.effects)
        if self._observers.watch:
            state.effects += self._observers.handled(event, state.commands, state.effects)
        return state.effects

    def _pass_time(self, event: AnyStimulus) -> None:
        """Give up what waits in vain by now, and tell of workers that are about to be free, or are late."""
        state = self._state
        if state.waiting.is_due(event.now_ns):
            self._policy.tell_all(state.waiting.expire(event.now_ns))
        if state.overlap.is_due(event.now_ns):
            # A worker whose stage ends with this event is announced after that.
            ends = event.worker_id if isinstance(event, StageFinished | BatchFailed) else None
            for news in worker_readiness_events(state, ends):
                self._policy.tell(news)

    def _settle(self) -> None:
        """Tell what follows from the event, then whose turn it is."""
        self._policy.settle()
        waiting = self._state.waiting
        if waiting.is_shared:
            self._policy.tell_all(waiting.advance(self._state.now_ns))

    def timeline(self, request_id: int) -> RequestTimeline | None:
        """Return the timeline of a request; None if it is unknown, or was forgotten.

        Raises ValueError if the engine was created without `timelines`.
        """
        if self._timelines is None:
            raise ValueError("this engine keeps no timelines: make it with Engine(..., timelines=TimelineRecorder())")
        return self._timelines.of(request_id)

    def validate(self) -> None:
        """Check the state tables against each other, between events; for tests, because it reads everything.

        Raises InconsistentStateError with all contradictions.
        """
        validate(self._state, self.reducer)

    def attach(self, witness: PolicyTraceObserver) -> None:
        """Attach an observer that also sees the events that the policy gets, from the next event on.

        Detached, it costs nothing. Raises ValueError if such an observer is attached already.
        """
        if self._witness is not None:
            raise ValueError(f"this engine has a witness, {type(self._witness).__name__}: dismiss it first")
        self._witness = self._policy.witness = witness
        self._observers.add(witness)

    def detach(self, witness: PolicyTraceObserver) -> None:
        """Detach such an observer; without effect if it raised an exception and was removed."""
        if self._witness is witness:
            self._witness = self._policy.witness = None
        self._observers.remove(witness)

    def close(self) -> list[AnyEffect]:
        """Close the observers after the last event; return effects that concern them."""
        return self._observers.close()

    def rebuild_state(self, event: AnyStimulus, fault: Exception) -> list[AnyEffect]:
        """Rebuild the state after an internal error while `event` was handled; return effects for the driver.

        The outcome of earlier events (`reducer`) stays: running stages go on, and waiting requests wait again. Requests
        that the event names fail, unless it ends them (invariant 9). `handle` calls this itself; a driver calls it if
        `handle` raised.

        `fault`: the exception.
        """
        before, reducer = self._state, self.reducer
        ran = self._sent_requests()
        named = self._named_by(event)
        models = {reducer.open[request_id].model for request_id in named if request_id in reducer.open}
        reducer.handled(event, ())
        running = self._sent_requests()
        waiting = [request for request in reducer.open.values() if request.id not in running]
        failed = {request.id for request in waiting if request.id in named}
        for request in waiting:
            suspect = not models or request.model in models or request.id in ran
            if suspect and before.tries.count(request) > before.settings.max_tries:
                failed.add(request.id)
        faults = 0
        while (met := self._make_books(event, before, [each for each in waiting if each.id not in failed])) is not None:
            faults += 1
            failed |= {met} if faults < MAX_FAULTS else {request.id for request in waiting}
        state = self._state
        for request_id in failed:
            state.tries.ended(request_id)
        reason = f"{type(fault).__name__}: {fault}"
        state.effects.insert(0, EngineRestarted(self.name, reason, tuple(sorted(failed)), tuple(reducer.sent)))
        reducer.handled(ClockAdvanced(event.now_ns), state.effects)
        state.effects += self._observers.handled(event, before.commands + state.commands, state.effects)
        return state.effects

    def _sent_requests(self) -> set[int]:
        """The ids of the requests in batches of which a stage runs."""
        return {request_id for sent in self.reducer.sent.values() for request_id in sent.effect.batch.request_ids}

    def _named_by(self, event: AnyStimulus) -> Sequence[int]:
        """The ids of the requests that an event is about."""
        match event:
            case RequestArrived():
                self.reducer.open[event.request.id] = event.request
                return (event.request.id,)
            case RequestCancelled():
                return (event.request_id,)
            case StageFinished() | BatchFailed():
                sent = self.reducer.sent.get(event.batch_id)
                return sent.effect.batch.request_ids if sent else ()
        return ()

    def _make_books(self, event: AnyStimulus, before: EngineState, waiting: Sequence[Request]) -> int | None:
        """Begin with new books: the stages that run, then `waiting`. Returns the id of a request that breaks them
        again.

        None: they are made. `before`: the books that the event broke, of which only workers and profiles are read.
        """
        workers = dict(before.fleet.workers)
        if isinstance(event, WorkerLost):
            workers.pop(event.worker_id, None)
        elif isinstance(event, WorkerJoined):
            workers[event.worker.id] = event.worker
        elif isinstance(event, TopologyChanged):
            before.models = {model.name: model for model in event.models}
            before.expectations.extend(event.profiles, event.models)
            workers = {worker.id: worker for worker in event.workers}
        sent = self.reducer.sent.values()
        leaving = {
            stage.worker_id: before.fleet.bookings[stage.worker_id].worker
            for stage in sent
            if stage.worker_id not in workers
        }
        setup = before.succession.setup(
            before.models.values(), [*workers.values(), *leaving.values()], before.next_batch_id
        )
        self._begin(FirstComeFirstServed(setup, PolicyOptions()), before.settings)
        state, now_ns = self._state, event.now_ns
        state.now_ns, state.tries = now_ns, before.tries
        state.retry.broke(now_ns)
        for stage in sent:
            requests = [
                request for number in stage.effect.batch.request_ids if (request := self.reducer.open.get(number))
            ]
            state.flights.resume(now_ns, stage, requests)
        for worker_id in leaving:
            state.fleet.dismiss(worker_id)
        met = None
        try:
            state.succession.follow(state.policy.migrate, state.next_batch_id)
            for request in waiting:
                met = request.id
                self._intake.take_in(RequestArrived(now_ns, request))
            self._settle()
        except Exception:
            if met is None:
                raise
            return met
        return None

    def _made(self, event: PolicyChanged, setup: Setup) -> Policy:
        """The policy that was asked for, which was tried before."""
        assert self._policies is not None, "it was checked"
        policy = self._policies(event.policy, setup, event.options)
        self.name = event.policy
        self._policy.choose(event.policy, policy)
        return policy

    def _fire_timers(self, before_ns: int) -> None:
        """Do what is due; `before_ns` is the instant of the event before.

        A timer fires at the instant that the policy asked for, or at that of the event before if that is later,
        whenever its driver woke: what it waited for with an idle worker is not lost for a wake-up that came late.
        """
        state = self._state
        if self._retry.at_ns <= state.now_ns:
            self._intake.try_policy_again()
        now_ns, timers = state.now_ns, state.succession.timers
        # The earliest timer may be dead unless the driver has asked when to wake: asking must not make a difference.
        if (now_ns < timers.earliest_ns or now_ns < timers.next_ns) and not state.flights.is_due(now_ns):
            return
        wake_ns, slack_ns = state.next_wake_ns, None
        # What was asked for an instant that had passed was late before anybody could wake.
        if before_ns < wake_ns <= now_ns:
            slack_ns = state.succession.lateness.observe(now_ns - wake_ns)
        state.flights.start_due(now_ns)
        if timers.earliest_ns <= now_ns:
            for at_ns, key in timers.pop_due(now_ns):
                state.now_ns = max(at_ns, before_ns)
                self._policy.inform(TimerFired(state.now_ns, key))
            state.now_ns = now_ns
        if slack_ns is not None:
            self._policy.inform(TimerLatencyUpdated(now_ns, slack_ns))
