"""Live driver: connects the engine to real Tritons and clients.

It consists of the engine, the waiting clients, the running stages, and the Tritons that take part; all in the event
loop's thread.
"""

import logging
import time
from collections.abc import Callable, Container, Sequence

import grpc
import msgspec

from tidegate.api import Advise, BatchFailed, Drop, Request, RequestArrived, RequestCancelled
from tidegate.engine import (
    AnyEffect,
    CancelStage,
    Engine,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PolicyChanged,
    PolicyReplaced,
    PolicyRestored,
    ResponseMargin,
    RetryLimitChanged,
    StartStage,
)
from tidegate.observation import ChangeProgressed, PolicyTuned
from tidegate_proxy.access.tenants import Tenant
from tidegate_proxy.base import refusal
from tidegate_proxy.base.outcome import SHUTTING_DOWN, TIMEOUT_EXPIRED, Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.config import PolicyChoice
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.messages.request import PendingRequest, ResponseDeadline
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.failures import LookAgain, PoisonRequestTracker, Recovery, skip_health_check
from tidegate_proxy.scheduling.in_flight import PendingRequests, RunningStages, StageRun
from tidegate_proxy.scheduling.membership import Membership, OutlierDetector
from tidegate_proxy.scheduling.stages import RunningBatches, TakeUpLimits, keep_slots
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.shared_memory import SharedRegions

log = logging.getLogger(__name__)

QUEUE_FULL = "Exceeds maximum queue size"
"""Triton's message for a request rejected because the queue is full."""


MIN_ADVICE_DURATION_S = 30.0
"""Seconds for which recommendations must have one direction, to add workers or to release some, before it is logged."""
MIN_ADVICE_LOG_INTERVAL_S = 600.0
"""Seconds between two log lines of one direction."""


class StableAdvice:
    """Worker recommendations that last: a policy makes one every few seconds, and short bursts make them swing."""

    def __init__(self) -> None:
        self._since_s = self._last_s = self._logged_s = float("-inf")
        self._least = self._logged = 0

    def lasting(self, now_s: float, workers: int) -> int | None:
        """Take a recommendation; return the number of workers to log, None if nothing is to be logged.

        `now_s`: time of a monotonic clock; `workers`: number to add, negative: to release. Recommendations last if
        they have one direction for 30 s, with no longer gap; of those the smallest number counts.
        """
        has_turned = workers != self._least and workers * self._least <= 0
        if has_turned or now_s - self._last_s > MIN_ADVICE_DURATION_S:
            self._since_s, self._least = now_s, workers
        self._last_s, self._least = now_s, min(self._least, workers, key=abs)
        if now_s - self._since_s < MIN_ADVICE_DURATION_S:
            return None
        lasting, self._since_s, self._least = self._least, now_s, workers
        is_same_direction = lasting * self._logged > 0 and now_s - self._logged_s < MIN_ADVICE_LOG_INTERVAL_S
        if lasting == self._logged or is_same_direction:
            return None
        self._logged, self._logged_s = lasting, now_s
        return lasting


def refuse_stray(client: PendingRequest) -> None:
    """Fail a request that cannot be scheduled any more, if nothing else will answer it."""
    words = "its model has just changed"
    client.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, words, reason=refusal.REASON_UNAVAILABLE))


TenantOf = Callable[[str, str], Tenant | None]
"""Function that returns the tenant of a client's identity and application; None: there are no tenants."""


def no_tenant(owner: str, app: str) -> Tenant | None:
    """Return None, for a configuration without tenants."""
    return None


