"""Passes events to the policy, checks and applies its commands, and replaces a policy that fails."""

from collections.abc import Callable, Iterable, Iterator

from tidegate.api import (
    Advise,
    AnyCommand,
    AnyEvent,
    Batch,
    CancelTimer,
    Dispatch,
    Drop,
    Policy,
    PolicyOptions,
    Preempt,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Reroute,
    SetTimer,
    Setup,
    Stage,
    TimerLatencyUpdated,
    WorkerDelayed,
    WorkerJoined,
    WorkerReady,
)
from tidegate.engine.kernel.invariants import EngineStateError, InvariantViolation, check_deadlines, check_dispatch
from tidegate.engine.kernel.state import EngineState
from tidegate.engine.waiting import DEADLINE_UNREACHABLE, Notification
from tidegate.observation import (
    CancelStage,
    ObserverRemoved,
    PolicyOverran,
    PolicyReplaced,
    PolicyRestored,
    PolicyTraceObserver,
)
from tidegate.toolkit import FirstComeFirstServed


class PolicyRunner:
    """Calls the policy of an engine, and isolates the engine from its failures (invariant 9)."""

    def __init__(
        self, state: EngineState, name: str, *, strict: bool, witness: PolicyTraceObserver | None = None
    ) -> None:
        """Create the runner.

        `name`: name of the policy in reports. `strict`: raise its exceptions instead of falling back.

        `witness`: observer that also sees the events that the policy gets.
        """
        self._state = state
        self._fleet = state.fleet
        self._waiting = state.waiting
        self._expectations = state.expectations
        self._succession = state.succession
        self._overlap = state.overlap
        self._retry = state.retry
        self.name = name
        self._strict = strict
        self.witness = witness
        """Observer that sees what the policy gets; None: none."""
        self.broken_parts: list[str] = []
        """Parts of the policy that broke and were replaced, while the others go on."""

    def choose(self, name: str, policy: Policy) -> None:
        """Make `policy`, which has not failed yet, current under this name."""
        self.name = name
        self.broken_parts.clear()
        self._retry.choose(self._state.now_ns, policy)

    def inform(self, event: AnyEvent) -> None:
        """Pass an event to the policy and apply its commands; replace the policy if it fails."""
        state = self._state
        if not self._succession.concerns(event):
            return
        before = len(state.commands)
        try:
            for command in self._succession.policy.handle(event):
                apply(state, command)
                state.commands.append(command)
        except EngineStateError:
            raise
        except Exception as fault:
            if self._strict:
                raise
            self._replace(fault, len(state.commands) - before)
        if self.witness is not None:
            try:
                self.witness.on_policy_event(event, state.commands[before:] if len(state.commands) > before else ())
            except Exception as fault:
                if self._strict:
                    raise
                self._dismiss(self.witness, fault)

    def _dismiss(self, witness: PolicyTraceObserver, fault: Exception) -> None:
        self.witness = None
        self._state.effects.append(ObserverRemoved(type(witness).__name__, f"{type(fault).__name__}: {fault}"))

    def tell_all(self, news: Iterable[Notification]) -> None:
        """Pass pending notifications to the policy one by one; the next may depend on its commands."""
        for each in news:
            if each is None:
                self.settle()
            elif isinstance(each, Drop):
                self._state.dropped(each)
                self._state.commands.append(each)
            elif type(each) is RequestArrived and each.request.is_late:
                self.show_late([each.request])
            else:
                self.inform(each)

    def tell_ready(self, *worker_ids: int) -> None:
        """Pass WorkerReady for those of these workers that can be given a batch."""
        for worker_id in worker_ids:
            if ready := readiness(self._state, worker_id):
                self.tell(ready)

    def tell(self, news: WorkerDelayed | WorkerReady) -> None:
        """Pass WorkerReady, unless a late request uses the worker first."""
        state = self._state
        late, policy = self._waiting.late, state.policy
        knows = news.worker_id in self._succession.offered
        if self._fleet.serves_late and type(news) is WorkerReady and not knows:
            if policy.is_awaiting(news.worker_id):
                self._give_up_first(news)
                if state.policy is policy and late and (batch := late.batch_for(news.worker_id, news.free_ns)):
                    self._run_late(batch, news)
                    return
            if state.policy is policy and late and (shown := late.to_show_for(news.worker_id)):
                self._delay(news.worker_id)
                self.show_late(shown)  # first, so that they run in one batch
        if state.policy is policy:  # one that followed it meanwhile knew from the start, and may have used it
            if type(news) is WorkerReady:
                self._succession.offered.add(news.worker_id)
            self.inform(news)

    def _give_up_first(self, ready: WorkerReady) -> None:
        """Give up the request that has waited longest for a worker, where it is late there and served all the same."""
        state = self._state
        lost = self._waiting.late.first_too_late(ready.worker_id, ready.free_ns)
        if lost and not state.policy.is_best_effort(lost.model):
            del self._waiting.queued[lost.id]
            if self._waiting.give_up(state.now_ns, lost):
                state.dropped(Drop(lost.id, DEADLINE_UNREACHABLE))
            self.inform(RequestCancelled(state.now_ns, lost.id))

    def _delay(self, worker_id: int) -> None:
        """Tell a policy that overlaps stages that what it knew of a worker is out of date."""
        if self._state.policy.supports_pipelined_dispatch:
            self._succession.offered.discard(worker_id)
            self.inform(WorkerDelayed(self._state.now_ns, worker_id))

    def _run_late(self, requests: list[Request], ready: WorkerReady) -> None:
        """Run a batch that the engine formed; the policy forgets those of its requests that it saw.

        It receives the worker once the batch is over. A policy that breaks meanwhile is followed by one that knows of
        the worker: then all wait as before.
        """
        state, policy, waiting = self._state, self._state.policy, self._waiting
        taken: list[Request] = []
        self._delay(ready.worker_id)
        for request in requests:
            if request.is_late:
                taken.append(request)
            elif state.policy is policy and request.id in waiting.queued:
                del waiting.queued[request.id]
                taken.append(request)
                self.inform(RequestCancelled(state.now_ns, request.id))
            elif given_up := waiting.late.remove(request.id):  # by the policy, on another event
                taken.append(given_up)
        if state.policy is policy:
            self._depart(taken, ready)
            return
        for request in taken:
            if request.is_late:
                waiting.late.call_back(request)
            else:
                waiting.returns(request)
                self.inform(RequestArrived(state.now_ns, request))

    def _depart(self, requests: list[Request], ready: WorkerReady) -> None:
        state, first, rows = self._state, requests[0], sum(request.rows for request in requests)
        profile = self._expectations.profiles[
            first.model, self._fleet.workers[ready.worker_id].device_class, first.shape
        ]
        stages = (Stage(ready.worker_id, first.model, ready.free_ns, profile.upper_ns(rows)),)
        batch = Batch(state.policy.new_batch_id(), first.model, tuple(request.id for request in requests), stages)
        self._succession.own_batches.add(batch.id)
        state.commands.append(Dispatch(batch))
        start_batch(state, batch, requests, rows)

    def show_late(self, requests: Iterable[Request]) -> None:
        """Pass late requests to the policy as arrivals, if it does not see them yet."""
        state = self._state
        for request in requests:
            counted, policy = self._waiting.late.was_seen(request), state.policy
            if counted:
                policy.readmitted_ids.add(request.id)
            self._waiting.queued[request.id] = request
            self.inform(RequestArrived(state.now_ns, request))
            if counted:
                policy.readmitted_ids.discard(request.id)  # one that counts nothing did not ask

    def settle(self) -> None:
        """Pass all consequences of the last commands to the policy."""
        state = self._state
        while self._succession.awaits_workers and (released := self._succession.next_released()):
            self._succession.offered.add(released.id)
            self.inform(WorkerJoined(state.now_ns, released))
        self.follow_doubts()
        while self._waiting.queued and self._overlap.is_due(state.now_ns):
            for news in worker_readiness_events(state):  # of stages that end as soon as what follows them can be there
                self.tell(news)
            self.follow_doubts()

    def succeed(self, successor: Callable[[Setup], Policy]) -> None:
        """Make another policy current, starting from the queued requests."""
        state = self._state
        try:
            self._succession.follow(successor, state.next_batch_id)
        except Exception as fault:
            if self._strict:
                raise
            self._replace(fault)
            return
        self._take_over()

    def _take_over(self) -> None:
        """Tell the policy that has just begun to decide of what is queued."""
        state = self._state
        self._expectations.cover(state.policy.quantile)
        for request in list(self._waiting.queued.values()):
            if request.id in self._waiting.queued:
                self._waiting.watch_deadline(request)
                self.inform(RequestArrived(state.now_ns, request))

    def overran(self, event: PolicyOverran) -> None:
        """Replace a policy that takes too long to decide, unless it is first come, first served already."""
        if type(self._state.policy) is not FirstComeFirstServed:
            took_s, within_s, budget_ms = event.took_ns / 1e9, event.within_ns / 1e9, event.budget_ns / 1e6
            words = f"{took_s:.1f} s of {within_s:.0f} s went into decisions of more than {budget_ms:.0f} ms"
            self._replace(TimeoutError(words))

    def _replace(self, fault: Exception, applied: int | None = None) -> None:
        """`applied`: how many of the commands were in order with which it answered; None: it could not follow."""
        broken = self._state.policy
        if type(broken) is FirstComeFirstServed:
            raise fault  # nothing is left to fall back on: this is a bug of the engine's own
        relief = None if applied is None else broken.fallback(applied)
        part, successor = relief or ("", lambda setup: FirstComeFirstServed(setup, PolicyOptions()))
        reason = f"{type(broken).__name__}: {type(fault).__name__}: {fault}"
        backoff_ns = self._retry.broke(self._state.now_ns)
        self._state.effects.append(PolicyReplaced(self.name, reason, part, backoff_ns))
        if part:
            self.broken_parts.append(part)
        self.succeed(successor)

    def try_again(self) -> bool:
        """Retry the failed policy after its back-off; return whether it is current again."""
        state, retry = self._state, self._retry
        is_whole = type(state.policy) is FirstComeFirstServed
        retry.decides(state.now_ns)
        try:
            self._succession.follow(retry.make if is_whole else state.policy.repaired, state.next_batch_id)
        except Exception as fault:
            if self._strict:
                raise
            backoff_ns = retry.broke(state.now_ns)
            state.effects.append(PolicyReplaced(self.name, f"{type(fault).__name__}: {fault}", backoff_ns=backoff_ns))
            return False
        self.broken_parts.clear()
        state.effects.append(PolicyRestored(self.name))
        self._take_over()
        return True

    def follow_doubts(self) -> None:
        """Pass changed profiles to the policy, and re-queue requests that it dropped because of outdated ones."""
        while self._state.reprieved or self._state.learned:
            self._follow_doubt()

    def _follow_doubt(self) -> None:
        state = self._state
        while state.learned:
            news = state.learned.pop(0)
            if isinstance(news, TimerLatencyUpdated):
                self.inform(news)
            else:
                self.inform(ProfileUpdated(state.now_ns, self._expectations.recall(news)))
        if state.reprieved:
            request, doubted = state.reprieved.pop(0)
            for key in doubted:
                self.inform(ProfileUpdated(state.now_ns, self._expectations.expect_after_doubt(key)))
            self._waiting.returns(request)
            self.inform(RequestArrived(state.now_ns, request))


