"""Prometheus registry of Tidegate's metrics, built for each scrape."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from tidegate.observation import EngineRestarted, ObserverRemoved, PolicyReplaced, PolicyRestored
from tidegate.observation.stimuli import ChangeState
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.observability.metrics import DurationHistogram, MetricsSnapshot, ModelCounts
from tidegate_proxy.transport.client_bounds import ClientBounds

ADVICE_HOLDS_S = 60.0
"""Seconds after a policy's last advice at which its metric returns to 0; a policy repeats valid advice."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper ends of the classes of batch sizes."""
_PER_NS = 1e-9
CHANGE_STATES: Final = get_args(ChangeState)
_OF_MODEL: Final = ("model",)
_FAILURES: Final = {
    PolicyReplaced: (
        "tidegate_policy_fallbacks",
        "Times a policy, or a part of one, broke or took too long, and first come, first served took over.",
    ),
    PolicyRestored: ("tidegate_policy_restored", "Times a policy that had broken was tried again and decides."),
    ObserverRemoved: ("tidegate_observers_removed", "Observers that raised an error and were removed."),
    EngineRestarted: (
        "tidegate_engine_restarts",
        "Times the engine itself broke and restarted: requests that its fault concerned failed.",
    ),
}
"""Counters of effects, with their help texts."""

FamilyT = TypeVar("FamilyT", bound=Any)


def _filled(
    family: Callable[..., FamilyT],
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], *tuple[Any, ...]]],
) -> FamilyT:
    made = family(name, text, labels=labels)
    for values, *numbers in samples:
        made.add_metric(values, *numbers)
    return made


counter = partial(_filled, CounterMetricFamily)
"""Metric with a name, help text and names of labels; each sample has the values of its labels, then its value."""
gauge = partial(_filled, GaugeMetricFamily)
histogram = partial(_filled, HistogramMetricFamily)
summary = partial(_filled, SummaryMetricFamily)


class _CopiedMetrics(Collector):
    """Metrics whose values are known."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


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

    It may be built in any thread: the event loop changes only `bounds` meanwhile, and their counters are copied before
    they are sorted. `ejections`: for each Triton, how often it was ejected, and whether it is. `bounds`: what clients
    hold. `restarts`: restarts of each worker's Triton in a deployment. `left_apis`: Triton, protocol and API of
    everything that a Triton restricts itself. `policy`: name of the current policy.
    """
    metrics = [
        *_about_clients(bounds),
        *_about_requests(snapshot.counts.models, snapshot.waiting, snapshot.counts.refused),
        *_about_workers(snapshot, now_ns),
        *_about_tenants(snapshot),
        *_about_engine(snapshot, policy),
        *_about_changes(snapshot),
        *_about_tritons(ejections, restarts, left_apis),
    ]
    registry = CollectorRegistry()
    registry.register(_CopiedMetrics(metrics))
    ProcessCollector(registry=registry)
    return registry


def _about_clients(bounds: ClientBounds) -> Iterable[Metric]:
    yield counter(
        "tidegate_limit_exceeded",
        "Connections and calls that a limit of the configuration ended or refused.",
        ("protocol", "limit"),
        sorted(bounds.ended.copy().items()),
    )
    yield gauge(
        "tidegate_connections",
        "Connections of clients that are open.",
        ("protocol",),
        (((protocol,), count) for protocol, count in sorted(bounds.connections.copy().items())),
    )
    yield GaugeMetricFamily(
        "tidegate_in_flight_bytes", "Bytes of requests that were read and are not answered yet.", bounds.in_flight_bytes
    )
    yield GaugeMetricFamily(
        "tidegate_response_buffer_bytes", "Bytes of answers that their clients have not taken.", bounds.unread_bytes
    )


def _about_engine(snapshot: MetricsSnapshot, policy: str) -> Iterable[Metric]:
    counts = snapshot.counts
    yield histogram(
        "tidegate_scheduling_duration_seconds",
        "Time the engine and its policy took for one event.",
        (),
        [((), *_buckets(counts.decisions))],
    )
    for effect, (name, text) in _FAILURES.items():
        yield CounterMetricFamily(name, text, counts.failures[effect.__name__])
    yield counter(
        "tidegate_batch_verifications",
        "Batches of which a request was executed again alone, by whether the answers agree.",
        ("model", "result"),
        sorted(counts.verified.items()),
    )
    yield counter(
        "tidegate_bypassed",
        "Requests that bypassed the scheduler: shadow mode, canary, or what only Triton can serve.",
        ("model", "outcome"),
        sorted(counts.bypassed.items()),
    )
    yield counter(
        "tidegate_internal_errors",
        "Internal errors of Tidegate, each of which is logged.",
        ("place",),
        (((place,), count) for place, count in sorted(faults.counts().items())),
    )
    yield gauge(
        "tidegate_build_info",
        "1, with version and policy as labels.",
        ("version", "policy"),
        [((version("tidegate-proxy"), policy), 1)],
    )


