"""What the driver tells those who look on: metrics, statistics and traces, in one place to keep the driver short."""

import time
from collections.abc import Callable, Sequence

from tidegate.api import Setup
from tidegate.observation import Reducer, StartLeg
from tidegate_proxy.base.isolated import isolated
from tidegate_proxy.messages.client import Client
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.observability.statistics import Statistics
from tidegate_proxy.observability.tracing import Execution, Tracing

PassedWatcher = Callable[[str, int, int, bool], None]
"""Called for each answer to a request that was not scheduled: model, when it was sent, how long it took, whether it
went well."""


class Observability:
    """Called on the hot path. Its methods raise nothing."""

    def __init__(
        self,
        setup: Setup,
        reducer: Reducer,
        tracing: Tracing | None = None,
        watchers: Sequence[PassedWatcher] = (),
        layout_gpus: float | None = None,
    ) -> None:
        """`reducer`: the engine's own. `watchers`: see `replace_watchers`. `layout_gpus`: GPUs of the first layout."""
        self.metrics = Metrics(setup, reducer, layout_gpus)
        self.statistics = Statistics()
        self._watchers = tuple(watchers)
        self.traces = tracing is not None
        """Whether it wants to know of requests as they come."""
        self._tracing = tracing

    def replace_watchers(self, watchers: Sequence[PassedWatcher]) -> None:
        """Call others from now on for each answer to a request that was not scheduled."""
        self._watchers = tuple(watchers)

    @isolated
    def arrived(self, client: Client) -> None:
        """A request is to be scheduled; its metadata may continue a trace."""
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
    def batch_started(self, clients: Sequence[Client], effect: StartLeg, worker: str, at_ns: int) -> Execution | None:
        """A leg of a batch goes to a Triton; what it returns is given back to `batch_ended`."""
        heading, rows = clients[0].envelope.heading, effect.rows
        if effect.leg == 0:
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
    def batch_ended(self, execution: Execution | None, at_ns: int, error: str | None = None) -> None:
        """A batch is over."""
        if self._tracing and execution:
            self._tracing.execution_ended(execution, at_ns=at_ns, error=error)

    @isolated
    def answered(self, clients: Sequence[Client], execution: Execution | None, output_ns: int) -> None:
        """The clients of a batch have their answers; dividing the batch's took `output_ns`."""
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

    def _trace_answer(self, tracing: Tracing, client: Client, now_ns: int, execution: Execution | None) -> None:
        if client.span is not None:
            outcome = "in_time" if client.ended_ns <= client.due_ns else "late"
            queue_ns = client.started_ns - client.arrival_ns
            tracing.request_ended(client.span, outcome, at_ns=now_ns, queue_ns=queue_ns, execution=execution)

    @isolated
    def failed(self, client: Client, reason: str, outcome: str) -> None:
        """A client got an error, or left. `reason`: one of FAILURE_REASONS; `outcome`: the trace's words for it."""
        heading, now_ns = client.envelope.heading, time.monotonic_ns()
        self.statistics.failed(heading.model, heading.version, reason, now_ns - client.arrival_ns)
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, outcome, at_ns=now_ns)

    @isolated
    def passed_through(self, model: str, version: str, *, rows: int, sent_ns: int, ok: bool) -> None:
        """A request that could not be scheduled has its answer."""
        total_ns = time.monotonic_ns() - sent_ns
        self.statistics.passed_through(
            model, version, ok=ok, at_ms=time.time_ns() // 1_000_000, total_ns=total_ns, rows=rows
        )
        for watcher in self._watchers:
            watcher(model, sent_ns, total_ns, ok)

    @isolated
    def passed_on(self, client: Client) -> None:
        """A request that was to be scheduled was answered by a Triton as it was."""
        if self._tracing and client.span is not None:
            self._tracing.request_ended(client.span, "passed_through", at_ns=time.monotonic_ns())

    @isolated
    def close(self) -> None:
        """Send what is left of the traces."""
        if self._tracing:
            self._tracing.close()