def readiness(state: EngineState, worker_id: int) -> WorkerReady | None:
    """Return WorkerReady for an idle worker or one whose stage is about to end; None otherwise.

    None also if the worker left the topology or still runs a batch of the previous policy.
    """
    booked = state.fleet.bookings.get(worker_id)
    if booked is None or worker_id not in state.fleet.workers or state.succession.is_inherited(worker_id):
        return None
    now_ns = state.now_ns
    if not booked.stages:
        return WorkerReady(now_ns, worker_id, now_ns)
    if len(booked.stages) > 1 or booked.free_ns is None:
        return None
    booked.free_ns = None if state.overlap.is_late(now_ns, worker_id) else state.overlap.free_ns(now_ns, worker_id)
    return None if booked.free_ns is None else WorkerReady(now_ns, worker_id, booked.free_ns)


def worker_readiness_events(state: EngineState, but_for: int | None = None) -> Iterator[WorkerDelayed | WorkerReady]:
    """Return WorkerReady and WorkerDelayed for workers whose stages are about to end or overdue.

    Tidegate does not announce soon-idle workers while the queue is empty. `but_for`: id of the worker whose stage ends
    with this event; it is announced later.
    """
    bookings = state.fleet.bookings
    for worker_id in state.overlap.pop_late(state.now_ns):
        booked = bookings[worker_id]
        if len(booked.stages) == 1 and booked.free_ns is not None and worker_id != but_for:
            booked.free_ns = None
            if worker_id in state.fleet.workers and not state.succession.is_inherited(worker_id):
                yield WorkerDelayed(state.now_ns, worker_id)
    while state.waiting.queued and (ready_id := state.overlap.pop_ready(state.now_ns)) is not None:
        booked = bookings[ready_id]
        if len(booked.stages) == 1 and state.policy.supports_pipelined_dispatch and ready_id != but_for:
            booked.free_ns = state.now_ns
            if ready := readiness(state, ready_id):
                yield ready


