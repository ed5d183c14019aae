"""Event handlers: apply each event to the state and pass it to the policy."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from tidegate.api import (
    BatchFailed,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    Policy,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    StageFinished,
    TimerFired,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.engine.kernel.policy_runner import PolicyRunner
from tidegate.engine.kernel.state import EngineState
from tidegate.engine.state_tables import InFlightBatch
from tidegate.observation import (
    AnyStimulus,
    ChangeProgressed,
    ClockAdvanced,
    FirstResponse,
    PolicyChanged,
    PolicyOverran,
    PolicyTuned,
    RetryLimitChanged,
    TopologyChanged,
)


class EventHandlers:
    """Handlers of events: each applies one event to the state."""

    def __init__(
        self, state: EngineState, policy: PolicyRunner, made: Callable[[PolicyChanged, Setup], Policy]
    ) -> None:
        """Create the handlers of an engine. `made` creates the policy that a PolicyChanged names."""
        self._state = state
        self._fleet = state.fleet
        self._flights = state.flights
        self._waiting = state.waiting
        self._expectations = state.expectations
        self._succession = state.succession
        self._policy = policy
        self._made = made

    def take_in(self, event: AnyStimulus) -> None:
        """Apply an event that the engine does not reject."""
        match event:
            case RequestArrived():
                self._arrive(event)
            case StageFinished():
                self._finish_stage(event)
            case RequestCancelled():
                self._cancel(event)
            case BatchFailed():
                self._fail_batch(event)
            case WorkerJoined():
                self._join_worker(event)
            case WorkerLost():
                self._lose_worker(event)
            case ProfileUpdated():
                self._update_profile(event)
            case TopologyChanged():
                self._change_plan(event)
            case PolicyChanged() | PolicyOverran():
                self._change_policy(event)
            case FirstResponse():
                self._respond_first(event)
            case RetryLimitChanged():
                self._state.settings = msgspec.structs.replace(self._state.settings, max_tries=event.max_tries)
            case ClockAdvanced() | TimerFired() | WorkerReady() | WorkerDelayed() | ChangeProgressed() | PolicyTuned():
                pass

    # Requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, event: RequestArrived) -> None:
        state, request = self._state, event.request
        model = state.models.get(request.model)
        if model and request.rows > model.max_rows:
            state.fail(request, f"{request.rows} rows; {request.model!r} takes {model.max_rows}")
        elif not self._fleet.serves(request):
            state.fail_unservable(request)
        else:
            if model and (request.shape or request.app or request.feature):
                if request.feature and self._learns_applications(model):
                    request = state.alone.with_level(request)
                request = self._alone_if_wanted(self._with_class(request, model), model)
                if request is not event.request:
                    event = RequestArrived(event.now_ns, request)
            self._wait(event)

    def _wait(self, event: RequestArrived, *, again: bool = False) -> None:
        """Let the policy know of a request at once, or when it is its turn. `again`: its batch failed."""
        if self._state.reprieved:
            self._policy.follow_doubts()  # they wait, too: whose turn it is depends on all that do
        if self._waiting.arrives(event.now_ns, event.request, again=again):
            self._policy.inform(event)

    def _with_class(self, request: Request, model: Model) -> Request:
        """Return the request with the class of its shape, after the policy received its expected latency."""
        state = self._state
        if state.classes.applies_to(request, model):
            request = state.classes.classify(request)
            for profile in state.classes.moved(model, self._expectations.profiles):
                self._expectations.replace(profile)
                self._policy.inform(ProfileUpdated(state.now_ns, profile))
        if request.shape:
            request, new = self._expectations.meet(request, model)
            for profile in new:
                self._policy.inform(ProfileUpdated(state.now_ns, profile))
        return request

    def _alone_if_wanted(self, request: Request, model: Model) -> Request:
        """The request with a merge key of its own where it is to run alone, so that the policy learns what it takes."""
        state = self._state
        if not (request.app or request.feature) or not self._learns_applications(model):
            return request
        if not state.probes.wants(request, state.alone.samples_wanted(request)):
            return request
        return msgspec.structs.replace(request, merge_key=f"{request.merge_key}{_alone_key(request)}", deferrable=False)

    def _learns_applications(self, model: Model) -> bool:
        """Return whether latency by application is learned for a model, because the policy uses it."""
        if not (self._state.settings.learn and model.merges) or model.pipelines:
            return False
        policy = self._succession.policy
        asks = type(policy).on_latency_distribution_updated is not Policy.on_latency_distribution_updated
        return asks or policy.separate_applications(model.name)

    def _cancel(self, event: RequestCancelled) -> None:
        state = self._state
        seen = self._waiting.leaves(event.request_id)
        if seen:
            self._policy.inform(event)
        elif seen is None and not self._flights.leave(event.request_id):
            return
        state.tries.ended(event.request_id)

    # Batches -----------------------------------------------------------------------------------------------------

    def _finish_stage(self, event: StageFinished) -> None:
        state = self._state
        flight = self._flights.stage_over(event)
        if flight is None:
            return
        self._expectations.stage_ended(event.now_ns, event.batch_id)
        if flight.stage == len(flight.batch.stages):
            state.tries.answered(flight.requests)
        if flight.early_ns and event.started_ns < (began_ns := flight.sent_ns + flight.early_ns):
            event = msgspec.structs.replace(event, started_ns=began_ns)
        duration_ns = self._alone_ns(flight, event) if flight.first_response_ns is None else None
        self._charge(event.ended_ns, flight)
        self._policy.inform(event)  # before anything starts: the policy may reroute what is to come
        self._succession.own_batches.discard(event.batch_id)
        self._policy.tell_ready(event.worker_id)
        if flight.doomed:
            self._fail_flight(flight, msgspec.structs.replace(flight.doomed, now_ns=event.now_ns, stage=flight.stage))
        else:
            self._flights.go_on(event.now_ns, flight)
        self._flights.start_next(event.now_ns, event.worker_id)
        # Earlier, a policy would plan with a stage that is over: preempt it, say.
        if duration_ns is not None:
            self._learn(flight, event, duration_ns)

    def _respond_first(self, event: FirstResponse) -> None:
        flight = self._flights.get(event.batch_id)
        if flight is None or not flight.running or flight.first_response_ns is not None:
            return
        flight.first_response_ns = event.now_ns
        self._learn(flight, event, event.now_ns - event.started_ns)

    def _charge(self, now_ns: int, flight: InFlightBatch) -> None:
        """Charge a request for the time in which it had a worker beyond what was planned."""
        if flight.occupant is not None and flight.sent_ns:
            planned_ns = sum(stage.duration_ns for stage in flight.batch.stages)
            self._waiting.charge(flight.occupant, max(0, now_ns - flight.sent_ns - planned_ns))

    def _alone_ns(self, flight: InFlightBatch, event: StageFinished) -> int | None:
        """Return what a stage that just ended would have taken on an idle worker, in ns; None if unknown."""
        worker = self._fleet.workers.get(event.worker_id)
        if worker is None:
            return None
        partition = flight.batch.stages[event.stage].partition
        profile = self._expectations.profiles[partition, worker.device_class, flight.shape]
        duration_ns = event.ended_ns - event.started_ns
        return self._state.overlap.alone_ns(worker, flight, event.stage, duration_ns, profile)

    def _learn(self, flight: InFlightBatch, event: StageFinished | FirstResponse, duration_ns: int) -> None:
        state = self._state
        if worker := self._fleet.workers.get(event.worker_id):
            partition = flight.batch.stages[event.stage].partition
            if not (flight.requests and _is_sample(flight.requests[0])):
                learned = self._expectations.observe(partition, worker, flight.shape, flight.rows, duration_ns)
                if learned is not None:
                    self._policy.inform(ProfileUpdated(event.now_ns, learned))
            if not (
                state.settings.learn and flight.requests and (flight.requests[0].app or flight.requests[0].feature)
            ):
                return
            moved: Sequence[LatencyDistribution] = ()
            if flight.ran_alone:
                state.probes.ran_alone(flight.requests[0])
                profile = self._expectations.profiles[partition, worker.device_class, flight.shape]
                moved = state.alone.observe(flight.requests[0], worker.device_class, duration_ns, profile)
            elif flight.is_whole and not flight.ran_alone:
                moved = state.alone.observe_batch(flight.requests, worker.device_class, duration_ns)
            for times in moved:
                state.classes.tell(times)
                self._policy.inform(LatencyDistributionUpdated(event.now_ns, times))

    def _fail_batch(self, event: BatchFailed) -> None:
        if flight := self._flights.get(event.batch_id):
            self._fail_flight(flight, event)

    def _fail_flight(self, flight: InFlightBatch, event: BatchFailed) -> None:
        state = self._state
        workers = dict.fromkeys(stage.worker_id for stage in flight.batch.stages[flight.stage :])
        self._charge(event.now_ns, flight)
        self._flights.abort(event.now_ns, flight)
        self._expectations.stage_ended(event.now_ns, flight.batch.id)
        again = []
        group_of = {request_id: number for number, group in enumerate(event.apart) for request_id in group}
        for request in flight.requests:
            if request.id in group_of and self._fleet.serves(request):
                key = f"{request.merge_key}/{event.batch_id}.{group_of[request.id]}"
                again.append(msgspec.structs.replace(request, merge_key=key, deferrable=False))
            elif self._may_try_again(request, flight, event):
                again.append(request)
            else:
                state.fail(request, event.reason)
        self._flights.start_next(event.now_ns, *(stage.worker_id for stage in flight.batch.stages))
        self._policy.inform(event)
        self._succession.own_batches.discard(event.batch_id)
        self._policy.tell_ready(*workers)
        for request in again:
            self._wait(RequestArrived(event.now_ns, request), again=True)

    def _may_try_again(self, request: Request, flight: InFlightBatch, event: BatchFailed) -> bool:
        """Count a try. Preempted requests did nothing wrong and nothing failed: they come back as often as it takes."""
        if not event.retry or not self._fleet.serves(request) or flight.first_response_ns is not None:
            return False
        if flight.preempted:
            return True
        # What was on its way behind a stage that ran has hardly been tried; but it may be what its worker fell over.
        most = self._state.settings.max_tries + (flight.running and flight.early_ns is None)
        wanted_until_ns = max(request.deadline_ns, request.late_until_ns)
        return self._state.tries.count(request) <= most and wanted_until_ns > event.now_ns

    def _update_profile(self, event: ProfileUpdated) -> None:
        """Take over a profile. The first profile of a device class applies to every shape."""
        state, profile = self._state, event.profile
        is_new = profile.key not in self._expectations.profiles
        self._expectations.replace(profile)
        self._policy.inform(event)
        for follows in self._expectations.extend((), state.models.values()) if is_new else ():
            self._policy.inform(ProfileUpdated(event.now_ns, follows))

    # Workers -----------------------------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Send the policy all waiting requests after workers joined or left; fair queueing begins again."""
        state = self._state
        self._policy.follow_doubts()  # what was given up wrongly waits, too
        released = state.release()
        self._waiting.workers_changed(state.now_ns)
        for request in released:
            if request.id in self._waiting.queued:
                self._policy.inform(RequestArrived(state.now_ns, request))

    def _fail_late_unservable(self) -> None:
        for request in self._waiting.pop_unservable_late_requests():
            self._state.fail_unservable(request)

    def _join_worker(self, event: WorkerJoined) -> None:
        worker = event.worker
        self._lose_worker(WorkerLost(event.now_ns, worker.id))  # its loss was not noticed
        self._fleet.add(worker)
        self._succession.offered.add(worker.id)
        self._policy.inform(event)
        self._begin_anew()

    def _lose_worker(self, event: WorkerLost) -> None:
        state = self._state
        self._expectations.worker_lost(event.worker_id)
        state.overlap.forget(event.worker_id)
        known = self._fleet.withdraw(event.worker_id) and not self._succession.is_inherited(event.worker_id)
        lost = self._fleet.bookings.pop(event.worker_id, None)
        if lost is None:
            return
        self._succession.forget(event.worker_id)
        doomed = self._flights.doom(event.now_ns, lost)
        if known:
            self._policy.inform(event)
        for flight in doomed:
            if flight.doomed is None:
                continue  # it was rerouted
            if flight.running and flight.batch.stages[flight.stage].worker_id != event.worker_id:
                # Its present worker is not free before it has run this stage.
                self._flights.cut_off(event.now_ns, flight, event.worker_id)
            else:
                self._fail_flight(flight, flight.doomed)
        self._policy.follow_doubts()  # what was given up wrongly may be unservable, too
        for request in self._waiting.unservable_requests:
            if self._waiting.queued.pop(request.id, None):  # unless the policy dropped it on another event
                state.fail_unservable(request)
                self._policy.inform(RequestCancelled(event.now_ns, request.id))
        self._fail_late_unservable()
        self._begin_anew()

    def _change_plan(self, event: TopologyChanged) -> None:
        """Another policy of the same kind goes on with the new models and workers; what runs is finished first."""
        state, fleet = self._state, self._fleet
        wanted = {worker.id: worker for worker in event.workers}
        models = {model.name: model for model in event.models}
        self._expectations.extend(event.profiles, event.models)
        state.models, self._succession.network = models, event.network
        fleet.serve(models)
        for worker_id in [worker_id for worker_id, worker in fleet.workers.items() if wanted.get(worker_id) != worker]:
            fleet.dismiss(worker_id)
        for worker in event.workers:
            if worker.id not in fleet.workers:
                fleet.add(worker)
        for request in self._waiting.unservable_requests:
            del self._waiting.queued[request.id]
            state.fail_unservable(request)
        self._fail_late_unservable()
        state.release()
        self._waiting.workers_changed(event.now_ns)
        self._policy.succeed(state.policy.migrate)

    def try_policy_again(self) -> None:
        """Retry the policy that failed; waiting requests are queued fairly again by its estimates."""
        if self._policy.try_again():
            self._begin_anew()
            # The policy before may have run what is late.
            self._policy.tell_all(self._waiting.expire(self._state.now_ns))

    def _change_policy(self, event: PolicyChanged | PolicyOverran) -> None:
        """Another policy goes on with the same models and workers; what runs is finished first."""
        if isinstance(event, PolicyOverran):
            self._policy.overran(event)
            return
        state = self._state
        state.release()
        self._waiting.workers_changed(event.now_ns)  # whether models are serialized is the policy's decision
        self._policy.succeed(partial(self._made, event))
        self._policy.tell_all(self._waiting.expire(state.now_ns))  # the policy before may have run what is late


def _alone_key(request: Request) -> str:
    """Return the end of the merge key of a request that runs alone."""
    return f"/alone.{request.id}"


def _is_sample(request: Request) -> bool:
    """Return whether a request ran alone only to find out what its feature says.

    Beside batches that are padded to their longest request, such samples would make the profile's fixed cost vanish.
    """
    return bool(request.feature) and not request.app and request.merge_key.endswith(_alone_key(request))
