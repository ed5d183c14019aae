"""Prometheus registry of Tidegate's metrics, built for each scrape."""

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from itertools import accumulate
from types import MappingProxyType
from typing import Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from tidegate.observation.stimuli import ChangeState
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.observability.observability import DurationHistogram, MetricsSnapshot, ModelCounts
from tidegate_proxy.transport.client_bounds import ClientBounds

ADVICE_HOLDS_S = 60.0
"""Seconds after a policy's last advice at which its metric returns to 0; a policy repeats valid advice."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper ends of the classes of batch sizes."""
_PER_NS = 1e-9
CHANGE_STATES: Final = get_args(ChangeState)


def registry_of(
    snapshot: MetricsSnapshot,
    policy: str,
    now_ns: int,
    ejections: Mapping[str, tuple[int, bool]],
    bounds: ClientBounds,
    restarts: Mapping[str, int] = MappingProxyType({}),
    left_apis: Collection[tuple[str, str, str]] = (),
) -> CollectorRegistry:
    """Build a registry with every `tidegate_` metric of an engine, and those of this process, as of `now_ns`.

    It may be read in any thread, because the event loop does not modify it. `ejections`: for each Triton, how often it
    was ejected, and whether it is. `bounds`: what clients hold. `restarts`: restarts of each worker's Triton in a
    deployment. `left_apis`: Triton, protocol and API of everything that a Triton restricts itself. `policy`: name of
    the current policy.
    """
    registry = CollectorRegistry()
    registry.register(_BoundsCollector(bounds))
    registry.register(_EngineCollector(snapshot, policy, now_ns))
    registry.register(_EjectionCollector(ejections))
    registry.register(_RestartCollector(restarts))
    registry.register(_LeftApisCollector(left_apis))
    ProcessCollector(registry=registry)
    return registry


class _BoundsCollector(Collector):
    def __init__(self, bounds: ClientBounds) -> None:
        self._bounds = bounds

    def describe(self) -> Iterable[Metric]:
        return ()  # or the registry would collect once when it is made

    def collect(self) -> Iterable[Metric]:
        bounds = self._bounds
        ended = CounterMetricFamily(
            "tidegate_limit_exceeded",
            "Connections and calls that a limit of the configuration ended or refused.",
            labels=("protocol", "limit"),
        )
        for (protocol, limit), count in sorted(bounds.ended.copy().items()):
            ended.add_metric((protocol, limit), count)
        yield ended
        connections = GaugeMetricFamily(
            "tidegate_connections", "Connections of clients that are open.", labels=("protocol",)
        )
        for protocol, count in sorted(bounds.connections.copy().items()):
            connections.add_metric((protocol,), count)
        yield connections
        in_flight = GaugeMetricFamily(
            "tidegate_in_flight_bytes", "Bytes of requests that were read and are not answered yet."
        )
        in_flight.add_metric((), bounds.in_flight_bytes)
        yield in_flight
        unread = GaugeMetricFamily(
            "tidegate_response_buffer_bytes", "Bytes of answers that their clients have not taken."
        )
        unread.add_metric((), bounds.unread_bytes)
        yield unread