def apply(state: EngineState, command: AnyCommand) -> None:
    """Apply a policy's command and append its effects.

    Raises InvariantViolation, before anything changed, if the policy is at fault; EngineStateError if the engine is.
    """
    try:
        _carry_out(state, command)
    except InvariantViolation:
        raise
    except Exception as fault:
        raise EngineStateError(f"{type(command).__name__}: {type(fault).__name__}: {fault}") from fault


def _carry_out(state: EngineState, command: AnyCommand) -> None:
    match command:
        case Dispatch():
            _dispatch(state, command.batch)
        case SetTimer():
            state.succession.timers.set(command.key, command.at_ns)
        case CancelTimer():
            state.succession.timers.cancel(command.key)
        case Drop():
            _drop(state, command)
        case Preempt():
            _preempt(state, command)
        case Reroute():
            state.flights.reroute(state.now_ns, command)
        case Advise():
            state.effects.append(command)
        case _:
            raise InvariantViolation(1, f"{command!r} is no command")


def _dispatch(state: EngineState, batch: Batch) -> None:
    fleet, queued = state.fleet, state.waiting.queued
    taken, rows = check_dispatch(state.now_ns, state.next_batch_id, batch, queued, state.models, fleet.bookings)
    if not state.policy.is_best_effort(batch.model):
        check_deadlines(batch, taken, rows, fleet.workers, state.expectations.profiles)
    start_batch(state, batch, taken, rows)


