"""Triton's own batcher behind Tidegate, words that cannot be followed, and models that could be batched."""

from collections.abc import Iterator
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.doctor.facts import Facts, Service
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.tritons.batching_mode import BATCH_PARAMETER, asked_of_tritons_batcher, delay_us

_HARMFUL: Final = frozenset({"preserve_ordering", "max_queue_size", "default_timeout_microseconds"})
"""What a batcher does to batches that are formed already: it holds them back, or refuses them."""


def words_in_vain(facts: Facts) -> Iterator[Finding]:
    """Words of the operator, `batch` and `merge.pad`, that a model's config does not allow to be followed."""
    for service in facts.services.values():
        word = facts.told(service.name).batch
        if word is None and BATCH_PARAMETER in service.config.parameters:
            word = service.config.parameters[BATCH_PARAMETER].string_value
        if service.consent.batch == "pass" and word not in (None, "pass"):
            yield Finding(
                "warning",
                "word-in-vain",
                f"models.{service.name}",
                f"its requests cannot be scheduled (batch: {word}): {service.consent.why}",
                "take the word out: they pass straight to a Triton",
            )
        if service.name in facts.unpadded:
            yield Finding(
                "error",
                "not-padded",
                f"models.{service.name}.merge.pad",
                f"it cannot be padded so, and `serve` does not start: {facts.unpadded[service.name]}",
                "correct it, or take it out",
            )


def waiting_twice(facts: Facts) -> Iterator[Finding]:
    """Scheduled models whose batches wait for company in their Triton, after they did so in Tidegate."""
    for service in facts.services.values():
        delay = delay_us(service.config)
        if service.model is not None and delay:
            yield Finding(
                "warning",
                "waits-twice",
                f"models.{service.name}",
                f"every batch that is not full waits up to {delay / 1e3:g} ms in its Triton, too: dynamic_batching "
                f"has max_queue_delay_microseconds: {delay}",
                f"drop it from {service.name}/config.pbtxt, or, where the Triton runs with "
                f"--model-control-mode=explicit, say models.{service.name}.load_without_delay: true",
            )


def judged_twice(facts: Facts) -> Iterator[Finding]:
    """Scheduled models whose Triton holds back or refuses whole batches by rules that were meant for requests."""
    for service in facts.services.values():
        asked = [name for name in asked_of_tritons_batcher(service.config) if name in _HARMFUL]
        if service.model is not None and asked:
            yield Finding(
                "warning",
                "judged-twice",
                f"models.{service.name}",
                f"its Triton applies to whole batches what was meant for requests: {', '.join(asked)} of "
                "dynamic_batching",
                f"drop that from {service.name}/config.pbtxt, or say models.{service.name}.batch: pass",
            )


def merged_by_nobody(facts: Facts) -> Iterator[Finding]:
    """Models with a batch dimension whose requests run one by one because nobody has said that they may be merged."""
    for service in facts.services.values():
        config = service.config
        if service.consent.batch != "alone" or facts.told(service.name).batch or BATCH_PARAMETER in config.parameters:
            continue
        if config.max_batch_size > 1 and not config.HasField("dynamic_batching"):
            verdict = facts.rows.get(service.name)
            if verdict is not None and verdict.batches is False:
                continue
            remedy = (
                "say merge if its rows do not influence each other; of an ONNX file `tidegate generate` finds that out"
            )
            if verdict is not None:
                remedy = "say merge: its rows are independent" if verdict.batches else f"{remedy} ({verdict.reason})"
            yield Finding(
                "advice",
                "never-merged",
                f"models.{service.name}.batch",
                "its requests run one by one, as in its Triton: it has no dynamic_batching",
                remedy,
            )


def batches_of_one(facts: Facts) -> Iterator[Finding]:
    """Models whose batch is fixed at one row though they look as if it could be freed."""
    for service in facts.services.values():
        if not _is_of_one_row(service):
            continue
        if service.config.backend in ("", "onnxruntime", "python"):
            remedy = "`tidegate generate MODEL.onnx --batch-dim` frees that of an ONNX file, where its graph allows"
        else:
            remedy = "export it with a dynamic batch, and set max_batch_size"
        yield Finding(
            "advice",
            "batch-of-one",
            f"model {service.name}",
            "it takes one row at a time, so that nothing can be merged",
            remedy,
        )


def _is_of_one_row(service: Service) -> bool:
    """Whether its inputs are of one row each, by max_batch_size or by a first dimension of 1, and Triton asks no more
    of them."""
    config = service.config
    if config.max_batch_size > 1 or not config.input:
        return False
    if config.HasField("ensemble_scheduling") or config.HasField("sequence_batching"):
        return False
    if config.model_transaction_policy.decoupled or config.batch_input or config.batch_output:
        return False
    return config.max_batch_size == 1 or all(_begins_with_one(tensor) for tensor in config.input)


def _begins_with_one(tensor: model_config_pb2.ModelInput) -> bool:
    return len(tensor.dims) > 1 and tensor.dims[0] == 1 and not tensor.is_shape_tensor
