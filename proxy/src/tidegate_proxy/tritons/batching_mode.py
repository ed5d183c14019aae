"""Scheduling mode of a model, with the reason: its requests are batched, run one by one, or bypass the scheduler.

Only requests that Triton would batch are merged. `dynamic_batching` in config.pbtxt is the consent of a model whose
backend executes Triton's batches as one; the operator may override it (docs/reference/config.md).
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2

from tidegate.api import NEVER_NS
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.configuration.section import GraphMode, SchedulingMode
from tidegate_proxy.tritons.backend import Backend, BackendError

log = logging.getLogger(__name__)


SCHEDULING_PARAMETER: Final = "tidegate_scheduling"
"""Parameter of a config.pbtxt with the operator's setting. Models may have a parameter `batch` of their own."""
WORDS_OF_MODE: Final = {
    "batched": "batched",
    "unbatched": "unbatched",
    "bypass": "bypassed",
    "expanded": "expanded",
    "auto": "expanded under load",
    "slots": "in slots",
}
"""Words for each scheduling mode."""
MODE_WORDS: Final[dict[str, SchedulingMode]] = {
    "batched": "batched",
    "unbatched": "unbatched",
    "bypass": "bypass",
    "expanded": "expanded",
    "auto": "auto",
}
GRAPH_MODES: Final[dict[str, GraphMode]] = {"expanded": "expanded", "auto": "auto"}
"""Modes of ensembles."""
RUN_BATCHES: Final = frozenset({"fil", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that concatenate the requests of Triton's batcher: to them a batch is its rows.

To others, such as the Python backend, the unit is the request: Triton passes several at a time, and the model decides
how to run them.
"""
CUSTOM_BATCHING: Final = "TRITON_BATCH_STRATEGY_PATH"
"""Parameter with which a model selects a batching strategy of its own."""


@dataclass(frozen=True, slots=True)
class BatchingDecision:
    """Decision on the scheduling of one model."""

    scheduling: SchedulingMode | Literal["slots"]
    """Scheduling: `batched` and `unbatched` use the policy; `bypass` goes to a Triton directly.

    Of an ensemble, `expanded` and `auto`: its steps use the policy. `slots`: each request uses the policy, for a slot.
    """
    why: str
    merge_limit: int | None = None
    """Largest number of rows in a batch of several requests; None: `max_batch_size`; 1: requests run alone."""
    warning: str = ""
    """Warning for the operator: a setting that cannot be applied, a queue delay that every batch pays."""
    is_requested: bool = False
    """Whether the operator asked for the bypass."""
    is_left_to_triton: bool = False
    """Whether it bypasses only because its Triton's batcher is faster than requests one by one: an SLO is no error."""


def consent_of(
    config: model_config_pb2.ModelConfig, configured: SchedulingMode | None = None, *, has_slo: bool = False
) -> BatchingDecision:
    """Decide whether a model is batched, unbatched or bypassed, with the reason.

    Raises BackendError for an invalid parameter of the config. `configured`: the operator's setting in the proxy's
    configuration; it precedes the parameter `tidegate_scheduling` of the model's config, which precedes the rest of the
    config. `has_slo`: the model has an SLO, which asks for scheduling.
    """
    word, source = _word_of(config, configured)
    of_graphs = word in GRAPH_MODES
    if obstacle := next(_obstacles(config), None):
        is_warned = word not in (None, "bypass") and not (of_graphs and config.HasField("ensemble_scheduling"))
        warning = f"cannot be scheduled (scheduling: {word}): {obstacle}" if is_warned else ""
        return BatchingDecision("bypass", obstacle, warning=warning)
    if of_graphs:
        warning = f"scheduling: {word} is for ensembles, and this model is none: remove it"
        return replace(_by_config(config, has_slo=has_slo), warning=warning)
    if word == "bypass":
        return BatchingDecision("bypass", source, is_requested=True)
    if word is not None:
        return BatchingDecision(word, source, None if word == "batched" else 1, _delay_warning(config))
    return _by_config(config, has_slo=has_slo)


def _word_of(
    config: model_config_pb2.ModelConfig, configured: SchedulingMode | None
) -> tuple[SchedulingMode | None, str]:
    """The operator's setting, and where it is."""
    if configured is not None or SCHEDULING_PARAMETER not in config.parameters:
        return configured, "the configuration says so"
    text = config.parameters[SCHEDULING_PARAMETER].string_value
    if text not in MODE_WORDS:
        where = f"model {config.name!r}: its config's parameter {SCHEDULING_PARAMETER!r}"
        raise BackendError(f"{where} is {text!r}: say batched, unbatched, bypass, or, of an ensemble, expanded or auto")
    return MODE_WORDS[text], f"{SCHEDULING_PARAMETER} of its config says so"


def graph_mode_of(config: model_config_pb2.ModelConfig, configured: SchedulingMode | None) -> GraphMode | None:
    """Return when the steps of an ensemble are scheduled; None: never. `configured`: the operator's setting."""
    if not config.HasField("ensemble_scheduling"):
        return None
    word, _ = _word_of(config, configured)
    return GRAPH_MODES.get(word) if word else None


def most_careful(consents: Iterable[BatchingDecision]) -> BatchingDecision:
    """Return the most cautious decision of several Tritons or partitions."""
    return min(consents, key=lambda consent: NEVER_NS if consent.merge_limit is None else consent.merge_limit)


def lines_of(consents: Mapping[str, BatchingDecision]) -> list[str]:
    """Return one line for each decision and reason, with the models."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name, consent in consents.items():
        limit = consent.merge_limit if consent.scheduling == "batched" else None
        why = consent.why if limit is None else f"{consent.why}; up to {limit} rows, its largest preferred size"
        by_reason.setdefault((WORDS_OF_MODE[consent.scheduling], why), []).append(name)
    return [f"{word}: {', '.join(names)} ({why})" for (word, why), names in sorted(by_reason.items())]


def delay_us(config: model_config_pb2.ModelConfig) -> int:
    """Return the delay of Triton's batcher for a batch that is not full, in microseconds."""
    return int(config.dynamic_batching.max_queue_delay_microseconds)


def asked_of_tritons_batcher(config: model_config_pb2.ModelConfig) -> list[str]:
    """Return the config fields by which a model needs Triton's own batcher."""
    batching = config.dynamic_batching
    queue = batching.default_queue_policy
    asked = {
        "priority_queue_policy": batching.priority_queue_policy,
        "preserve_ordering": batching.preserve_ordering,
        "max_queue_size": queue.max_queue_size,
        "default_timeout_microseconds": queue.default_timeout_microseconds,
        "allow_timeout_override": queue.allow_timeout_override,
    }
    return [name for name, value in asked.items() if value]


def mode_that_schedules(config: model_config_pb2.ModelConfig) -> SchedulingMode | None:
    """Return the setting with which a bypassed model is scheduled; None: Tidegate cannot schedule it."""
    if next(_obstacles(config), None):
        return None
    return "unbatched" if next(_by_request(config), None) else "batched"


def _obstacles(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    """Why requests cannot be scheduled, whatever anybody says."""
    if config.max_batch_size < 1:
        yield "max_batch_size is 0: the model has no batch dimension"
    if config.HasField("sequence_batching"):
        yield "sequence_batching: requests of one sequence belong to one instance, in order"
    if config.model_transaction_policy.decoupled:
        yield "decoupled: a request may have any number of responses"
    if config.HasField("ensemble_scheduling"):
        yield "ensemble: its steps are scheduled by Triton"
    if any(tensor.is_shape_tensor for tensor in (*config.input, *config.output)):
        yield "shape tensors have no rows"
    if config.batch_input or config.batch_output:
        yield "batch_input or batch_output: Triton itself must form the batch"


def _by_config(config: model_config_pb2.ModelConfig, *, has_slo: bool) -> BatchingDecision:
    """Return the decision by the config alone. Models for which Triton does more than Tidegate can are bypassed."""
    if config.response_cache.enable and not has_slo:
        return BatchingDecision("bypass", "response_cache: Triton answers what it knows before anything is scheduled")
    if not config.HasField("dynamic_batching"):
        return BatchingDecision(
            "unbatched", "no dynamic_batching: Triton merges nothing either; scheduling: batched says that it may be", 1
        )
    if delay := delay_us(config):
        remedy = "drop it from dynamic_batching in its config.pbtxt, or say scheduling: batched"
        if reason := next(_by_request(config), None):
            remedy = "drop it from dynamic_batching in its config.pbtxt, and say scheduling: batched or unbatched"
            remedy += f" ({reason})"
        paid = f"max_queue_delay_microseconds: {delay}, which every batch would pay again that is sent to its Triton"
        return BatchingDecision("bypass", f"{paid}; {remedy}")
    if has_slo:
        return _scheduled(config)
    return _left_to_triton(config) or BatchingDecision(
        "batched", "dynamic_batching", max(config.dynamic_batching.preferred_batch_size, default=None)
    )


def _scheduled(config: model_config_pb2.ModelConfig) -> BatchingDecision:
    """With dynamic_batching, and an SLO, which says that a policy is to decide."""
    if left := _left_whole(config):
        warning = (
            f"its SLO has no effect, and its Triton batches it as without Tidegate ({left.why}); max_concurrency has "
            "it queued and dropped by the SLO, and batched by its Triton"
        )
        return replace(left, warning=warning)
    return BatchingDecision("batched", "dynamic_batching, and an SLO")


def _left_to_triton(config: model_config_pb2.ModelConfig) -> BatchingDecision | None:
    """With dynamic_batching of a sort that only Triton's batcher does; None: of no such sort."""
    if left := _left_whole(config):
        return left
    if asked := asked_of_tritons_batcher(config):
        return BatchingDecision(
            "bypass",
            f"dynamic_batching asks for {', '.join(asked)}, which Triton's batcher keeps: an SLO for this model, or "
            "scheduling: batched, has Tidegate schedule it in its own way",
        )
    return None


def _left_whole(config: model_config_pb2.ModelConfig) -> BatchingDecision | None:
    """With dynamic_batching of requests that must not become one: one by one they would be slower than in Triton."""
    if reason := next(_by_request(config), None):
        why = f"{reason}: its Triton batches them; scheduling: batched or unbatched has them scheduled"
        return BatchingDecision("bypass", why, is_left_to_triton=True)
    return None


def _by_request(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    """Why requests that Triton would put into one batch are not to become one request."""
    if config.backend not in RUN_BATCHES or config.runtime.endswith(".py"):
        yield f"backend {config.runtime or config.backend or 'unknown'}: its unit is the request"
    if any(tensor.allow_ragged_batch for tensor in config.input):
        yield "allow_ragged_batch: requests of unlike shapes share batches, each known by its own"
    if CUSTOM_BATCHING in config.parameters:
        yield "a batching strategy of its own says which requests go together"
    if config.response_cache.enable:
        yield "response_cache: answers are kept by request"


def _delay_warning(config: model_config_pb2.ModelConfig) -> str:
    delay = delay_us(config)
    if not delay:
        return ""
    return (
        f"every batch that is not full waits in its Triton, too: drop `max_queue_delay_microseconds: {delay}` from "
        f"dynamic_batching in {config.name}/config.pbtxt, or let Tidegate load it without, where the Triton runs with "
        f"--model-control-mode=explicit (models.{config.name}.strip_queue_delay: true)"
    )


async def drop_delays(backends: Sequence[Backend], configured: Mapping[str, ModelConfig]) -> None:
    """Reload models configured without queue delay, on every Triton that answers.

    A Triton that rejects this (without explicit model control) is logged, and keeps the delay.
    """
    wanted = {name for name, model in configured.items() if model.strip_queue_delay}
    if wanted:
        await asyncio.gather(*(_drop_delays(backend, wanted) for backend in backends))


async def _drop_delays(backend: Backend, wanted: set[str]) -> None:
    try:
        for name in sorted(wanted.intersection(await backend.ready_versions())):
            config = await backend.config(name)
            if delay := delay_us(config):
                await backend.load(config.name, _without_delay(config))
                log.info(
                    "model loaded without its queue delay, until its Triton loads it again",
                    extra={"model": config.name, "triton": backend.address, "delay_us": delay},
                )
    except BackendError as error:
        log.warning("queue delay not stripped", extra={"error": str(error)})


def _without_delay(config: model_config_pb2.ModelConfig) -> str:
    """The same config as JSON, which is what Triton takes in place of a config.pbtxt."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    changed.dynamic_batching.max_queue_delay_microseconds = 0
    return json.dumps(MessageToDict(changed, preserving_proto_field_name=True))