def start_batch(state: EngineState, batch: Batch, taken: list[Request], rows: int) -> None:
    """Remove `taken`, the requests of a batch, from their queue and start the batch. `rows`: their rows in total."""
    state.next_batch_id = batch.id + 1
    state.succession.offered.difference_update([stage.worker_id for stage in batch.stages])
    state.waiting.starts(batch.model, taken, rows, sum(stage.duration_ns for stage in batch.stages))
    state.flights.start_batch(state.now_ns, batch, taken, rows)


def _drop(state: EngineState, command: Drop) -> None:
    request = state.waiting.queued.pop(command.request_id, None)
    if request is None:
        raise InvariantViolation(1, f"request {command.request_id} is dropped but not queued")
    if doubted := state.expectations.doubt(state.now_ns, request, state.fleet.idle):
        state.reprieved.append((request, doubted))
        return
    if state.waiting.give_up(state.now_ns, request):
        state.dropped(command)


def _preempt(state: EngineState, command: Preempt) -> None:
    flight = state.flights.get(command.batch_id)
    if flight is None or not flight.running:
        raise InvariantViolation(3, f"batch {command.batch_id} is preempted but does not run")
    if not flight.preempted:
        flight.preempted = True
        state.effects.append(CancelStage(flight.batch, flight.stage))
