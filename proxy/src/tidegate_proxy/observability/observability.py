"""Observer of requests for metrics, statistics and traces.

The driver reports clients here; the engine's reducer reports requests and stages to `Metrics`. Both are on the hot path
and never raise. Results go to `Metrics`, `ModelStatistics` and spans (`tracing`).
"""

import time
from collections.abc import Callable, Sequence

from tidegate.api import Setup
from tidegate.observation import Reducer, StartStage
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.messages.request import PendingRequest
from tidegate_proxy.observability.metrics import Metrics, isolated
from tidegate_proxy.observability.model_statistics import ModelStatistics
from tidegate_proxy.observability.tracing import BatchSpan, RequestTracer

PassedWatcher = Callable[[str, int, int, bool], None]
"""Callback for each response to an unscheduled request: model, instant sent, duration, success."""


class Observability:
    """Observer of requests for metrics, statistics and traces. On the hot path; its methods never raise."""

    def __init__(
        self,
        setup: Setup,
        reducer: Reducer,
        tracing: RequestTracer | None = None,
        watchers: Sequence[PassedWatcher] = (),
        layout_gpus: float | None = None,
    ) -> None:
        """Create the observability. `reducer`: the engine's own. `watchers`: see `replace_watchers`.

        `layout_gpus`: GPUs of the first layout.
        """
        self.metrics = Metrics(setup, reducer, layout_gpus)
        self.statistics = ModelStatistics()
        self._watchers = tuple(watchers)
        self.traces = tracing is not None
        """Whether it needs to be called for arrivals."""
        self._tracing = tracing

    def replace_watchers(self, watchers: Sequence[PassedWatcher]) -> None:
        """Replace the callbacks for responses to unscheduled requests."""
        self._watchers = tuple(watchers)

    @isolated
    def arrived(self, client: PendingRequest) -> None:
        """Record the arrival of a request to schedule; its metadata may continue a trace."""
        if self._tracing:
            heading = client.envelope.heading
            client.span = self._tracing.request_arrived(
                client.metadata,
                model=heading.model,
                version=heading.version,
                rows=heading.rows,
                at_ns=client.arrival_ns,
            )

    @isolated
    def batch_started(
        self, clients: Sequence[PendingRequest], effect: StartStage, worker: str, at_ns: int
    ) -> BatchSpan | None:
        """Record that a stage is sent to a Triton; pass the result to `batch_ended`.

        `worker`: its name; `at_ns`: instant of sending.
        """
        heading, rows = clients[0].envelope.heading, effect.rows
        if effect.stage == 0:
            started_ns = self.metrics.sent_ns(effect.batch.id) or at_ns
            for client in clients:
                client.started_ns = started_ns
                if padded := client.envelope.heading.padded:
                    self.metrics.padded(heading.model, client.envelope.rows, padded)
            self.statistics.executed(heading.model, heading.version)
        if self._tracing is None:
            return None
        spans = [client.span for client in clients if client.span is not None]
        return self._tracing.execution_started(spans, model=heading.model, rows=rows, worker=worker, at_ns=at_ns)

    @isolated
    def batch_ended(self, execution: BatchSpan, at_ns: int, error: str | None = None) -> None:
        """Record the end of a traced batch.

        `error`: message of a failure, None: it succeeded.
        """
        if self._tracing:
            self._tracing.execution_ended(execution, at_ns=at_ns, error=error)

    @isolated
    def answered(self, clients: Sequence[PendingRequest], execution: BatchSpan | None, output_ns: int) -> None:
        """Record the responses to a batch; splitting them took `output_ns`."""
        heading, now_ns = clients[0].envelope.heading, time.monotonic_ns()
        rows = total_ns = queue_ns = infer_ns = 0
        for client in clients:
            rows += client.envelope.rows
            total_ns += now_ns - client.arrival_ns
            queue_ns += client.started_ns - client.arrival_ns
            infer_ns += client.ended_ns - client.started_ns
        self.statistics.answered(
            heading.model,
            heading.version,
            rows,
            requests=len(clients),
            at_ms=time.time_ns() // 1_000_000,
            total_ns=total_ns,
            queue_ns=queue_ns,
            infer_ns=infer_ns,
            output_ns=output_ns * len(clients),
        )
        if self._tracing:
            for client in clients:
                self._trace_answer(self._tracing, client, now_ns, execution)

    def _trace_answer(
        self, tracing: RequestTracer, client: PendingRequest, now_ns: int, execution: BatchSpan | None
    ) -> None:
        if client.span is not None:
            outcome = "on_time" if client.ended_ns <= client.due_ns else "late"
            queue_ns = client.started_ns - client.arrival_ns
            tracing.request_ended(client.span, outcome, at_ns=now_ns, queue_ns=queue_ns, execution=execution)

    @isolated
    def failed(self, client: PendingRequest, reason: str, outcome: str) -> None:
        """Record a failed or cancelled request. `reason`: one of FAILURE_REASONS; `outcome`: text for the trace."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        self.statistics.failed(heading.model, heading.version, reason, now_ns - client.arrival_ns)
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def graph_answered(self, client: PendingRequest) -> None:
        """Record the response to a request whose graph ran in stages, which were counted on their own."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        total_ns = now_ns - client.arrival_ns
        self.metrics.graph_answered(heading.model, heading.rows, total_ns, is_late=now_ns > client.due_ns)
        self.statistics.executed(heading.model, heading.version)
        self.statistics.answered(
            heading.model,
            heading.version,
            heading.rows,
            at_ms=time.time_ns() // 1_000_000,
            total_ns=total_ns,
            queue_ns=0,
            infer_ns=total_ns,
        )
        if self._tracing and client.span is not None:
            outcome = "late" if now_ns > client.due_ns else "on_time"
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def graph_failed(self, client: PendingRequest, failure: RequestFailed | None) -> None:
        """Record a failed request whose graph ran in stages; `failure`: None if its client left."""
        model = client.envelope.model
        if failure is None:
            self.metrics.graph_cancelled(model)
            self.failed(client, "CANCELED", "cancelled")
        else:
            self.metrics.graph_failed(model, failure.refusal)
            self.failed(client, failure.reason, failure.outcome)

    @isolated
    def passed_through(self, model: str, version: str, *, rows: int, sent_ns: int, ok: bool) -> None:
        """Record the response to a request that could not be scheduled.

        `sent_ns`: instant of sending; `ok`: whether it succeeded.
        """
        total_ns = time.monotonic_ns() - sent_ns
        self.metrics.passed_through(model, ok=ok)
        self.statistics.passed_through(
            model, version, ok=ok, at_ms=time.time_ns() // 1_000_000, total_ns=total_ns, rows=rows
        )
        for watcher in self._watchers:
            watcher(model, sent_ns, total_ns, ok)

    @isolated
    def passed_on(self, client: PendingRequest) -> None:
        """Record that a request was bypassed after it had been accepted for scheduling."""
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, "passed_through", at_ns=time.monotonic_ns())

    @isolated
    def close(self) -> None:
        """Flush the traces."""
        if self._tracing:
            self._tracing.close()
