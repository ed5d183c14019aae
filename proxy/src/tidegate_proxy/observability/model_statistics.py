"""Statistics of models as Triton reports them: kept for scheduled models, and merged with those of several Tritons.

A Triton counts merged batches. Clients such as perf_analyzer expect one success per request, so Tidegate's counts
replace the Tritons' own.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritonclient.grpc import service_pb2

from tidegate_proxy.tritons.model_graphs import GraphStage, needed_stages

Message = Any
"""Protobuf message; these have no common type."""
_HTTP_ORDER = (
    "name",
    "version",
    "last_inference",
    "inference_count",
    "execution_count",
    "inference_stats",
    "response_stats",
    "batch_stats",
    "memory_usage",
)
FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's failure reasons: rejected or timed out in the queue, cancelled by the client, model failed, others."""


@dataclass(slots=True)
class RequestCounts:
    """Counts of clients' requests to one model version. Sums of durations cover the successes."""

    rows: int = 0
    """Rows of the successes: Triton's inference_count."""
    executions: int = 0
    last_ms: int = 0
    """Time of the last response, in milliseconds since the epoch; 0: never."""
    successes: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failures, by one of FAILURE_REASONS."""
    failure_ns: int = 0


class ModelStatistics:
    """Statistics of the scheduled models, as Triton would report them for clients' requests.

    A request to an undeclared model or version is not counted: its Triton counts or rejects it.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], RequestCounts] = {}
        self._versions: dict[str, tuple[str, ...]] = {}
        """The latest declaration of each model, most recent last."""
        self._ensembles: dict[str, tuple[GraphStage, ...]] = {}

    def declare(self, model: str, versions: Iterable[str]) -> None:
        """Declare the loaded versions of a scheduled model; known ones keep their counts."""
        loaded, before = tuple(sorted(versions, key=by_number)), self._versions.get(model, ())
        if loaded == before:
            return
        self._versions[model] = loaded
        for version in before:
            if version not in loaded:
                del self._counts[model, version]
        for version in loaded:
            self._counts.setdefault((model, version), RequestCounts())

    def declare_ensemble(self, model: str, steps: Iterable[GraphStage]) -> None:
        """Declare the steps that a request to an ensemble runs inside Triton.

        perf_analyzer expects the counts of all of them to change. Only Triton knows their durations, which stay with
        the ensemble.
        """
        self._ensembles[model] = tuple(steps)

    def latest(self, model: str) -> str | None:
        """Return the version that answers requests without one; None for an undeclared model."""
        versions = self._versions.get(model)
        return versions[-1] if versions else None

    def answered(
        self,
        model: str,
        version: str,
        rows: int,
        *,
        requests: int = 1,
        at_ms: int,
        total_ns: int,
        queue_ns: int,
        infer_ns: int,
        input_ns: int = 0,
        output_ns: int = 0,
    ) -> None:
        """Count one request or those of a batch, answered `at_ms` since the epoch; rows and durations are sums.

        `total_ns`: since arrival; `queue_ns`: in the queue; `input_ns`: merging; `infer_ns`: on Triton; `output_ns`:
        splitting the response.
        """
        if (counts := self._find(model, version)) is None:
            return
        counts.rows += rows
        counts.last_ms = max(counts.last_ms, at_ms)
        counts.successes += requests
        counts.success_ns += total_ns
        counts.queue_ns += queue_ns
        counts.input_ns += input_ns
        counts.infer_ns += infer_ns
        counts.output_ns += output_ns

    def failed(self, model: str, version: str, reason: str, total_ns: int) -> None:
        """Count a rejected or failed request; `reason` is one of FAILURE_REASONS.

        `total_ns`: time since its arrival.
        """
        if counts := self._find(model, version):
            counts.failures[reason] += 1
            counts.failure_ns += total_ns

    def executed(self, model: str, version: str) -> None:
        """Count an execution of a batch on a Triton, failed or not."""
        if counts := self._find(model, version):
            counts.executions += 1

    def passed_through(
        self,
        model: str,
        version: str,
        *,
        ok: bool,
        at_ms: int,
        total_ns: int,
        rows: int = 1,
        wanted: Collection[str] = (),
    ) -> None:
        """Count a bypassed request that is answered: all of its time counts as inference.

        Args:
            model: its model.
            version: its version; "": the latest.
            ok: whether it succeeded.
            at_ms: milliseconds since the epoch.
            total_ns: its latency.
            rows: its rows.
            wanted: outputs that it names, for which an ensemble may leave steps out.
        """
        self.executed(model, version)
        if not ok:
            self.failed(model, version, "BACKEND", total_ns)
            return
        self.answered(model, version, rows, at_ms=at_ms, total_ns=total_ns, queue_ns=0, infer_ns=total_ns)
        steps = self._ensembles.get(model, ())
        for step in (steps[number] for number in needed_stages(steps, wanted)):
            self.passed_through(
                step.model,
                step.version,
                ok=True,
                at_ms=at_ms,
                total_ns=0,
                rows=rows,
                wanted=[name for name, _ in step.outputs],
            )

    def snapshot(self) -> dict[tuple[str, str], RequestCounts]:
        """Return a copy of the counts, by (model, version)."""
        return {key: replace(counts, failures=counts.failures.copy()) for key, counts in self._counts.items()}

    def _find(self, model: str, version: str) -> RequestCounts | None:
        return self._counts.get((model, version or self.latest(model) or ""))