class _EngineCollector(Collector):
    def __init__(self, snapshot: MetricsSnapshot, policy: str, now_ns: int) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now_ns = now_ns

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot
        yield from _about_requests(snapshot)
        yield from _about_workers(snapshot, self._now_ns)
        yield from _about_tenants(snapshot)
        decisions = HistogramMetricFamily(
            "tidegate_scheduling_duration_seconds", "Time the engine and its policy took for one event."
        )
        decisions.add_metric((), *_buckets(snapshot.decisions))
        yield decisions
        replaced = CounterMetricFamily(
            "tidegate_policy_fallbacks",
            "Times a policy, or a part of one, broke or took too long, and first come, first served took over.",
        )
        replaced.add_metric((), snapshot.policies_replaced)
        yield replaced
        restored = CounterMetricFamily(
            "tidegate_policy_restored", "Times a policy that had broken was tried again and decides."
        )
        restored.add_metric((), snapshot.policies_restored)
        yield restored
        removed = CounterMetricFamily("tidegate_observers_removed", "Observers that raised an error and were removed.")
        removed.add_metric((), snapshot.observers_removed)
        yield removed
        restarts = CounterMetricFamily(
            "tidegate_engine_restarts",
            "Times the engine itself broke and restarted: requests that its fault concerned failed.",
        )
        restarts.add_metric((), snapshot.engine_restarts)
        yield restarts
        verified = CounterMetricFamily(
            "tidegate_batch_verifications",
            "Batches of which a request was executed again alone, by whether the answers agree.",
            labels=("model", "result"),
        )
        for (model, result), count in sorted(snapshot.verified.items()):
            verified.add_metric((model, result), count)
        yield verified
        bypassed = CounterMetricFamily(
            "tidegate_bypassed",
            "Requests that bypassed the scheduler: shadow mode, canary, or what only Triton can serve.",
            labels=["model", "outcome"],
        )
        for (model, outcome), count in sorted(snapshot.bypassed.items()):
            bypassed.add_metric((model, outcome), count)
        yield bypassed
        yield from _about_changes(snapshot)
        own = CounterMetricFamily(
            "tidegate_internal_errors", "Internal errors of Tidegate, each of which is logged.", labels=("place",)
        )
        for place, count in sorted(faults.counts().items()):
            own.add_metric((place,), count)
        yield own
        build = GaugeMetricFamily(
            "tidegate_build_info", "1, with version and policy as labels.", labels=("version", "policy")
        )
        build.add_metric((version("tidegate-proxy"), self._policy), 1)
        yield build


class _EjectionCollector(Collector):
    def __init__(self, ejections: Mapping[str, tuple[int, bool]]) -> None:
        self._ejections = ejections

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        times = CounterMetricFamily(
            "tidegate_triton_ejections",
            "Times a Triton was given nothing for a while, as it failed.",
            labels=("triton",),
        )
        out = GaugeMetricFamily(
            "tidegate_triton_ejected", "1 while a Triton is given nothing, as it failed, else 0.", labels=("triton",)
        )
        for address, (count, is_out) in self._ejections.items():
            times.add_metric((address,), count)
            out.add_metric((address,), int(is_out))
        return (times, out)


class _RestartCollector(Collector):
    def __init__(self, restarts: Mapping[str, int]) -> None:
        self._restarts = restarts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        times = CounterMetricFamily(
            "tidegate_triton_restarts",
            "Times the Triton of a worker ended by itself and was started again.",
            labels=("worker",),
        )
        for worker, count in self._restarts.items():
            times.add_metric((worker,), count)
        return (times,)


class _LeftApisCollector(Collector):
    def __init__(self, left_apis: Collection[tuple[str, str, str]]) -> None:
        self._left_apis = left_apis

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        restricted = GaugeMetricFamily(
            "tidegate_triton_restricted_api",
            "1 for each API that a Triton restricts: Tidegate passes its calls, and schedules none without the key.",
            labels=("triton", "protocol", "api"),
        )
        for labels in sorted(self._left_apis):
            restricted.add_metric(labels, 1)
        return (restricted,)


