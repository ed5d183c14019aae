"""Triton's own metrics of all Tritons behind one Tidegate.

A Triton counts merged batches of scheduled models, not clients' requests. So for those models the request metrics
(`REQUEST_METRICS`) come from Tidegate's `Statistics`. Everything else is copied from the Tritons' own pages, with a
label `triton` if there are several.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from tidegate_proxy.observability.exposition import MetricFamily, families_of, merged, sample
from tidegate_proxy.observability.model_statistics import FAILURE_REASONS, RequestCounts

REQUEST_METRICS = {
    "nv_inference_request_success": "Number of successful inference requests, all batch sizes",
    "nv_inference_request_failure": "Number of failed inference requests, all batch sizes",
    "nv_inference_count": "Number of inferences performed (does not include cached requests)",
    "nv_inference_exec_count": "Number of model executions performed (does not include cached requests)",
    "nv_inference_request_duration_us": "Cumulative inference request duration in microseconds (includes cached "
    "requests)",
    "nv_inference_queue_duration_us": "Cumulative inference queuing duration in microseconds (includes cached "
    "requests)",
    "nv_inference_compute_input_duration_us": "Cumulative compute input duration in microseconds (does not include "
    "cached requests)",
    "nv_inference_compute_infer_duration_us": "Cumulative compute inference duration in microseconds (does not "
    "include cached requests)",
    "nv_inference_compute_output_duration_us": "Cumulative inference compute output duration in microseconds (does "
    "not include cached requests)",
    "nv_inference_pending_request_count": "Instantaneous number of pending requests awaiting execution per-model.",
}
"""Names and help texts of Triton's request metrics (src/metrics.cc of its core)."""
FAILURE_METRIC = "nv_inference_request_failure"
_GAUGES = frozenset({"nv_inference_pending_request_count"})
_NS_PER_US = 1000
_TYPE_LINE = re.compile(r"^# TYPE (\S+)", re.MULTILINE)


def request_metrics(
    counts: Mapping[tuple[str, str], RequestCounts], pending: Mapping[tuple[str, str], int]
) -> list[MetricFamily]:
    """Return Triton's request metrics of the scheduled models, as clients see them.

    `counts`: `Statistics.snapshot()`; `pending`: queued requests; both by (model, version).
    """
    families = [
        MetricFamily(name, "gauge" if name in _GAUGES else "counter", help_text)
        for name, help_text in REQUEST_METRICS.items()
    ]
    for (model, version), of_model in sorted(counts.items()):
        values = {
            "nv_inference_request_success": of_model.successes,
            "nv_inference_count": of_model.rows,
            "nv_inference_exec_count": of_model.executions,
            "nv_inference_request_duration_us": of_model.success_ns // _NS_PER_US,
            "nv_inference_queue_duration_us": of_model.queue_ns // _NS_PER_US,
            "nv_inference_compute_input_duration_us": of_model.input_ns // _NS_PER_US,
            "nv_inference_compute_infer_duration_us": of_model.infer_ns // _NS_PER_US,
            "nv_inference_compute_output_duration_us": of_model.output_ns // _NS_PER_US,
            "nv_inference_pending_request_count": pending.get((model, version), 0),
        }
        for family in families:
            if family.name != FAILURE_METRIC:
                labels = {"model": model, "version": version}
                family.samples.append(sample(family.name, labels, values[family.name]))
                continue
            for reason in FAILURE_REASONS:
                labels = {"model": model, "reason": reason, "version": version}
                family.samples.append(sample(family.name, labels, of_model.failures[reason]))
    return [family for family in families if family.samples]


def merge(
    own: str, requests: Iterable[MetricFamily], pages: Mapping[str, str | None], scheduled: Collection[str]
) -> str:
    """Merge `own` (Tidegate's metrics, as text), the request metrics of scheduled models, and the Tritons' pages.

    `scheduled`: models, and partitions of models, whose request metrics on the Tritons' pages are replaced. Metrics of
    a Triton with a name in `own` are replaced too.
    """
    own_names = {"tidegate_triton_up", *_TYPE_LINE.findall(own)}
    up = MetricFamily("tidegate_triton_up", "gauge", "1 if a Triton answered with its metrics, else 0.")
    theirs: list[MetricFamily] = []
    for triton, page in pages.items():
        up.samples.append(sample("tidegate_triton_up", {"triton": triton}, int(page is not None)))
        label = triton if len(pages) > 1 else None
        theirs += [family for family in _passed_through(page or "", label, scheduled) if family.name not in own_names]
    tail = merged([*([up] if up.samples else []), *requests, *theirs])
    return own + "".join(map(str, tail))


def _passed_through(page: str, label: str | None, scheduled: Collection[str]) -> Iterable[MetricFamily]:
    hidden = {("model", name) for name in scheduled}
    for family in families_of(page):
        kept = [
            each if label is None else each.labeled("triton", label)
            for each in family.samples
            if family.name not in REQUEST_METRICS or hidden.isdisjoint(each.labels)
        ]
        if kept:
            yield MetricFamily(family.name, family.type, family.help, kept)
