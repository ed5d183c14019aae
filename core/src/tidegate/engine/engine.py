"""The engine: applies events to the books, asks the policy, checks its commands, tells the driver what to do.

It is pure: two drivers use it, the simulator under virtual time and the proxy under the monotonic clock. A driver
calls `handle(event)` with what happened and carries out the effects; it calls `handle(ClockAdvanced(now))` when
`next_wake_ns` has come.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidegate.api import (
    Advise,
    AnyCommand,
    AnyEvent,
    Batch,
    BatchFailed,
    CancelTimer,
    ClockAdvanced,
    Dispatch,
    Drop,
    EngineSettings,
    FirstComeFirstServed,
    LegFinished,
    Observer,
    PlanChanged,
    Policy,
    PolicyOptions,
    Preempt,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Reroute,
    SetTimer,
    Setup,
    TimerFired,
    TriesChanged,
    WakeSlackUpdated,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine.books import Fleet, Flight, Tally
from tidegate.engine.effects import AnyEffect, CancelLeg, EngineRestarted, Fail, PolicyReplaced, StartLeg
from tidegate.engine.expectations import Expectations
from tidegate.engine.flights import Flights
from tidegate.engine.invariants import BooksBroken, InvariantViolation, check_deadlines, check_dispatch
from tidegate.engine.observers import Observers
from tidegate.engine.refusals import REFUSABLE, check_event
from tidegate.engine.sharing import Sharing
from tidegate.engine.succession import Succession

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
    ) -> None:
        """`strict`: a policy's fault is raised instead of being isolated. `learn`: correct the profiles online.

        `max_tries`: how often a request is tried whose workers fail; then the failure is its answer.
        """
        setup = policy.setup
        self.name = name
        self.tally = Tally()
        self.now_ns = 0
        self._strict = strict
        self._settings = EngineSettings(learn=learn, max_tries=max_tries)
        self._batch_ids = setup.first_batch_id
        self._effects: list[AnyEffect] = []
        self._commands: list[AnyCommand] = []
        self._open_books(policy)
        self.expectations.check(setup.workers, self._models)
        self._observers = Observers(observers, strict=strict)
        self._observers.started(name, policy.options.model_dump(mode="json"), setup, self._settings)

    def _open_books(self, policy: Policy) -> None:
        setup = policy.setup
        self._models = {model.name: model for model in setup.models}
        self._fleet = Fleet(setup.workers, self._models)
        self._workers = self._fleet.workers
        self._bookings = self._fleet.bookings
        self.expectations = Expectations(setup.profiles, learn=self._settings.learn)
        self._queued: dict[int, Request] = {}
        """What waits and the policy knows of; `_sharing` holds the rest."""
        self._flights = Flights(self._fleet, self._leg_started)
        self._tries: dict[int, int] = {}
        self._succession = Succession(policy, self._fleet, self.expectations)
        self._sharing = Sharing(self._fleet, self.expectations, self._succession, self._queued, setup.patience_ns)
        self._reprieved: list[tuple[Request, list[Profile]]] = []
        """Dropped in this event because of expectations that are doubted, which give them another chance."""
        self._learned: list[ProfileUpdated | WakeSlackUpdated] = []
        """What legs that start teach: told at the end of this event, as the policy's commands are not all applied."""

    @property
    def policy(self) -> Policy:
        """The one that decides."""
        return self._succession.policy

    @property
    def max_tries(self) -> int:
        """How often a request is tried whose workers fail; `TriesChanged` changes it."""
        return self._settings.max_tries

    @property
    def next_wake_ns(self) -> int | None:
        """When to call `handle(ClockAdvanced(...))`, unless an event comes before."""
        ours, theirs = self._flights.next_start_ns, self._succession.timers.next_ns
        if (held := self._sharing.next_wake_ns) is not None:
            ours = held if ours is None else min(held, ours)
        return theirs if ours is None else ours if theirs is None else min(ours, theirs)

    @property
    def queued(self) -> int:
        """Requests that wait for a batch."""
        return len(self._queued) + len(self._sharing)

    @property
    def in_flight(self) -> int:
        """Batches that were dispatched and have not ended."""
        return len(self._flights)

    def flight(self, batch_id: int) -> Flight | None:
        """A batch that was dispatched and has not ended."""
        return self._flights.get(batch_id)

    def idle_in_time(self, request: Request, profiles: Mapping[tuple[str, str], Profile]) -> Worker | None:
        """An idle worker on which a request of an unsplit model would be in time by these profiles, started now."""
        model = self._models.get(request.model)
        if model is None or model.pipelines:
            return None
        for (partition, kind), profile in profiles.items():
            if partition == model.name and self.now_ns + profile.latency_ns(request.rows) <= request.deadline_ns:
                for worker in self._fleet.idle(partition, kind):
                    return worker
        return None

    def handle(self, event: AnyEvent) -> list[AnyEffect]:
        """Take in what happened; returns what the driver has to do, in order.

        Raises, and takes nothing in: InvariantViolation when the clock runs backwards or a driver fires a timer;
        ValueError for a worker that joins without the profiles to plan with, or a plan that does not add up. Strict
        engines raise a policy's fault, and their own.
        """
        if event.now_ns < self.now_ns:
            raise InvariantViolation(4, f"an event of {event.now_ns} came after {self.now_ns}")
        if type(event) in REFUSABLE:
            check_event(event, self.policy, self._models, self._bookings, self.expectations)
        before_ns, self.now_ns = self.now_ns, event.now_ns
        self._effects = []
        self._commands = []
        accepted = self.tally.accepted
        try:
            if type(event) is PlanChanged:  # another policy follows, which has set no timers yet
                self._flights.start_due(event.now_ns)
            else:
                self._fire_timers(before_ns)
            self._take_in(event)
            self._settle()
            if self._sharing.is_contended:
                self._take_turns()
        except Exception as fault:
            if self._strict:
                raise
            self.tally.accepted = accepted + isinstance(event, RequestArrived)
            return self.start_anew(event, fault)
        self._effects += self._observers.handled(event, self._commands)
        return self._effects

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
                if flight := self._flights.get(event.batch_id):
                    self._fail_flight(flight, event)
            case WorkerJoined():
                self._join_worker(event)
            case WorkerLost():
                self._lose_worker(event)
            case ProfileUpdated():
                self.expectations.replace(event.profile)
                self._tell(event)
            case PlanChanged():
                self._change_plan(event)
            case TriesChanged():
                self._settings = msgspec.structs.replace(self._settings, max_tries=event.max_tries)
            case ClockAdvanced() | TimerFired():
                pass

    def _arrive(self, event: RequestArrived) -> None:
        request = event.request
        self.tally.accepted += 1
        model = self._models.get(request.model)
        if model is None or not self._fleet.serves(model.name):
            self._fail(request, NO_WORKER)
        elif request.rows > model.max_rows:
            self._fail(request, f"{request.rows} rows; {request.model!r} takes {model.max_rows}")
        else:
            self._await_turn(event)

    def _await_turn(self, event: RequestArrived) -> None:
        """Let the policy know of a request at once, or when it is its turn."""
        if self._sharing.admits(event.request):
            self._queued[event.request.id] = event.request
            self._tell(event)
        else:
            self._sharing.contend(event.now_ns, event.request)

    def _take_turns(self) -> None:
        """Let the policy forget what is not its turn any more, and know of what was held, as it is the turn of that."""
        now_ns = self.now_ns
        called_back = []
        for excess in reversed(self._sharing.excess(now_ns)):
            if self._queued.pop(excess.id, None):  # unless the policy ran or dropped it when told of another
                called_back.append(excess)
                self._tell(RequestCancelled(now_ns, excess.id))
        for excess in reversed(called_back):
            self._sharing.call_back(excess)
        for hopeless in self._sharing.hopeless(now_ns):
            self._sharing.leave(hopeless)
            dropped = Drop(hopeless.id, OUT_OF_TURN)
            self._count_drop(hopeless, dropped)
            self._commands.append(dropped)
        while following := self._sharing.next(now_ns):
            self._queued[following.id] = following
            self._tell(RequestArrived(now_ns, following))
            self._settle()

    def _settle(self) -> None:
        """Do what follows from what was just done."""
        while released := self._succession.next_released():
            self._tell(WorkerJoined(self.now_ns, released))
        while self._reprieved or self._learned:
            self._follow_doubts()

    def _cancel(self, event: RequestCancelled) -> None:
        if request := self._queued.pop(event.request_id, None):
            self._sharing.leave(request)
            self._tell(event)
        elif held := self._sharing.get(event.request_id):
            self._sharing.leave(held)
        elif not self._flights.leave(event.request_id):
            return
        self.tally.cancelled += 1
        self._tries.pop(event.request_id, None)

    def _finish_leg(self, event: LegFinished) -> None:
        flight = self._flights.leg_over(event)
        if flight is None:
            return
        self.expectations.leg_ended(event.now_ns, event.batch_id)
        if flight.leg == len(flight.batch.legs):
            self._answer(flight.requests, event.ended_ns)
        self._tell(event)  # before anything starts: the policy may reroute what is to come
        if flight.doomed:
            self._fail_flight(flight, msgspec.structs.replace(flight.doomed, now_ns=event.now_ns, leg=flight.leg))
        else:
            self._flights.go_on(event.now_ns, flight)
        self._flights.start_next(event.now_ns, event.worker_id)
        # Told of it earlier, a policy would plan with a leg that is over: preempt it, say.
        self._learn(flight.batch.legs[event.leg].partition, event, flight.rows)

    def _answer(self, requests: list[Request], ended_ns: int) -> None:
        late = sum(ended_ns > request.deadline_ns for request in requests)
        if self._tries:
            for request in requests:
                self._tries.pop(request.id, None)
        self.tally.answered += len(requests)
        self.tally.late += late

    def _join_worker(self, event: WorkerJoined) -> None:
        worker = event.worker
        self._lose_worker(WorkerLost(event.now_ns, worker.id))  # it was away, though nobody noticed
        self._fleet.add(worker)
        self._tell(event)
        self._share_anew()

    def _lose_worker(self, event: WorkerLost) -> None:
        self.expectations.worker_lost(event.worker_id)
        known = self._fleet.withdraw(event.worker_id)
        lost = self._bookings.pop(event.worker_id, None)
        if lost is None:
            return
        self._succession.forget(event.worker_id)
        if known:
            self._tell(event)
        for flight in self._flights.affected(lost):  # and were not rerouted
            reason = f"worker {lost.worker.name} was lost"
            failed = BatchFailed(event.now_ns, flight.batch.id, flight.leg, event.worker_id, reason, retry=True)
            if flight.running and flight.batch.legs[flight.leg].worker_id != event.worker_id:
                flight.doomed = failed  # its present worker is not free before it has run this leg
            else:
                self._fail_flight(flight, failed)
        for request in [request for request in self._queued.values() if not self._fleet.serves(request.model)]:
            if self._queued.pop(request.id, None):  # unless the policy dropped it when told of another
                self._fail(request, NO_WORKER)
                self._tell(RequestCancelled(event.now_ns, request.id))
        self._share_anew()

    def _share_anew(self) -> None:
        """Workers came or went: let the policy know of all that waits, from which turns are taken anew."""
        released = self._release_all()
        self._sharing.workers_changed(self.now_ns)
        for request in released:
            if request.id in self._queued:
                self._tell(RequestArrived(self.now_ns, request))

    def _release_all(self) -> list[Request]:
        """What was held and still has workers is queued."""
        released = []
        for request in self._sharing.release_all():
            if self._fleet.serves(request.model):
                self._queued[request.id] = request
                released.append(request)
            else:
                self._fail(request, NO_WORKER)
        return released

    def _change_plan(self, event: PlanChanged) -> None:
        """Another policy of the same kind goes on with the new models and workers; what runs is finished first."""
        wanted = {worker.id: worker for worker in event.workers}
        models = {model.name: model for model in event.models}
        self.expectations.extend(event.profiles)
        self._models, self._succession.network = models, event.network
        self._fleet.serve(models)
        for worker_id in [worker_id for worker_id, worker in self._workers.items() if wanted.get(worker_id) != worker]:
            self._fleet.withdraw(worker_id)
        for worker in event.workers:
            if worker.id not in self._workers:
                self._fleet.add(worker)
        for request in [request for request in self._queued.values() if not self._fleet.serves(request.model)]:
            del self._queued[request.id]
            self._fail(request, NO_WORKER)
        self._release_all()
        self._sharing.workers_changed(event.now_ns)
        policy = self.policy
        self._succeed(lambda setup: type(policy)(setup, policy.options))

    def _fail_flight(self, flight: Flight, event: BatchFailed) -> None:
        self._flights.abort(flight)
        self.expectations.leg_ended(event.now_ns, flight.batch.id)
        again = []
        group_of = {request_id: number for number, group in enumerate(event.apart) for request_id in group}
        for request in flight.requests:
            if request.id in group_of and self._fleet.serves(request.model):
                key = f"{request.merge_key}/{event.batch_id}.{group_of[request.id]}"
                again.append(msgspec.structs.replace(request, merge_key=key))
            elif self._may_try_again(request, flight, event):
                again.append(request)
            else:
                self._fail(request, event.reason)
        self._flights.start_next(event.now_ns, *(leg.worker_id for leg in flight.batch.legs))
        self._tell(event)
        for request in again:
            self._await_turn(RequestArrived(event.now_ns, request))

    def _may_try_again(self, request: Request, flight: Flight, event: BatchFailed) -> bool:
        """Count a try. Preempted requests did nothing wrong and nothing failed: they come back as often as it takes."""
        if not event.retry or not self._fleet.serves(request.model):
            return False
        if flight.preempted:
            return True
        tries = self._tries.get(request.id, 1) + 1
        self._tries[request.id] = tries
        return tries <= self._settings.max_tries and request.deadline_ns > event.now_ns

    def _learn(self, partition: str, event: LegFinished, rows: int) -> None:
        if worker := self._workers.get(event.worker_id):
            learned = self.expectations.observe(partition, worker, rows, event.ended_ns - event.started_ns)
            if learned is not None:
                self._tell(ProfileUpdated(event.now_ns, learned))

    def _follow_doubts(self) -> None:
        """Tell the policy what was learned, and of the requests that it gave up for what was expected before."""
        while self._learned:
            self._tell(self._learned.pop(0))
        if self._reprieved:
            request, profiles = self._reprieved.pop(0)
            for profile in profiles:
                self._tell(ProfileUpdated(self.now_ns, profile))
            self._queued[request.id] = request
            self._tell(RequestArrived(self.now_ns, request))

    def _fire_timers(self, before_ns: int) -> None:
        """Do what is due; `before_ns` is the instant of the event before."""
        now_ns, timers = self.now_ns, self._succession.timers
        if not (timers.is_due(now_ns) or self._flights.is_due(now_ns)):
            return
        wake_ns = self.next_wake_ns
        # What was asked for an instant that had passed was late before anybody could wake.
        if wake_ns is not None and before_ns < wake_ns <= now_ns:
            slack_ns = self._succession.lateness.observe(now_ns - wake_ns)
            if slack_ns is not None:
                self._tell(WakeSlackUpdated(now_ns, slack_ns))
        self._flights.start_due(now_ns)
        if timers.is_due(now_ns):
            for key in timers.pop_due(now_ns):
                self._tell(TimerFired(now_ns, key))

    # What the policy wants ---------------------------------------------------------------------------------------

    def _tell(self, event: AnyEvent) -> None:
        """Let the policy handle an event and apply its commands; a policy that breaks is replaced (invariant 9)."""
        if not self._succession.concerns(event):
            return
        try:
            for command in self._succession.policy.handle(event):
                self._apply(command)
                self._commands.append(command)
        except BooksBroken:
            raise
        except Exception as fault:
            if self._strict:
                raise
            self._replace_policy(fault)

    def _apply(self, command: AnyCommand) -> None:
        """Raises InvariantViolation, which is the policy's fault, and BooksBroken, which is ours."""
        try:
            self._carry_out(command)
        except InvariantViolation:
            raise
        except Exception as fault:
            raise BooksBroken(f"{type(command).__name__}: {type(fault).__name__}: {fault}") from fault

    def _carry_out(self, command: AnyCommand) -> None:
        match command:
            case Dispatch():
                self._dispatch(command.batch)
            case SetTimer():
                self._succession.timers.set(command.key, command.at_ns)
            case CancelTimer():
                self._succession.timers.cancel(command.key)
            case Drop():
                self._drop(command)
            case Preempt():
                self._preempt(command)
            case Reroute():
                self._flights.reroute(self.now_ns, command)
            case Advise():
                self._effects.append(command)
            case _:
                raise InvariantViolation(1, f"{command!r} is no command")

    def _drop(self, command: Drop) -> None:
        request = self._queued.pop(command.request_id, None)
        if request is None:
            raise InvariantViolation(1, f"request {command.request_id} is dropped but not queued")
        if doubted := self.expectations.doubt(self.now_ns, request, self._fleet.idle):
            self._reprieved.append((request, doubted))
            return
        self._sharing.leave(request)
        self._count_drop(request, command)

    def _count_drop(self, request: Request, command: Drop) -> None:
        self.tally.dropped[command.reason] += 1
        self._tries.pop(request.id, None)
        self._effects.append(command)

    def _dispatch(self, batch: Batch) -> None:
        taken, rows = check_dispatch(self.now_ns, self._batch_ids, batch, self._queued, self._models, self._bookings)
        if not self.policy.best_effort:
            check_deadlines(batch, taken, rows, self._workers, self.expectations.profiles)
        self._batch_ids = batch.id + 1
        for request in taken:
            del self._queued[request.id]
        self._sharing.start(batch.model, taken, rows, sum(leg.duration_ns for leg in batch.legs))
        self._flights.depart(self.now_ns, batch, taken, rows)

    def _preempt(self, command: Preempt) -> None:
        flight = self._flights.get(command.batch_id)
        if flight is None or not flight.running:
            raise InvariantViolation(3, f"batch {command.batch_id} is preempted but does not run")
        if not flight.preempted:
            flight.preempted = True
            self._effects.append(CancelLeg(flight.batch, flight.leg))

    def _replace_policy(self, fault: Exception) -> None:
        broken = type(self.policy).__name__
        if type(self.policy) is FirstComeFirstServed:
            raise fault  # nothing is left to fall back on: this is a bug of the engine's own
        self._effects.append(PolicyReplaced(self.name, f"{broken}: {type(fault).__name__}: {fault}"))
        self._succeed(lambda setup: FirstComeFirstServed(setup, PolicyOptions()))

    def _succeed(self, successor: Callable[[Setup], Policy]) -> None:
        """Let another policy decide, from what is queued on."""
        try:
            self._succession.follow(successor, self._batch_ids)
        except Exception as fault:
            if self._strict:
                raise
            self._replace_policy(fault)
            return
        for request in list(self._queued.values()):
            if request.id in self._queued:
                self._tell(RequestArrived(self.now_ns, request))

    def start_anew(self, event: AnyEvent, fault: Exception) -> list[AnyEffect]:
        """A bug of our own met an event: nothing in the books can be relied on, so that every request ends here.

        What the driver has to do (invariant 9). `handle` does it by itself; a driver does where that was in vain.
        """
        workers = dict(self._workers)
        if isinstance(event, WorkerLost):
            workers.pop(event.worker_id, None)
        elif isinstance(event, WorkerJoined):
            workers[event.worker.id] = event.worker
        elif isinstance(event, PlanChanged):
            self._models = {model.name: model for model in event.models}
            self.expectations.extend(event.profiles)
            workers = {worker.id: worker for worker in event.workers}
        setup = self._succession.setup(self._models.values(), workers.values(), self._batch_ids)
        self._open_books(FirstComeFirstServed(setup, PolicyOptions()))
        self.tally.failed += self.tally.accepted - self.tally.ended
        self._effects = [EngineRestarted(self.name, f"{type(fault).__name__}: {fault}")]
        self._effects += self._observers.handled(event, self._commands)
        return self._effects

    def _leg_started(self, effect: StartLeg, kind: str) -> None:
        if recalled := self.expectations.leg_started(self.now_ns, effect.batch, effect.leg, kind):
            self._learned.append(ProfileUpdated(self.now_ns, recalled))
        if (slack_ns := self._succession.lateness.leg_started()) is not None:
            self._learned.append(WakeSlackUpdated(self.now_ns, slack_ns))
        self._effects.append(effect)

    def _fail(self, request: Request, reason: str) -> None:
        self.tally.failed += 1
        self._tries.pop(request.id, None)
        self._effects.append(Fail(request.id, reason))