def by_number(version: str) -> tuple[int, str]:
    """Return a sort key for versions: 10 comes after 9."""
    return (int(version) if version.isdecimal() else -1, version)


def merge_statistics(
    responses: Iterable[Message],
    ours: Mapping[tuple[str, str], RequestCounts],
    hidden: Collection[str] = (),
    split: Collection[str] = (),
) -> Message:
    """Merge the ModelStatisticsResponses of several Tritons, ordered by name and version.

    `ours`: `ModelStatistics.snapshot()`; it replaces the inference statistics of those models. Their batch_stats,
    memory_usage and response_stats, and everything of other models, are sums over the Tritons. `hidden` models are left
    out; `split` ones are in `ours` only.
    """
    whole: dict[tuple[str, str], Message] = {}
    for response in responses:
        for theirs in response.model_stats:
            if theirs.name in hidden:
                continue
            key = (theirs.name, theirs.version)
            if key in whole:
                _add_model(whole[key], theirs)
            else:
                whole[key] = service_pb2.ModelStatistics()
                whole[key].CopyFrom(theirs)
    for name, version in ours:
        if name in split:
            whole[name, version] = service_pb2.ModelStatistics(name=name, version=version)
    for key in whole.keys() & ours.keys():
        _replace(whole[key], ours[key])
    ordered = sorted(whole, key=lambda key: (key[0], by_number(key[1])))
    return service_pb2.ModelStatisticsResponse(model_stats=[whole[key] for key in ordered])


def statistics_json(response: Message) -> bytes:
    """Return the response as Triton's HTTP endpoint prints it."""
    models = [_plain(model) for model in response.model_stats]
    return json.dumps({"model_stats": models}, separators=(",", ":")).encode()


def _add_model(whole: Message, part: Message) -> None:
    whole.last_inference = max(whole.last_inference, part.last_inference)
    whole.inference_count += part.inference_count
    whole.execution_count += part.execution_count
    _add(whole.inference_stats, part.inference_stats)
    for batch in part.batch_stats:
        if same := next((own for own in whole.batch_stats if own.batch_size == batch.batch_size), None):
            _add(same, batch, keep=("batch_size",))
        else:
            whole.batch_stats.add().CopyFrom(batch)
    whole.batch_stats.sort(key=lambda batch: batch.batch_size)
    for usage in part.memory_usage:
        if same := next((own for own in whole.memory_usage if (own.type, own.id) == (usage.type, usage.id)), None):
            same.byte_size += usage.byte_size
        else:
            whole.memory_usage.add().CopyFrom(usage)
    for response in part.response_stats:
        _add(whole.response_stats[response], part.response_stats[response])


def _add(whole: Message, part: Message, keep: tuple[str, ...] = ()) -> None:
    """Add every number of a message, at any depth, but for those that are to be kept."""
    for entry, value in part.ListFields():
        if entry.name in keep:
            continue
        if entry.message_type is None:
            setattr(whole, entry.name, getattr(whole, entry.name) + value)
        else:
            own = getattr(whole, entry.name)
            own.SetInParent()
            _add(own, value)


def _replace(model: Message, ours: RequestCounts) -> None:
    model.last_inference = ours.last_ms
    model.inference_count = ours.rows
    model.execution_count = ours.executions
    failures, count = ours.failures.total(), ours.successes
    # Nothing is cached on the way: every success was queued and computed.
    duration = service_pb2.StatisticDuration
    model.inference_stats.CopyFrom(
        service_pb2.InferStatistics(
            success=duration(count=count, ns=ours.success_ns),
            fail=duration(count=failures, ns=ours.failure_ns),
            queue=duration(count=count, ns=ours.queue_ns),
            compute_input=duration(count=count, ns=ours.input_ns),
            compute_infer=duration(count=count, ns=ours.infer_ns),
            compute_output=duration(count=count, ns=ours.output_ns),
            cache_hit=duration(),
            cache_miss=duration(),
        )
    )


def _plain(message: Message) -> dict[str, Any]:
    """A message as JSON's types, every field present: protobuf's own JSON would write its 64-bit numbers as text."""
    names = [entry.name for entry in message.DESCRIPTOR.fields]
    if isinstance(message, service_pb2.ModelStatistics):
        names.sort(key=_HTTP_ORDER.index)
    return {name: _plain_value(message, name) for name in names}


def _plain_value(message: Message, name: str) -> object:
    value = getattr(message, name)
    if name == "response_stats":
        return {key: _plain(value[key]) for key in sorted(value)}
    if name in ("batch_stats", "memory_usage"):
        return [_plain(entry) for entry in value]
    return _plain(value) if message.DESCRIPTOR.fields_by_name[name].message_type else value
