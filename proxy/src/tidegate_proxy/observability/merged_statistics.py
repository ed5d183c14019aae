"""Merged ModelStatistics of several Tritons, as clients such as perf_analyzer expect them."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from tidegate_proxy.observability.observability import RequestCounts, by_number

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


def merge_statistics(
    responses: Iterable[Message],
    ours: Mapping[tuple[str, str], RequestCounts],
    hidden: Collection[str] = (),
    split: Collection[str] = (),
) -> Message:
    """Merge the ModelStatisticsResponses of several Tritons, ordered by name and version.

    `ours`: `Statistics.snapshot()`; it replaces the inference statistics of those models. Their batch_stats,
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
