"""Variants: different configurations of one model on different Tritons, as during a rolling update.

One configuration leads and is scheduled on its Tritons: that of most live Tritons, or of two equally frequent ones the
newer. If only `max_batch_size` differs, both are one variant, with batches that all of them accept. Other requests are
bypassed to a Triton that accepts them. So no request is rejected during an update, and after the last Triton has
changed there is one variant again.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.api.model import DEFAULT_PRIORITY
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.messages.model_signature import ModelSignature, datatype_of
from tidegate_proxy.tritons.backend import Backend, LoadedModel
from tidegate_proxy.tritons.batching_mode import BatchingDecision, most_careful


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Configuration of a model as one Triton loaded it."""

    backend: Backend
    config: model_config_pb2.ModelConfig
    consent: BatchingDecision
    """Scheduling decision for this Triton."""
    tensors: ModelSignature
    """Signature, also for a model whose requests are not scheduled."""

    @classmethod
    def of(
        cls,
        backend: Backend,
        model: LoadedModel,
        consent: BatchingDecision,
        settings: ModelConfig,
    ) -> "LoadedConfig":
        """Return the loaded configuration of a model. `settings`: the operator's settings."""
        return cls(backend, model.config, consent, with_priorities(model.signature, settings))

    @property
    def passes(self) -> bool:
        """Whether its requests bypass scheduling."""
        return self.consent.scheduling == "bypass"

    def agrees_with(self, other: "LoadedConfig") -> bool:
        """Return whether requests for both are interchangeable, apart from the number of rows."""
        if self.passes or other.passes:
            return self.passes and other.passes
        return self.tensors.tensors == other.tensors.tensors


@dataclass(frozen=True, slots=True)
class VariantAgreement:
    """Agreement of the Tritons that have a model."""

    leading: LoadedConfig
    """Leading configuration, if they differ."""
    signature: ModelSignature | None
    """Signature of scheduled requests, with as many rows as each of `followers` accepts; None: none are scheduled."""
    consent: BatchingDecision
    """Scheduling decision that holds for all agreeing Tritons."""
    followers: tuple[Backend, ...]
    """Tritons that requests of the leading configuration go to."""
    variants: tuple["ModelConfigVariant", ...]
    """All variants, the leading one first; empty if there is only one."""


@dataclass(frozen=True, slots=True)
class ModelConfigVariant:
    """Variant of a model, and the Tritons that have it."""

    config: model_config_pb2.ModelConfig
    backends: tuple[Backend, ...]

    def takes(self, header: service_pb2.ModelInferRequest) -> bool:
        """Return whether a request fits this variant, as far as its tensors are known."""
        batched = self.config.max_batch_size > 0
        inputs = {tensor.name: tensor for tensor in self.config.input}
        for declared in header.inputs:
            tensor = inputs.pop(declared.name, None)
            if tensor is None or declared.datatype != datatype_of(tensor.data_type):
                return False
            shape = declared.shape[1:] if batched else declared.shape
            if batched and (not declared.shape or declared.shape[0] > self.config.max_batch_size):
                return False
            if len(shape) != len(tensor.dims) or any(
                want not in (-1, have) for want, have in zip(tensor.dims, shape, strict=True)
            ):
                return False
        outputs = {tensor.name for tensor in self.config.output}
        complete = all(tensor.optional for tensor in inputs.values())
        return complete and all(output.name in outputs for output in header.outputs)


def with_priorities(signature: ModelSignature, settings: ModelConfig) -> ModelSignature:
    """Return a signature with the operator's priorities of its model."""
    if settings.priority_levels is None and settings.default_priority_level is None:
        return signature
    levels = signature.priority_levels if settings.priority_levels is None else settings.priority_levels
    default = settings.default_priority_level or (signature.default_priority if levels else DEFAULT_PRIORITY)
    return replace(signature, priority_levels=levels, default_priority=default)


def agree(forms: Sequence[LoadedConfig], voters: Container[Backend]) -> VariantAgreement:
    """Return the agreement of the Tritons that have a model; the configuration of most of them leads, of equals the
    newest.

    `forms`: configurations of at least one Triton, recent changes last. `voters`: Tritons that are available;
    configurations of others count only if none of these has one.
    """
    if len(forms) == 1:
        (only,) = forms
        return VariantAgreement(only, None if only.passes else only.tensors, only.consent, (only.backend,), ())
    present = [form for form in forms if form.backend in voters] or list(forms)
    newest_first = present[::-1]
    leading = max(newest_first, key=lambda form: sum(map(form.agrees_with, present)))
    agreeing = [form for form in present if form.agrees_with(leading)]
    signatures = [form.tensors for form in agreeing]
    signature = replace(
        min(signatures, key=lambda each: each.max_rows),
        reads_headers=any(each.reads_headers for each in signatures),
        heeds_timeout=any(each.heeds_timeout for each in signatures),
        priority_levels=max(each.priority_levels for each in signatures),
    )
    return VariantAgreement(
        leading,
        None if leading.passes else signature,
        leading.consent if leading.passes else most_careful(form.consent for form in agreeing),
        tuple(form.backend for form in forms if form.agrees_with(leading)),
        _variants(forms, leading),
    )


def _variants(forms: Sequence[LoadedConfig], leading: LoadedConfig) -> tuple[ModelConfigVariant, ...]:
    kinds: list[list[LoadedConfig]] = []
    for form in forms:
        same = next(
            (
                kind
                for kind in kinds
                if kind[0].tensors.tensors == form.tensors.tensors and kind[0].tensors.max_rows == form.tensors.max_rows
            ),
            None,
        )
        if same is None:
            kinds.append([form])
        else:
            same.append(form)
    if len(kinds) < 2:
        return ()
    kinds.sort(key=lambda kind: leading not in kind)
    return tuple(ModelConfigVariant(kind[0].config, tuple(form.backend for form in kind)) for kind in kinds)