class Driver:
    """Driver of one engine. Use it only in one event loop."""

    def __init__(
        self,
        engine: Engine,
        directory: CurrentCatalog,
        in_force: SettingsHolder,
        observability: Observability,
        regions: SharedRegions | None = None,
        hidden: Callable[[], Container[str]] = frozenset,
        on_batch: Callable[[StageRun, Sequence[Outcome]], None] | None = None,
        pass_on: Callable[[PendingRequest], None] = refuse_stray,
        look_again: LookAgain = skip_health_check,
        tenant_of: TenantOf = no_tenant,
        take_up_limits: TakeUpLimits = keep_slots,
    ) -> None:
        """Create the driver. `regions`: shared memory with local Tritons; None: tensors are sent.

        `hidden`: names of metadata that are not forwarded to a Triton. `on_batch`: called when the clients of a batch
        of several requests have their responses; must not raise. `pass_on`: bypasses a request whose model has changed.
        `look_again`: refreshes the models of a Triton. `tenant_of(owner, app)`: returns the tenant of a client.
        `take_up_limits`: gives models as many slots as their concurrency limits have become.
        """
        self.tenant_of = tenant_of
        self.engine = engine
        self._advice = StableAdvice()
        self._in_force = in_force
        self.regions = regions
        self._directory = directory
        self.observability = observability
        self._poison_requests = PoisonRequestTracker()
        self._headroom = ResponseMargin()
        self._engine = LiveEngine(engine, observability.metrics, self._carry_out, self._give_up_effect)
        self.clients = PendingRequests(observability)
        self.running = RunningStages(self._engine)
        self.outliers = OutlierDetector(in_force)
        self.membership = Membership(
            self._engine, directory, self.clients, self.running, regions, self.outliers, in_force, pass_on
        )
        self._pass_on = pass_on
        recovery = Recovery(directory, self.clients, self.membership, self._poison_requests, in_force, look_again)
        self.stages = RunningBatches(
            self._engine,
            directory,
            self.clients,
            self.running,
            recovery,
            self.outliers,
            self._headroom,
            observability,
            regions,
            hidden,
            on_batch,
            take_up_limits,
        )

    # Clients -----------------------------------------------------------------------------------------------------

    def admit(self, client: PendingRequest, arrival_ns: int, due: ResponseDeadline, app: str = "") -> Request | None:
        """Admit a client's request; return it in the engine's form, or None if it was rejected and the client notified.

        A request whose model has changed is bypassed to a Triton. `due`: its deadline; `app`: its application, or "".
        """
        envelope, settings = client.envelope, self._in_force.settings
        client.arrival_ns, client.due_ns, client.until_ns = arrival_ns, due.deadline_ns, max(due)
        if self.observability.traces:
            self.observability.arrived(client)
        if client.until_ns <= arrival_ns:
            self.clients.tell(client, _rejected(settings, TIMEOUT_EXPIRED, refusal.DEADLINE_EXPIRED))
            return None
        request_id = self.clients.number(client)
        merge_key = envelope.merge_key
        poison_requests = self._poison_requests
        if (poison_requests.alone or poison_requests.suspects) and (
            company := poison_requests.company((client.owner, envelope.model), request_id)
        ):
            client.runs_apart, merge_key = True, merge_key + company
        request = Request(
            request_id,
            envelope.model,
            envelope.rows,
            arrival_ns,
            self._headroom.before(due.deadline_ns, arrival_ns),
            merge_key,
            app,
            envelope.heading.shape,
            client=client.owner,
            deferrable=not client.runs_apart,
            late_until_ns=self._headroom.before(due.late_until_ns, arrival_ns),
            priority=envelope.signature.priority_of(envelope.heading.priority),
            feature=envelope.feature,
        )
        if tenant := self.tenant_of(client.owner, app):
            request = msgspec.structs.replace(
                request,
                priority=max(request.priority, tenant.config.priority),
                tenant=tenant.name,
                weight=tenant.config.weight,
            )
        catalog = self._directory.catalog
        if not catalog.schedules(envelope) and envelope.model in catalog.hosts:
            self._pass_on(client)
        elif self.clients.admit(client, settings.queue):
            return request
        else:
            words = f"[request id: {envelope.id or '<id_unknown>'}] {QUEUE_FULL}"
            self.clients.tell(client, _rejected(settings, words, refusal.QUEUE_FULL, queued=False))
        return None

    def refuse(self, client: PendingRequest, arrival_ns: int, failure: RequestFailed) -> None:
        """Notify the client of a request that is rejected on arrival."""
        client.arrival_ns = client.due_ns = client.until_ns = arrival_ns
        if self.observability.traces:
            self.observability.arrived(client)
        self.clients.tell(client, failure)

    def schedule(self, request: Request) -> None:
        """Let the engine handle an admitted request, and execute its decisions."""
        self._engine.take_in(RequestArrived(time.monotonic_ns(), request))

    def give_up(self, client: PendingRequest) -> None:
        """End a request that met an internal error, in whatever state it is."""
        known = self.clients.remove(client.request_id)
        self.clients.tell(client, own_fault())  # without effect if it was answered before
        if known:
            self._engine.take_in(RequestCancelled(time.monotonic_ns(), client.request_id))

    def leave(self, client: PendingRequest) -> bool:
        """Handle a client that left; return whether it waited. Work that no client waits for is cancelled."""
        if client.leave_instead is not None:
            return client.leave_instead()
        if self.clients.remove(client.request_id) is None:
            return False
        self._engine.take_in(RequestCancelled(time.monotonic_ns(), client.request_id))
        self.stages.left(client)
        self.observability.failed(client, "CANCELED", "cancelled")
        return True

    def watch(self, liveness: Liveness) -> None:
        """Register the engine for liveness checks."""
        liveness.watch("engine", self._engine.seen_ns)

    def settings_changed(self) -> None:
        """Notify the engine of the current settings."""
        self._engine.take_in(RetryLimitChanged(time.monotonic_ns(), self._in_force.settings.max_tries))

    def change_policy(self, choice: PolicyChoice) -> None:
        """Switch to another policy, with the queued requests.

        Raises ValueError, and changes nothing, if that is impossible.
        """
        self._engine.take_in(PolicyChanged(time.monotonic_ns(), choice.name, dict(choice.options)))

    def change_progressed(self, event: ChangeProgressed) -> None:
        """Notify the engine and its observers of the progress of a layout change."""
        self._engine.take_in(event)

    def policy_tuned(self, event: PolicyTuned) -> None:
        """Notify the engine and its observers of a verdict on the policy."""
        self._engine.take_in(event)

    @property
    def waiting(self) -> int:
        """Number of requests whose clients wait."""
        return len(self.clients)

    def dismiss(self) -> None:
        """Fail the requests of all waiting clients."""
        for client in self.clients:
            if self.leave(client):
                client.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN, reason=refusal.SHUTTING_DOWN))

    async def close(self) -> None:
        """Stop, and fail the requests of all waiting clients."""
        self.dismiss()
        await self.stages.close()
        self._engine.close()

    def _carry_out(self, effect: AnyEffect) -> None:
        match effect:
            case StartStage():
                self.stages.start(effect)
            case CancelStage():
                pass  # Triton finishes what it began; a cancelled call would only hide that its worker is busy
            case Drop():
                word, outcome = refusal.word_of(effect.reason), f"dropped: {effect.reason}"
                dropped = _rejected(self._in_force.settings, TIMEOUT_EXPIRED, word, outcome=outcome)
                self.clients.fail(effect.request_id, dropped)
            case Fail():
                failed = RequestFailed(grpc.StatusCode.UNAVAILABLE, effect.reason, reason=refusal.REASON_UNAVAILABLE)
                self.clients.fail(effect.request_id, failed)
            case PolicyReplaced():
                fields = {"policy": effect.policy, "error": effect.reason, "retry_in_s": effect.backoff_ns / 1e9}
                fields |= {"part": effect.part} if effect.part else {}
                log.error("policy failed, scheduling first come, first served", extra=fields)
            case PolicyRestored():
                log.warning("policy restored", extra={"policy": effect.policy})
            case EngineRestarted():
                self._engine_restarted(effect)
            case ObserverRemoved():
                log.error(
                    "observer removed after an error", extra={"observer": effect.observer, "error": effect.reason}
                )
            case Advise():
                if (workers := self._advice.lasting(time.monotonic(), effect.workers)) is not None:
                    log.info("worker recommendation", extra={"workers": f"{workers:+d}", "detail": effect.reason})

    def _give_up_effect(self, effect: AnyEffect) -> None:
        """It could not be carried out: the requests that it concerned end here."""
        match effect:
            case StartStage():
                self.stages.crash(effect)
            case Drop() | Fail():
                self.clients.fail(effect.request_id, own_fault())

    def _engine_restarted(self, effect: EngineRestarted) -> None:
        """End the requests that the engine's fault concerned; stages go on that both know of."""
        log.critical(
            "engine restarted after an internal error, scheduling first come, first served",
            extra={
                "error": effect.reason,
                "failed_requests": len(effect.failed),
                "running_batches": len(effect.batches),
            },
        )
        for request_id in effect.failed:
            self.clients.fail(request_id, own_fault("Tidegate's engine failed on this request; its log says more"))
        self.stages.stop_soon(self.running.forget_stranded())
        for batch_id in effect.batches:
            flight = self.engine.flight(batch_id)
            if flight and not self.running.is_running(batch_id):
                stage, now_ns = flight.batch.stages[flight.stage], time.monotonic_ns()
                self._engine.handle(
                    BatchFailed(now_ns, batch_id, flight.stage, stage.worker_id, "it never ran", retry=True)
                )


def _rejected(
    settings: CurrentSettings, details: str, why: str, *, queued: bool = True, outcome: str = ""
) -> RequestFailed:
    return RequestFailed(settings.shed_status, details, queued=queued, category="REJECTED", outcome=outcome, reason=why)
