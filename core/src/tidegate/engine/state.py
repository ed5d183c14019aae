"""What an engine knows at the moment: the books, who decides, and what is still to be told."""

from collections.abc import Mapping

from tidegate.api import (
    AnyCommand,
    Drop,
    Policy,
    Profile,
    ProfileKey,
    Request,
    WakeSlackUpdated,
    Worker,
)
from tidegate.engine.alone import AloneTimes
from tidegate.engine.books import Fleet
from tidegate.engine.expectations import Expectations
from tidegate.engine.flights import Flights
from tidegate.engine.hurried import HurriedRequests
from tidegate.engine.late import LateRequests
from tidegate.engine.overlap import Overlap
from tidegate.engine.policy_retry import PolicyRetry
from tidegate.engine.probes import Probes
from tidegate.engine.sharing import Sharing
from tidegate.engine.succession import Succession
from tidegate.engine.time_classes import TimeClasses
from tidegate.engine.tries import Tries
from tidegate.observation import AnyEffect, EngineSettings, Fail, StartLeg

NO_WORKER = "no worker is left that hosts this model"


class State:
    """All that an engine knows: one whose own fault has met an event throws it away and begins with another."""

    def __init__(self, policy: Policy, settings: EngineSettings, retry: PolicyRetry) -> None:
        setup = policy.setup
        self.retry = retry
        self.settings = settings
        self.now_ns = 0
        """The instant of the latest event."""
        self.models = {model.name: model for model in setup.models}
        self.fleet = Fleet(setup.workers, self.models)
        self.expectations = Expectations(setup.profiles, learn=settings.learn, quantile=policy.quantile)
        self.expectations.extend((), setup.models)
        self.alone = AloneTimes(setup.execution_times)
        self.probes = Probes()
        self.overlap = Overlap(settings.first_lead_ns)
        self.queued: dict[int, Request] = {}
        """What waits and the policy knows of; `sharing` holds the rest."""
        self.flights = Flights(self.fleet, self.expectations, self.overlap, self._leg_started)
        self.tries = Tries()
        self.succession = Succession(policy, self.fleet, self.expectations, self.alone)
        self.classes = TimeClasses(lambda: self.policy)
        """Which applications' requests take about as long."""
        for times in setup.execution_times:
            self.classes.tell(times)
        self.sharing = Sharing(self.fleet, self.expectations, self.succession, self.queued, setup.patience_ns)
        self.hurried = HurriedRequests(self.queued, self._has_no_request, self.sharing.hopeless_ns)
        """What of `queued` may wait behind requests that have more time."""
        self.late = LateRequests(self.fleet, self.expectations, self.queued, self._is_free)
        """What cannot be in time any more, and waits to be served all the same."""
        self.next_batch_id = setup.first_batch_id
        """The least that the next batch may be called."""
        self.effects: list[AnyEffect] = []
        """What the driver has to do because of the latest event, in order."""
        self.commands: list[AnyCommand] = []
        """What the policy wanted because of it, and was carried out."""
        self.reprieved: list[tuple[Request, list[ProfileKey]]] = []
        """Dropped in this event because of expectations that are doubted, which give them another chance."""
        self.learned: list[ProfileKey | WakeSlackUpdated] = []
        """What legs that start teach: told at the end of this event, as the policy's commands are not all applied."""

    @property
    def policy(self) -> Policy:
        """The one that decides."""
        return self.succession.policy

    @property
    def next_wake_ns(self) -> int:
        """When something is due: a planned start, a timer, a request that cannot be in time any more where it waits.

        Or a worker is ready for what waits; where nothing does, nobody need wake for that. Or nobody wants the answer
        to a late request any more. NEVER: nothing is due.
        """
        wake_ns, timers = self.flights.next_start_ns, self.succession.timers
        # Asked after every event: who is due no earlier than others need not look for when exactly.
        if timers.earliest_ns < wake_ns:
            wake_ns = min(wake_ns, timers.next_ns)
        if self.sharing.is_contended:
            wake_ns = min(wake_ns, self.sharing.next_wake_ns)
        if self.late.earliest_ns < wake_ns:
            wake_ns = min(wake_ns, self.late.next_ns)
        if self.queued:
            if self.hurried.earliest_ns < wake_ns:
                wake_ns = min(wake_ns, self.hurried.next_ns)
            if self.policy.overlaps:
                wake_ns = min(wake_ns, self.overlap.next_ns)
        return wake_ns

    @property
    def homeless(self) -> list[Request]:
        """What is queued though no worker is left that it can run on."""
        return [request for request in self.queued.values() if not self.fleet.serves(request)]

    def fail_late_homeless(self) -> None:
        """Fail what waits to be served late, is not queued, and has no worker left that it can run on."""
        for request in [request for request in self.late if not self.fleet.serves(request)]:
            self.late.remove(request.id)
            self.fail_homeless(request)

    def enqueue_again(self, request: Request) -> None:
        """Queue a request that was held or on its way before; the policy is to be told."""
        self.queued[request.id] = request
        self.hurried.returns(request)

    def give_up(self, request: Request, dropped: Drop, *, seen: bool = True) -> bool:
        """A request, which is queued no more, cannot be in time. Whether it is dropped: else it is served late.

        `seen`: the policy knew of it.
        """
        self.sharing.leave(request)
        if not request.is_late and request.late_until_ns > self.now_ns:
            self.late.add(request, seen=seen)
            return False
        self.tries.ended(request.id)
        self.effects.append(dropped)
        return True

    def fail(self, request: Request, reason: str) -> None:
        """A request that waits nowhere any more has no answer."""
        self.tries.ended(request.id)
        self.effects.append(Fail(request.id, reason))

    def fail_homeless(self, request: Request) -> None:
        """Fail a request since no worker is left that it can run on."""
        takes_rows = self.fleet.takes_rows(request.model)
        narrow = f"{request.rows} rows; the workers that are left take {takes_rows} of {request.model!r}"
        self.fail(request, narrow if takes_rows else NO_WORKER)

    def idle_in_time(self, request: Request, profiles: Mapping[ProfileKey, Profile]) -> Worker | None:
        """An idle worker on which a request of an unsplit model would be in time by these profiles, started now."""
        model = self.models.get(request.model)
        if model is None or model.pipelines:
            return None
        shape = request.shape
        for (partition, kind, of), profile in profiles.items():
            if (partition, of) != (model.name, shape):
                continue
            if self.now_ns + profile.planned_ns(request.rows) <= request.deadline_ns:
                for worker in self.fleet.idle(partition, kind):
                    return worker
        return None

    def _is_free(self, worker_id: int) -> bool:
        return worker_id in self.fleet.workers and not self.succession.is_inherited(worker_id)

    def _has_no_request(self) -> bool:
        return not (self.queued or self.flights or self.sharing.is_contended)

    def _leg_started(self, effect: StartLeg, kind: str) -> None:
        """A leg is sent to a worker of this kind."""
        if recalled := self.expectations.leg_started(self.now_ns, effect.batch, effect.leg, kind, effect.shape):
            self.learned.append(recalled)
        if (slack_ns := self.succession.lateness.leg_started()) is not None:
            self.learned.append(WakeSlackUpdated(self.now_ns, slack_ns))
        self.effects.append(effect)