def _about_tritons(
    ejections: Mapping[str, tuple[int, bool]], restarts: Mapping[str, int], left_apis: Collection[tuple[str, str, str]]
) -> Iterable[Metric]:
    yield counter(
        "tidegate_triton_ejections",
        "Times a Triton was given nothing for a while, as it failed.",
        ("triton",),
        (((address,), count) for address, (count, _) in ejections.items()),
    )
    yield gauge(
        "tidegate_triton_ejected",
        "1 while a Triton is given nothing, as it failed, else 0.",
        ("triton",),
        (((address,), int(is_out)) for address, (_, is_out) in ejections.items()),
    )
    yield counter(
        "tidegate_triton_restarts",
        "Times the Triton of a worker ended by itself and was started again.",
        ("worker",),
        (((worker,), count) for worker, count in restarts.items()),
    )
    yield gauge(
        "tidegate_triton_restricted_api",
        "1 for each API that a Triton restricts: Tidegate passes its calls, and schedules none without the key.",
        ("triton", "protocol", "api"),
        ((labels, 1) for labels in sorted(left_apis)),
    )


def _about_tenants(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    """Return the accounts of models and tenants; costs only with prices, rejections only with tenants."""
    yield counter(
        "tidegate_gpu_seconds",
        "Time for which workers ran batches of a model, divided among tenants by rows.",
        ("model", "tenant", "device_class"),
        ((labels, duration_ns * _PER_NS) for labels, duration_ns in sorted(snapshot.gpu_ns.items())),
    )
    if snapshot.costs:
        yield counter(
            "tidegate_gpu_cost",
            "Cost of that time by the configured prices, in their currency.",
            ("model", "tenant"),
            sorted(snapshot.costs.items()),
        )
    if snapshot.rejections:
        yield counter(
            "tidegate_rate_limit_rejections",
            "Requests that the rate limit of their tenant rejected.",
            ("tenant",),
            (((tenant,), count) for tenant, count in sorted(snapshot.rejections.items())),
        )


def _about_changes(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    """Return the metrics of a controller's layout changes; none without a controller."""
    counts = snapshot.counts
    if counts.layout_gpus is None:
        return
    yield counter(
        "tidegate_layout_changes",
        "Changes of the layout that have reached a state.",
        ("state",),
        (((state,), counts.changes[state]) for state in CHANGE_STATES),
    )
    yield summary(
        "tidegate_layout_change_duration_seconds",
        "Time of a change, from its beginning to its end.",
        ("outcome",),
        (((outcome,), each.count, each.sum_ns * _PER_NS) for outcome, each in sorted(counts.change_times.items())),
    )
    yield GaugeMetricFamily(
        "tidegate_layout_gpus", "GPUs that the current layout takes; shares count as such.", counts.layout_gpus
    )


def _about_requests(
    models: Mapping[str, ModelCounts], waiting: Mapping[str, int], refused: Mapping[tuple[str, str], int]
) -> Iterable[Metric]:
    """Return the metrics of each model. `waiting`, `refused`: as in `MetricsSnapshot` and `EngineCounts`."""
    stages = [(name, shape, each) for name, counts in models.items() for shape, each in sorted(counts.stages.items())]
    yield gauge(
        "tidegate_slo_seconds",
        "Latency objective (SLO) of a model, from a request's arrival to its answer.",
        _OF_MODEL,
        (((name,), each.slo_ns * _PER_NS) for name, each in models.items() if each.slo_ns is not None),
    )
    yield counter(
        "tidegate_requests",
        "Requests that ended, by outcome: on_time, late, dropped (with the policy's reason), failed or cancelled.",
        ("model", "outcome", "reason"),
        (
            ((name, outcome, reason), count)
            for name, each in models.items()
            for outcome, reason, count in _outcomes(each)
        ),
    )
    yield gauge(
        "tidegate_queue_length",
        "Requests that wait for a batch, or for the next worker between two partitions.",
        _OF_MODEL,
        (((name,), waiting[name]) for name in models),
    )
    yield counter(
        "tidegate_queue_rejected",
        "Requests that were rejected before the queue, by the limit that it had reached: requests or bytes.",
        ("model", "reason"),
        (((name, reason), refused[name, reason]) for name in models for reason in ("requests", "bytes")),
    )
    yield histogram(
        "tidegate_queue_duration_seconds",
        "Time from a request's arrival until its batch starts.",
        _OF_MODEL,
        (((name,), *_buckets(each.queued)) for name, each in models.items()),
    )
    yield histogram(
        "tidegate_response_gap_seconds",
        "Time between the responses to a request in a slot (inter-token latency).",
        _OF_MODEL,
        (((name,), *_buckets(each.gaps)) for name, each in models.items() if any(each.gaps.counts)),
    )
    yield counter(
        "tidegate_response_gap_slo_streams",
        "Streams in slots that ended, by whether the mean time between their responses met slo_gap_ms: on_time, late.",
        ("model", "outcome"),
        (
            ((name, outcome), count)
            for name, each in models.items()
            if each.slo_gap_ns is not None
            for outcome, count in (("on_time", each.gaps_on_time), ("late", each.gaps_late))
        ),
    )
    yield histogram(
        "tidegate_slack_seconds",
        "Time from a batch's expected end, estimated at its start, to the first deadline of its requests.",
        _OF_MODEL,
        (((name,), *_buckets(each.slack)) for name, each in models.items()),
    )
    yield summary(
        "tidegate_batch_execution_duration_upper_seconds",
        "Expected upper bound of a batch's execution on a worker (a high quantile), by variable input shape.",
        ("model", "shape"),
        (((name, shape), each.count, each.upper_ns * _PER_NS) for name, shape, each in stages),
    )
    yield summary(
        "tidegate_batch_execution_duration_seconds",
        "Time a batch's execution on a worker took, by variable input shape.",
        ("model", "shape"),
        (((name, shape), each.count, each.taken_ns * _PER_NS) for name, shape, each in stages),
    )
    yield histogram(
        "tidegate_request_duration_seconds",
        "Time from a request's arrival to the end of its batch, for answered requests.",
        _OF_MODEL,
        (((name,), *_buckets(each.answered)) for name, each in models.items()),
    )
    yield summary(
        "tidegate_shape_request_duration_seconds",
        "Time from a request's arrival to the end of its batch, by variable input shape, for models that have one.",
        ("model", "shape"),
        (
            ((name, shape), count, sum_ns * _PER_NS)
            for name, each in models.items()
            for shape, (count, sum_ns) in sorted(each.shapes.items())
        ),
    )
    yield histogram(
        "tidegate_batch_rows",
        "Rows of the batches that started.",
        _OF_MODEL,
        (((name,), *_size_buckets(each.batch_rows)) for name, each in models.items()),
    )
    yield histogram(
        "tidegate_batch_requests",
        "Requests of the batches that started.",
        _OF_MODEL,
        (((name,), *_size_buckets(each.batch_requests)) for name, each in models.items()),
    )
    yield counter(
        "tidegate_padded_rows",
        "Rows of requests that were padded, when their batches started.",
        _OF_MODEL,
        (((name,), each.padded_rows) for name, each in models.items()),
    )
    yield counter(
        "tidegate_padded_elements",
        "Elements of the inputs that were padded: sent by clients, and added.",
        ("model", "part"),
        (
            ((name, part), count)
            for name, each in models.items()
            for part, count in (("sent", each.sent_elements), ("added", each.added_elements))
        ),
    )


def _about_workers(snapshot: MetricsSnapshot, now_ns: int) -> Iterable[Metric]:
    counts = snapshot.counts
    workers = counts.workers.values()
    yield counter(
        "tidegate_worker_busy_seconds",
        "Time a worker ran batches, counted at their end.",
        ("worker",),
        (((worker.name,), worker.busy_ns * _PER_NS) for worker in workers),
    )
    yield gauge(
        "tidegate_worker_up",
        "1 while a worker takes batches, else 0.",
        ("worker",),
        (((worker.name,), int(worker.up)) for worker in workers),
    )
    stands = counts.advised_at_ns is not None and now_ns - counts.advised_at_ns <= ADVICE_HOLDS_S / _PER_NS
    advised = counts.advised if stands else 0
    yield gauge(
        "tidegate_worker_recommendation",
        f"Workers that the policy wants added (up) or removed (down); 0 when it is {ADVICE_HOLDS_S:g} s old.",
        ("direction",),
        [(("up",), max(0, advised)), (("down",), max(0, -advised))],
    )


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