def _about_tenants(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    """Return the accounts of models and tenants; costs only with prices, rejections only with tenants."""
    gpu = CounterMetricFamily(
        "tidegate_gpu_seconds",
        "Time for which workers ran batches of a model, divided among tenants by rows.",
        labels=("model", "tenant", "device_class"),
    )
    for labels, duration_ns in sorted(snapshot.gpu_ns.items()):
        gpu.add_metric(labels, duration_ns * _PER_NS)
    yield gpu
    if snapshot.costs:
        costs = CounterMetricFamily(
            "tidegate_gpu_cost",
            "Cost of that time by the configured prices, in their currency.",
            labels=("model", "tenant"),
        )
        for of_costs, cost in sorted(snapshot.costs.items()):
            costs.add_metric(of_costs, cost)
        yield costs
    if snapshot.rejections:
        rejected = CounterMetricFamily(
            "tidegate_rate_limit_rejections",
            "Requests that the rate limit of their tenant rejected.",
            labels=("tenant",),
        )
        for tenant, count in sorted(snapshot.rejections.items()):
            rejected.add_metric((tenant,), count)
        yield rejected


def _about_changes(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    """Return the metrics of a controller's layout changes; none without a controller."""
    if snapshot.layout_gpus is None:
        return
    changes = CounterMetricFamily(
        "tidegate_layout_changes", "Changes of the layout that have reached a state.", labels=("state",)
    )
    for state in CHANGE_STATES:
        changes.add_metric((state,), snapshot.changes[state])
    yield changes
    times = SummaryMetricFamily(
        "tidegate_layout_change_duration_seconds",
        "Time of a change, from its beginning to its end.",
        labels=("outcome",),
    )
    for outcome, each in sorted(snapshot.change_times.items()):
        times.add_metric((outcome,), each.count, each.sum_ns * _PER_NS)
    yield times
    gpus = GaugeMetricFamily("tidegate_layout_gpus", "GPUs that the current layout takes; shares count as such.")
    gpus.add_metric((), snapshot.layout_gpus)
    yield gpus


def _about_requests(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "tidegate_requests",
        "Requests that ended, by outcome: on_time, late, dropped (with the policy's reason), failed or cancelled.",
        labels=("model", "outcome", "reason"),
    )
    waiting = GaugeMetricFamily(
        "tidegate_queue_length",
        "Requests that wait for a batch, or for the next worker between two partitions.",
        labels=("model",),
    )
    refused = CounterMetricFamily(
        "tidegate_queue_rejected",
        "Requests that were rejected before the queue, by the limit that it had reached: requests or bytes.",
        labels=("model", "reason"),
    )
    queued = HistogramMetricFamily(
        "tidegate_queue_duration_seconds", "Time from a request's arrival until its batch starts.", labels=("model",)
    )
    answered = HistogramMetricFamily(
        "tidegate_request_duration_seconds",
        "Time from a request's arrival to the end of its batch, for answered requests.",
        labels=("model",),
    )
    of_shape = SummaryMetricFamily(
        "tidegate_shape_request_duration_seconds",
        "Time from a request's arrival to the end of its batch, by variable input shape, for models that have one.",
        labels=("model", "shape"),
    )
    gaps = HistogramMetricFamily(
        "tidegate_response_gap_seconds",
        "Time between the responses to a request in a slot (inter-token latency).",
        labels=("model",),
    )
    streams = CounterMetricFamily(
        "tidegate_response_gap_slo_streams",
        "Streams in slots that ended, by whether the mean time between their responses met slo_gap_ms: on_time, late.",
        labels=("model", "outcome"),
    )
    slo = GaugeMetricFamily(
        "tidegate_slo_seconds",
        "Latency objective (SLO) of a model, from a request's arrival to its answer.",
        labels=("model",),
    )
    slack = HistogramMetricFamily(
        "tidegate_slack_seconds",
        "Time from a batch's expected end, estimated at its start, to the first deadline of its requests.",
        labels=("model",),
    )
    planned = SummaryMetricFamily(
        "tidegate_batch_execution_duration_upper_seconds",
        "Expected upper bound of a batch's execution on a worker (a high quantile), by variable input shape.",
        labels=("model", "shape"),
    )
    taken = SummaryMetricFamily(
        "tidegate_batch_execution_duration_seconds",
        "Time a batch's execution on a worker took, by variable input shape.",
        labels=("model", "shape"),
    )
    rows = HistogramMetricFamily("tidegate_batch_rows", "Rows of the batches that started.", labels=("model",))
    sizes = HistogramMetricFamily("tidegate_batch_requests", "Requests of the batches that started.", labels=("model",))
    padded = CounterMetricFamily(
        "tidegate_padded_rows", "Rows of requests that were padded, when their batches started.", labels=("model",)
    )
    elements = CounterMetricFamily(
        "tidegate_padded_elements",
        "Elements of the inputs that were padded: sent by clients, and added.",
        labels=("model", "part"),
    )
    for name, counts in snapshot.models.items():
        padded.add_metric((name,), counts.padded_rows)
        elements.add_metric((name, "sent"), counts.sent_elements)
        elements.add_metric((name, "added"), counts.added_elements)
        for outcome, reason, count in _outcomes(counts):
            requests.add_metric((name, outcome, reason), count)
        waiting.add_metric((name,), snapshot.waiting[name])
        queued.add_metric((name,), *_buckets(counts.queued))
        answered.add_metric((name,), *_buckets(counts.answered))
        if any(counts.gaps.counts):
            gaps.add_metric((name,), *_buckets(counts.gaps))
        if counts.slo_gap_ns is not None:
            streams.add_metric((name, "on_time"), counts.gaps_on_time)
            streams.add_metric((name, "late"), counts.gaps_late)
        if counts.slo_ns is not None:
            slo.add_metric((name,), counts.slo_ns * _PER_NS)
        slack.add_metric((name,), *_buckets(counts.slack))
        for shape, stages in sorted(counts.stages.items()):
            planned.add_metric((name, shape), stages.count, stages.upper_ns * _PER_NS)
            taken.add_metric((name, shape), stages.count, stages.taken_ns * _PER_NS)
        for shape, (count, sum_ns) in sorted(counts.shapes.items()):
            of_shape.add_metric((name, shape), count, sum_ns * _PER_NS)
        rows.add_metric((name,), *_size_buckets(counts.batch_rows))
        sizes.add_metric((name,), *_size_buckets(counts.batch_requests))
        for reason in ("requests", "bytes"):  # what queues can be full of
            refused.add_metric((name, reason), snapshot.refused[name, reason])
    return (
        slo,
        requests,
        waiting,
        refused,
        queued,
        gaps,
        streams,
        slack,
        planned,
        taken,
        answered,
        of_shape,
        rows,
        sizes,
        padded,
        elements,
    )


def _about_workers(snapshot: MetricsSnapshot, now_ns: int) -> Iterable[Metric]:
    busy = CounterMetricFamily(
        "tidegate_worker_busy_seconds", "Time a worker ran batches, counted at their end.", labels=("worker",)
    )
    up = GaugeMetricFamily("tidegate_worker_up", "1 while a worker takes batches, else 0.", labels=("worker",))
    for worker in snapshot.workers:
        busy.add_metric((worker.name,), worker.busy_ns * _PER_NS)
        up.add_metric((worker.name,), int(worker.up))
    advised = GaugeMetricFamily(
        "tidegate_worker_recommendation",
        f"Workers that the policy wants added (up) or removed (down); 0 when it is {ADVICE_HOLDS_S:g} s old.",
        labels=("direction",),
    )
    advised_ns = snapshot.advised_at_ns
    stands = advised_ns is not None and now_ns - advised_ns <= ADVICE_HOLDS_S / _PER_NS
    workers = snapshot.advised if stands else 0
    advised.add_metric(("up",), max(0, workers))
    advised.add_metric(("down",), max(0, -workers))
    return (busy, up, advised)


def _outcomes(counts: ModelCounts) -> Iterable[tuple[str, str, int]]:
    yield "on_time", "", counts.on_time
    yield "late", "", counts.late
    yield "failed", "", counts.failed
    yield "cancelled", "", counts.cancelled
    for reason, count in sorted(counts.dropped.items()):
        yield "dropped", reason, count


def _buckets(times: DurationHistogram) -> tuple[list[tuple[str, float]], float]:
    ends = [f"{bound_ns * _PER_NS:.6g}" for bound_ns in times.bounds_ns]
    return list(zip([*ends, "+Inf"], accumulate(times.counts), strict=True)), times.sum_ns * _PER_NS


def _size_buckets(sizes: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    ends = [(str(end), sum(count for size, count in sizes.items() if size <= end)) for end in _SIZES]
    return [*ends, ("+Inf", sum(sizes.values()))], sum(size * count for size, count in sizes.items())
