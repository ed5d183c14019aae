"""State of an engine: requests, workers, pending notifications, and the current policy with its replacement."""

from collections.abc import Callable, Iterable
from typing import Any

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    AnyEvent,
    BatchFailed,
    Drop,
    Model,
    Policy,
    ProfileKey,
    Request,
    Setup,
    StageFinished,
    TimerLatencyUpdated,
    Worker,
)
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.estimates.shapes import TimeClasses
from tidegate.engine.estimates.standalone_latency import ProbeCounts, StandaloneLatency
from tidegate.engine.kernel.in_flight import EarlyDispatch, InFlightBatches
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.timers import TimerLatency, Timers
from tidegate.engine.waiting import WaitingRequests
from tidegate.observation import AnyEffect, EngineSettings, Fail, StartStage

NO_WORKER = "no worker is left that hosts this model"


class PolicyHandover:
    """Current policy, and the workers that still run batches of the previous one.

    A new policy gets idle workers at once, and the others when they have finished the previous policy's batches, whose
    events it does not see.
    """

    def __init__(
        self, policy: Policy, fleet: WorkerTable, expectations: Expectations, alone: StandaloneLatency
    ) -> None:
        setup = policy.setup
        self.policy = policy
        self.timers = Timers()
        """The timers that the policy has set."""
        self.network = setup.network
        """Network for the transfers of the next policy."""
        self.lateness = TimerLatency(setup.timer_latency_ns)
        """How late its timers fire."""
        self._seed, self._patience_ns = setup.seed, setup.no_slo_max_deferral_ns
        self._fleet = fleet
        self._expectations = expectations
        self._alone = alone
        self.offered = {worker.id for worker in setup.workers}
        """The idle workers, by id, that the policy knows of: the engine uses no such worker by itself."""
        self.own_batches: set[int] = set()
        """The batches on their way, by id, that the engine formed."""
        self._busy: set[int] = set()
        """Workers with work of the policy before."""

    @property
    def awaits_workers(self) -> bool:
        """Whether workers have work of the policy before."""
        return bool(self._busy)

    def is_inherited(self, worker_id: int) -> bool:
        """Whether a worker runs a batch of the previous policy; it joins the current one afterwards."""
        return worker_id in self._busy

    def concerns(self, event: AnyEvent) -> bool:
        """Whether an event is passed to the current policy: ends of other policies' batches are not."""
        if type(event) is StageFinished or type(event) is BatchFailed:  # isinstance costs more
            return event.batch_id >= self.policy.setup.first_batch_id and event.batch_id not in self.own_batches
        return True

    def follow(self, successor: Callable[[Setup], Policy], first_batch_id: int) -> None:
        """Make another policy current, starting with the idle workers. Raises whatever `successor` raises."""
        fleet = self._fleet
        busy = {worker_id for worker_id, booked in fleet.bookings.items() if booked.stages}
        idle = [worker for worker in fleet.workers.values() if worker.id not in busy]
        self.policy = successor(self.setup(fleet.models.values(), idle, first_batch_id))
        self.timers.clear()
        self._busy = busy
        self.offered = {worker.id for worker in idle}

    def setup(self, models: Iterable[Model], workers: Iterable[Worker], first_batch_id: int) -> Setup:
        """Return the setup of the next policy with these models and workers, and the current profiles.

        `first_batch_id`: smallest id that was never used.
        """
        profiles = tuple(self._expectations.profiles.values())
        slack_ns, no_slo_max_deferral_ns = self.lateness.slack_ns, self._patience_ns
        return Setup(
            tuple(models),
            tuple(workers),
            profiles,
            self._seed,
            first_batch_id,
            slack_ns,
            self.network,
            no_slo_max_deferral_ns,
            self._alone.known,
        )

    def forget(self, worker_id: int) -> None:
        """Forget a lost worker."""
        self._busy.discard(worker_id)

    def next_released(self) -> Worker | None:
        """Return a worker that finished the previous policy's work and is still part of the topology; None if none."""
        for worker_id in sorted(self._busy):
            if not self._fleet.bookings[worker_id].stages:
                self._busy.remove(worker_id)
                if worker := self._fleet.workers.get(worker_id):
                    return worker
                self._fleet.dismiss(worker_id)  # the plan does without it
        return None


FIRST_BACKOFF_NS = 1_000_000_000
MAX_BACKOFF_NS = 300_000_000_000
"""Maximum back-off in ns; a policy without failure for that long starts with the first back-off again."""


class PolicyRetry:
    """Back-off of the configured policy after failures. It survives a rebuild of the engine's state.

    It needs no timer: the policy is tried again with the first event after the back-off; without events no request
    waits.
    """

    def __init__(self, policy: Policy) -> None:
        self.choose(0, policy)

    def choose(self, now_ns: int, policy: Policy) -> None:
        """Make `policy`, which has not failed yet, the one to retry."""
        self._class, self._options = type(policy), policy.options
        self._backoff_ns = 0
        self.decides(now_ns)

    def decides(self, now_ns: int) -> None:
        """Record that the chosen policy is current again."""
        self.at_ns = NEVER_NS
        """The chosen policy is tried again with the first event from then on; NEVER_NS: it decides."""
        self._since_ns = now_ns

    def broke(self, now_ns: int) -> int:
        """Record a failure of the chosen policy or a part of it; return the back-off in ns."""
        if self.at_ns == NEVER_NS:
            doubled_ns = 0 if now_ns - self._since_ns >= MAX_BACKOFF_NS else 2 * self._backoff_ns
            self._backoff_ns = min(max(FIRST_BACKOFF_NS, doubled_ns), MAX_BACKOFF_NS)
            self.at_ns = now_ns + self._backoff_ns
        return self.at_ns - now_ns

    def make(self, setup: Setup) -> Policy:
        """Return a new instance of the chosen policy without its past. Raises whatever its class raises."""
        return self._class(setup, self._options)


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


Policies = Callable[[str, Setup, dict[str, Any]], Policy]
"""Factory `policies(name, setup, options)` that creates a policy, or raises an error that explains what is wrong."""
