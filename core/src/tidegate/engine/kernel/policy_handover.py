"""The current policy, and its replacement by another one."""

from collections.abc import Callable, Iterable
from typing import Any

from tidegate.api import NEVER_NS, AnyEvent, BatchFailed, Model, Policy, Setup, StageFinished, Worker
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.estimates.standalone_latency import StandaloneLatency
from tidegate.engine.estimates.timer_latency import TimerLatency
from tidegate.engine.state_tables import WorkerTable
from tidegate.engine.timers import Timers

Policies = Callable[[str, Setup, dict[str, Any]], Policy]
"""Factory `policies(name, setup, options)` that creates a policy, or raises an error that explains what is wrong."""


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
