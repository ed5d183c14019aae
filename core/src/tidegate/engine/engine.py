"""The engine: applies events to the books, asks the policy, checks its commands, tells the driver what to do.

It is pure: two drivers use it, the simulator under virtual time and the proxy under the monotonic clock. A driver
calls `handle(event)` with what happened and carries out the effects; it calls `handle(ClockAdvanced(now))` when
`next_wake_ns` has come.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidegate.api import (
    AnyCommand,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Drop,
    EngineSettings,
    FirstComeFirstServed,
    LegFinished,
    Observer,
    PlanChanged,
    Policy,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    TimerFired,
    TriesChanged,
    WakeSlackUpdated,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.engine import commands
from tidegate.engine.books import Flight, Tally
from tidegate.engine.effects import AnyEffect, EngineRestarted, PolicyReplaced, StartLeg
from tidegate.engine.expectations import Expectations
from tidegate.engine.invariants import BooksBroken, InvariantViolation
from tidegate.engine.observers import Observers
from tidegate.engine.readiness import due_news, readiness
from tidegate.engine.refusals import REFUSABLE, check_event
from tidegate.engine.state import State

NO_WORKER = "no worker is left that hosts this model"
MAX_TRIES = 2
"""Unless somebody decides otherwise, a request whose worker failed is tried once more."""
OUT_OF_TURN = "share"
"""Why a request is dropped whose time ran out while it was the turn of others: its client had more than they."""


class Engine:
    """One policy over one sub-cluster."""

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
    ) -> None:
        """`strict`: a policy's fault is raised instead of being isolated. `learn`: correct the profiles online.

        `max_tries`: how often a request is tried whose workers fail; then the failure is its answer. `first_lead_ns`:
        how early, before a leg is expected to end, the first batch is sent behind it; 0: never.
        """
        setup = policy.setup
        self.name = name
        self.tally = Tally()
        self._strict = strict
        self._settings = EngineSettings(learn=learn, max_tries=max_tries, first_lead_ns=first_lead_ns)
        self._commands: list[AnyCommand] = []
        self._state = self._begin(policy)
        self._state.expectations.check(setup.workers, self._state.models)
        self._observers = Observers(observers, strict=strict)
        self._observers.started(name, policy.options.model_dump(mode="json"), setup, self._settings)

    def _begin(self, policy: Policy) -> State:
        return State(policy, self.tally, self._settings, self._leg_started)

    @property
    def now_ns(self) -> int:
        """The instant of the latest event."""
        return self._state.now_ns

    @property
    def expectations(self) -> Expectations:
        """The profiles as they stand."""
        return self._state.expectations

    @property
    def policy(self) -> Policy:
        """The one that decides."""
        return self._state.policy

    @property
    def max_tries(self) -> int:
        """How often a request is tried whose workers fail; `TriesChanged` changes it."""
        return self._settings.max_tries

    @property
    def next_wake_ns(self) -> int | None:
        """When to call `handle(ClockAdvanced(...))`, unless an event comes before."""
        return self._state.next_wake_ns

    @property
    def queued(self) -> int:
        """Requests that wait for a batch."""
        return len(self._state.queued) + len(self._state.sharing)

    @property
    def in_flight(self) -> int:
        """Batches that were dispatched and have not ended."""
        return len(self._state.flights)

    def flight(self, batch_id: int) -> Flight | None:
        """A batch that was dispatched and has not ended."""
        return self._state.flights.get(batch_id)

    def idle_in_time(self, request: Request, profiles: Mapping[tuple[str, str], Profile]) -> Worker | None:
        """An idle worker on which a request of an unsplit model would be in time by these profiles, started now."""
        return self._state.idle_in_time(request, profiles)

    def handle(self, event: AnyEvent) -> list[AnyEffect]:
        """Take in what happened; returns what the driver has to do, in order.

        Raises, and takes nothing in: InvariantViolation when the clock runs backwards or a driver fires a timer;
        ValueError for a worker that joins without the profiles to plan with, or a plan that does not add up. Strict
        engines raise a policy's fault, and their own.
        """
        state = self._state
        before_ns = state.now_ns
        if event.now_ns < before_ns:
            raise InvariantViolation(4, f"an event of {event.now_ns} came after {before_ns}")
        if type(event) in REFUSABLE:
            check_event(event, self.policy, state.models, state.fleet.bookings, state.expectations)
        state.now_ns = event.now_ns
        state.effects = []
        self._commands = []
        accepted = self.tally.accepted
        try:
            if type(event) is PlanChanged:  # another policy follows, which has set no timers yet
                state.flights.start_due(event.now_ns)
            else:
                self._fire_timers(before_ns)
                if self._state.overlap.is_due(event.now_ns):
                    # A worker whose leg ends with this event is told after that.
                    ends = event.worker_id if isinstance(event, LegFinished | BatchFailed) else None
                    for news in due_news(self._state, ends):
                        self._tell(news)
            self._take_in(event)
            self._settle()
            if state.sharing.is_contended:
                self._take_turns()
        except Exception as fault:
            if self._strict:
                raise
            self.tally.accepted = accepted + isinstance(event, RequestArrived)
            return self.start_anew(event, fault)
        state.effects += self._observers.handled(event, self._commands)
        return state.effects

    def close(self) -> list[AnyEffect]:
        """The last event is past: observers close what they have open. What the driver has to know of that."""
        return self._observers.close()

    # What happened -----------------------------------------------------------------------------------------------

    def _take_in(self, event: AnyEvent) -> None:
        match event:
            case RequestArrived():
                self._arrive(event)
            case LegFinished():
                self._finish_leg(event)
            case RequestCancelled():
                self._cancel(event)
            case BatchFailed():
                if flight := self._state.flights.get(event.batch_id):
                    self._fail_flight(flight, event)
            case WorkerJoined():
                self._join_worker(event)
            case WorkerLost():
                self._lose_worker(event)
            case ProfileUpdated():
                self._state.expectations.replace(event.profile)
                self._tell(event)
            case PlanChanged():
                self._change_plan(event)
            case TriesChanged():
                self._settings = msgspec.structs.replace(self._settings, max_tries=event.max_tries)
            case ClockAdvanced() | TimerFired() | WorkerReady() | WorkerDelayed():
                pass

    def _arrive(self, event: RequestArrived) -> None:
        request = event.request
        self.tally.accepted += 1
        model = self._state.models.get(request.model)
        if model and request.rows > model.max_rows:
            self._fail(request, f"{request.rows} rows; {request.model!r} takes {model.max_rows}")
        elif not self._state.fleet.serves(request):
            self._fail_homeless(request)
        else:
            self._await_turn(event)

    def _await_turn(self, event: RequestArrived) -> None:
        """Let the policy know of a request at once, or when it is its turn."""
        if self._state.sharing.admits(event.request):
            self._state.queued[event.request.id] = event.request
            self._tell(event)
        else:
            self._state.sharing.contend(event.now_ns, event.request)

    def _take_turns(self) -> None:
        """Let the policy forget what is not its turn any more, and know of what was held, as it is the turn of that."""
        state, now_ns = self._state, self.now_ns
        sharing = state.sharing
        if excessive := sharing.excess(now_ns):
            called_back = []
            for excess in reversed(excessive):
                if state.queued.pop(excess.id, None):  # unless the policy ran or dropped it when told of another
                    called_back.append(excess)
                    self._tell(RequestCancelled(now_ns, excess.id))
            for excess in reversed(called_back):
                sharing.call_back(excess)
        for hopeless in sharing.hopeless(now_ns):
            sharing.leave(hopeless)
            dropped = Drop(hopeless.id, OUT_OF_TURN)
            state.outcomes.drop(hopeless, OUT_OF_TURN)
            state.effects.append(dropped)
            self._commands.append(dropped)
        while following := sharing.next(now_ns):
            state.queued[following.id] = following
            self._tell(RequestArrived(now_ns, following))
            self._settle()

    def _settle(self) -> None:
        """Do what follows from what was just done."""
        state = self._state
        while state.succession.awaits_workers and (released := state.succession.next_released()):
            self._tell(WorkerJoined(self.now_ns, released))
        while state.reprieved or state.learned:
            self._follow_doubts()
        while self._state.queued and self._state.overlap.is_due(self.now_ns):
            for news in due_news(self._state):  # of legs that end as soon as what follows them can be there
                self._tell(news)

    def _cancel(self, event: RequestCancelled) -> None:
        if request := self._state.queued.pop(event.request_id, None):
            self._state.sharing.leave(request)
            self._tell(event)
        elif held := self._state.sharing.get(event.request_id):
            self._state.sharing.leave(held)
        elif not self._state.flights.leave(event.request_id):
            return
        self._state.outcomes.cancel(event.request_id)

    def _finish_leg(self, event: LegFinished) -> None:
        flight = self._state.flights.leg_over(event)
        if flight is None:
            return
        self._state.expectations.leg_ended(event.now_ns, event.batch_id)
        if flight.leg == len(flight.batch.legs):
            self._state.outcomes.answer(flight.requests, event.ended_ns)
        if flight.early_ns and event.started_ns < (began_ns := flight.sent_ns + flight.early_ns):
            event = msgspec.structs.replace(event, started_ns=began_ns)
        duration_ns = self._alone_ns(flight, event)
        self._tell(event)  # before anything starts: the policy may reroute what is to come
        self._tell_ready(event.worker_id)
        if flight.doomed:
            self._fail_flight(flight, msgspec.structs.replace(flight.doomed, now_ns=event.now_ns, leg=flight.leg))
        else:
            self._state.flights.go_on(event.now_ns, flight)
        self._state.flights.start_next(event.now_ns, event.worker_id)
        # Told of it earlier, a policy would plan with a leg that is over: preempt it, say.
        if duration_ns is not None:
            self._learn(flight.batch.legs[event.leg].partition, event, flight.rows, duration_ns)

    def _join_worker(self, event: WorkerJoined) -> None:
        worker = event.worker
        self._lose_worker(WorkerLost(event.now_ns, worker.id))  # it was away, though nobody noticed
        self._state.fleet.add(worker)
        self._tell(event)
        self._share_anew()

    def _lose_worker(self, event: WorkerLost) -> None:
        self._state.expectations.worker_lost(event.worker_id)
        self._state.overlap.forget(event.worker_id)
        known = self._state.fleet.withdraw(event.worker_id)
        lost = self._state.fleet.bookings.pop(event.worker_id, None)
        if lost is None:
            return
        self._state.succession.forget(event.worker_id)
        if known:
            self._tell(event)
        for flight in self._state.flights.affected(lost):  # and were not rerouted
            reason = f"worker {lost.worker.name} was lost"
            failed = BatchFailed(event.now_ns, flight.batch.id, flight.leg, event.worker_id, reason, retry=True)
            if flight.running and flight.batch.legs[flight.leg].worker_id != event.worker_id:
                flight.doomed = failed  # its present worker is not free before it has run this leg
            else:
                self._fail_flight(flight, failed)
        for request in self._state.homeless:
            if self._state.queued.pop(request.id, None):  # unless the policy dropped it when told of another
                self._fail_homeless(request)
                self._tell(RequestCancelled(event.now_ns, request.id))
        self._share_anew()

    def _share_anew(self) -> None:
        """Workers came or went: let the policy know of all that waits, from which turns are taken anew."""
        released = self._release_all()
        self._state.sharing.workers_changed(self.now_ns)
        for request in released:
            if request.id in self._state.queued:
                self._tell(RequestArrived(self.now_ns, request))

    def _release_all(self) -> list[Request]:
        """What was held and still has workers is queued."""
        released = []
        for request in self._state.sharing.release_all():
            if self._state.fleet.serves(request):
                self._state.queued[request.id] = request
                released.append(request)
            else:
                self._fail_homeless(request)
        return released

    def _change_plan(self, event: PlanChanged) -> None:
        """Another policy of the same kind goes on with the new models and workers; what runs is finished first."""
        fleet = self._state.fleet
        wanted = {worker.id: worker for worker in event.workers}
        models = {model.name: model for model in event.models}
        self._state.expectations.extend(event.profiles)
        self._state.models, self._state.succession.network = models, event.network
        fleet.serve(models)
        for worker_id in [worker_id for worker_id, worker in fleet.workers.items() if wanted.get(worker_id) != worker]:
            fleet.withdraw(worker_id)
        for worker in event.workers:
            if worker.id not in fleet.workers:
                fleet.add(worker)
        for request in self._state.homeless:
            del self._state.queued[request.id]
            self._fail_homeless(request)
        self._release_all()
        self._state.sharing.workers_changed(event.now_ns)
        policy = self.policy
        self._succeed(lambda setup: type(policy)(setup, policy.options))

    def _fail_flight(self, flight: Flight, event: BatchFailed) -> None:
        workers = dict.fromkeys(leg.worker_id for leg in flight.batch.legs[flight.leg :])
        self._state.flights.abort(event.now_ns, flight)
        self._state.expectations.leg_ended(event.now_ns, flight.batch.id)
        again = []
        group_of = {request_id: number for number, group in enumerate(event.apart) for request_id in group}
        for request in flight.requests:
            if request.id in group_of and self._state.fleet.serves(request):
                key = f"{request.merge_key}/{event.batch_id}.{group_of[request.id]}"
                again.append(msgspec.structs.replace(request, merge_key=key, deferrable=False))
            elif self._may_try_again(request, flight, event):
                again.append(request)
            else:
                self._fail(request, event.reason)
        self._state.flights.start_next(event.now_ns, *(leg.worker_id for leg in flight.batch.legs))
        self._tell(event)
        self._tell_ready(*workers)
        for request in again:
            self._await_turn(RequestArrived(event.now_ns, request))

    def _may_try_again(self, request: Request, flight: Flight, event: BatchFailed) -> bool:
        """Count a try. Preempted requests did nothing wrong and nothing failed: they come back as often as it takes."""
        if not event.retry or not self._state.fleet.serves(request):
            return False
        if flight.preempted:
            return True
        # What was on its way behind a leg that ran has hardly been tried; but it may be what its worker fell over.
        most = self._settings.max_tries + (flight.running and flight.early_ns is None)
        return self._state.outcomes.count_try(request) <= most and request.deadline_ns > event.now_ns

    def _tell_ready(self, *worker_ids: int) -> None:
        for worker_id in worker_ids:
            if ready := readiness(self._state, worker_id):
                self._tell(ready)

    def _alone_ns(self, flight: Flight, event: LegFinished) -> int | None:
        """What a leg that has just ended would have taken on an idle worker; None where that is not known."""
        worker = self._state.fleet.workers.get(event.worker_id)
        if worker is None:
            return None
        profile = self._state.expectations.profiles[flight.batch.legs[event.leg].partition, worker.kind]
        duration_ns = event.ended_ns - event.started_ns
        return self._state.overlap.alone_ns(worker, flight, event.leg, duration_ns, profile)

    def _learn(self, partition: str, event: LegFinished, rows: int, duration_ns: int) -> None:
        if worker := self._state.fleet.workers.get(event.worker_id):
            learned = self._state.expectations.observe(partition, worker, rows, duration_ns)
            if learned is not None:
                self._tell(ProfileUpdated(event.now_ns, learned))

    def _follow_doubts(self) -> None:
        """Tell the policy what was learned, and of the requests that it gave up for what was expected before."""
        while self._state.learned:
            self._tell(self._state.learned.pop(0))
        if self._state.reprieved:
            request, profiles = self._state.reprieved.pop(0)
            for profile in profiles:
                self._tell(ProfileUpdated(self.now_ns, profile))
            self._state.queued[request.id] = request
            self._tell(RequestArrived(self.now_ns, request))

    def _fire_timers(self, before_ns: int) -> None:
        """Do what is due; `before_ns` is the instant of the event before.

        A policy is told of its timer at the instant that it asked for, or that of the event before where that is later,
        whenever its driver woke: what it waited for with an idle worker is not lost for a wake-up that came late.
        """
        state = self._state
        now_ns, timers = state.now_ns, state.succession.timers
        if not (timers.is_due(now_ns) or state.flights.is_due(now_ns)):
            return
        wake_ns, slack_ns = self.next_wake_ns, None
        # What was asked for an instant that had passed was late before anybody could wake.
        if wake_ns is not None and before_ns < wake_ns <= now_ns:
            slack_ns = self._state.succession.lateness.observe(now_ns - wake_ns)
        self._state.flights.start_due(now_ns)
        if timers.is_due(now_ns):
            for at_ns, key in timers.pop_due(now_ns):
                self._state.now_ns = max(at_ns, before_ns)
                self._tell(TimerFired(self._state.now_ns, key))
            self._state.now_ns = now_ns
        if slack_ns is not None:
            self._tell(WakeSlackUpdated(now_ns, slack_ns))

    # Who decides -------------------------------------------------------------------------------------------------

    def _tell(self, event: AnyEvent) -> None:
        """Let the policy handle an event and apply its commands; a policy that breaks is replaced (invariant 9)."""
        state = self._state
        if not state.succession.concerns(event):
            return
        try:
            for command in state.succession.policy.handle(event):
                commands.apply(state, command)
                self._commands.append(command)
        except BooksBroken:
            raise
        except Exception as fault:
            if self._strict:
                raise
            self._replace_policy(fault)

    def _replace_policy(self, fault: Exception) -> None:
        broken = type(self.policy).__name__
        if type(self.policy) is FirstComeFirstServed:
            raise fault  # nothing is left to fall back on: this is a bug of the engine's own
        self._state.effects.append(PolicyReplaced(self.name, f"{broken}: {type(fault).__name__}: {fault}"))
        self._succeed(lambda setup: FirstComeFirstServed(setup, PolicyOptions()))

    def _succeed(self, successor: Callable[[Setup], Policy]) -> None:
        """Let another policy decide, from what is queued on."""
        try:
            self._state.succession.follow(successor, self._state.next_batch_id)
        except Exception as fault:
            if self._strict:
                raise
            self._replace_policy(fault)
            return
        for request in list(self._state.queued.values()):
            if request.id in self._state.queued:
                self._tell(RequestArrived(self.now_ns, request))

    def start_anew(self, event: AnyEvent, fault: Exception) -> list[AnyEffect]:
        """A bug of our own met an event: nothing in the books can be relied on, so that every request ends here.

        What the driver has to do (invariant 9). `handle` does it by itself; a driver does where that was in vain.
        """
        workers = dict(self._state.fleet.workers)
        if isinstance(event, WorkerLost):
            workers.pop(event.worker_id, None)
        elif isinstance(event, WorkerJoined):
            workers[event.worker.id] = event.worker
        elif isinstance(event, PlanChanged):
            self._state.models = {model.name: model for model in event.models}
            self._state.expectations.extend(event.profiles)
            workers = {worker.id: worker for worker in event.workers}
        setup = self._state.succession.setup(self._state.models.values(), workers.values(), self._state.next_batch_id)
        now_ns, self._state = self.now_ns, self._begin(FirstComeFirstServed(setup, PolicyOptions()))
        self._state.now_ns = now_ns
        self.tally.failed += self.tally.accepted - self.tally.ended
        self._state.effects = [EngineRestarted(self.name, f"{type(fault).__name__}: {fault}")]
        self._state.effects += self._observers.handled(event, self._commands)
        return self._state.effects

    def _leg_started(self, effect: StartLeg, kind: str) -> None:
        if recalled := self._state.expectations.leg_started(self.now_ns, effect.batch, effect.leg, kind):
            self._state.learned.append(ProfileUpdated(self.now_ns, recalled))
        if (slack_ns := self._state.succession.lateness.leg_started()) is not None:
            self._state.learned.append(WakeSlackUpdated(self.now_ns, slack_ns))
        self._state.effects.append(effect)

    def _fail_homeless(self, request: Request) -> None:
        takes_rows = self._state.fleet.takes_rows(request.model)
        narrow = f"{request.rows} rows; the workers that are left take {takes_rows} of {request.model!r}"
        self._fail(request, narrow if takes_rows else NO_WORKER)

    def _fail(self, request: Request, reason: str) -> None:
        self._state.effects.append(self._state.outcomes.fail(request, reason))
