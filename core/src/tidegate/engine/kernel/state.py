"""State of an engine: requests, workers, the current policy and pending notifications."""

from collections.abc import Iterable

from tidegate.api import AnyCommand, Drop, Policy, ProfileKey, Request, TimerLatencyUpdated
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.estimates.probes import ProbeCounts
from tidegate.engine.estimates.standalone_latency import StandaloneLatency
from tidegate.engine.estimates.time_classes import TimeClasses
from tidegate.engine.kernel.early_dispatch import EarlyDispatch
from tidegate.engine.kernel.in_flight import InFlightBatches
from tidegate.engine.kernel.policy_handover import PolicyHandover, PolicyRetry
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.waiting import WaitingRequests
from tidegate.observation import AnyEffect, EngineSettings, Fail, StartStage

NO_WORKER = "no worker is left that hosts this model"


class RetryCounter:
    """Counter of the tries of requests that were retried, until they end."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        """How often a request was tried, by its id."""

    def count(self, request: Request) -> int:
        """Count a failed try of a request; return the number of the next one."""
        tries = self._tries[request.id] = self._tries.get(request.id, 1) + 1
        return tries

    def ended(self, request_id: int) -> None:
        """Forget a request that ended."""
        self._tries.pop(request_id, None)

    def answered(self, requests: Iterable[Request]) -> None:
        """Forget requests that were answered."""
        if self._tries:
            for request in requests:
                self._tries.pop(request.id, None)


class EngineState:
    """State of an engine. After an internal error the engine discards it and starts with a new one."""

    def __init__(self, policy: Policy, settings: EngineSettings, retry: PolicyRetry) -> None:
        setup = policy.setup
        self.retry = retry
        self.settings = settings
        self.now_ns = 0
        """The instant of the latest event."""
        self.models = {model.name: model for model in setup.models}
        self.fleet = WorkerTable(setup.workers, self.models)
        self.expectations = Expectations(setup.profiles, learn=settings.learn, quantile=policy.quantile)
        self.expectations.extend((), setup.models)
        self.alone = StandaloneLatency(setup.latency_distributions)
        self.probes = ProbeCounts()
        self.overlap = EarlyDispatch(settings.first_lead_ns)
        self.flights = InFlightBatches(self.fleet, self.expectations, self.overlap, self._stage_started)
        self.tries = RetryCounter()
        self.succession = PolicyHandover(policy, self.fleet, self.expectations, self.alone)
        self.classes = TimeClasses(lambda: self.policy)
        """Classes of applications whose requests take about as long."""
        for times in setup.latency_distributions:
            self.classes.tell(times)
        self.waiting = WaitingRequests(
            self.fleet,
            self.expectations,
            setup.no_slo_max_deferral_ns,
            decides=lambda: self.policy,
            is_free=self._is_free,
            runs=lambda: bool(self.flights),
            floors=settings.priority_floors,
        )
        self.next_batch_id = setup.first_batch_id
        """The least that the next batch may be called."""
        self.effects: list[AnyEffect] = []
        """Effects of the current event for the driver, in order."""
        self.commands: list[AnyCommand] = []
        """Commands of the policy for the current event that were applied."""
        self.reprieved: list[tuple[Request, list[ProfileKey]]] = []
        """Dropped in this event because of expectations that are doubted, which give them another chance."""
        self.learned: list[ProfileKey | TimerLatencyUpdated] = []
        """Profiles changed by stages that started; published at the end of the event, after all commands."""

    @property
    def policy(self) -> Policy:
        """The current policy."""
        return self.succession.policy

    @property
    def next_wake_ns(self) -> int:
        """Time in ns of the next planned start, timer, hopeless request or ready worker; NEVER_NS if there is none."""
        wake_ns, timers = self.flights.next_start_ns, self.succession.timers
        # Asked after every event: who is due no earlier than others need not look for when exactly.
        if timers.earliest_ns < wake_ns:
            wake_ns = min(wake_ns, timers.next_ns)
        wake_ns = self.waiting.next_ns(wake_ns)
        if self.waiting.queued and self.policy.supports_pipelined_dispatch:
            wake_ns = min(wake_ns, self.overlap.next_ns)
        return wake_ns

    def dropped(self, command: Drop) -> None:
        """Record that a request was dropped."""
        self.tries.ended(command.request_id)
        self.effects.append(command)

    def fail(self, request: Request, reason: str) -> None:
        """Record that a request failed."""
        self.tries.ended(request.id)
        self.effects.append(Fail(request.id, reason))

    def fail_unservable(self, request: Request) -> None:
        """Fail a request because no remaining worker can run it."""
        takes_rows = self.fleet.takes_rows(request.model)
        narrow = f"{request.rows} rows; the workers that are left take {takes_rows} of {request.model!r}"
        self.fail(request, narrow if takes_rows else NO_WORKER)

    def release(self) -> list[Request]:
        """Release all throttled requests: return them as queued, or fail those without a worker."""
        released = []
        for request in self.waiting.release():
            if request.id in self.waiting.queued:
                released.append(request)
            else:
                self.fail_unservable(request)
        return released

    def _is_free(self, worker_id: int) -> bool:
        return worker_id in self.fleet.workers and not self.succession.is_inherited(worker_id)

    def _stage_started(self, effect: StartStage, device_class: str) -> None:
        """A stage is sent to a worker of this kind."""
        if recalled := self.expectations.stage_started(
            self.now_ns, effect.batch, effect.stage, device_class, effect.shape
        ):
            self.learned.append(recalled)
        if (slack_ns := self.succession.lateness.stage_started()) is not None:
            self.learned.append(TimerLatencyUpdated(self.now_ns, slack_ns))
        self.effects.append(effect)
