"""Tritons that have different forms of one model, as they do while one after the other is updated.

One form leads and is scheduled, on the Tritons that have it: that of most living Tritons, and of two that as many have
the newer one. Where only `max_batch_size` differs both are one form, scheduled in batches that all of them take. What
does not fit the form that leads goes, unscheduled, to a Triton that takes it. So nobody is refused during an update,
and when the last Triton has changed there is one form again.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.messages.model_signature import ModelSignature, datatype_of, signature_of
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.batching_mode import BatchingDecision, most_careful


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Configuration of a model as one Triton loaded it."""

    backend: Backend
    config: model_config_pb2.ModelConfig
    consent: BatchingDecision
    """Scheduling decision for this Triton."""
    tensors: ModelSignature
    """Also of a model whose requests are not scheduled."""

    @classmethod
    def of(cls, backend: Backend, config: model_config_pb2.ModelConfig, consent: BatchingDecision) -> "LoadedConfig":
        """Return the loaded configuration from a Triton's model config."""
        return cls(backend, config, consent, signature_of(config))

    @property
    def passes(self) -> bool:
        """Whether its requests pass straight through."""
        return self.consent.scheduling == "bypass"

    def agrees_with(self, other: "LoadedConfig") -> bool:
        """Whether requests for the one are requests for the other, but for their number of rows."""
        if self.passes or other.passes:
            return self.passes and other.passes
        return self.tensors.tensors == other.tensors.tensors


@dataclass(frozen=True, slots=True)
class VariantAgreement:
    """How the Tritons that have a model stand to each other."""

    leading: LoadedConfig
    """The one that counts where they differ."""
    signature: ModelSignature | None
    """The signature of requests that are scheduled, with as many rows as each of `followers` takes; None: none are."""
    consent: BatchingDecision
    """Scheduling decision that holds for all agreeing Tritons."""
    followers: tuple[Backend, ...]
    """The Tritons that requests of the leading form go to."""
    variants: tuple["ModelConfigVariant", ...]
    """Every form, that of the leading one first; none where there is only one."""


@dataclass(frozen=True, slots=True)
class ModelConfigVariant:
    """One form of a model of which there are several, and the Tritons that have it."""

    config: model_config_pb2.ModelConfig
    backends: tuple[Backend, ...]

    def takes(self, header: service_pb2.ModelInferRequest) -> bool:
        """Whether a request is one for this form, as far as it says what its tensors are."""
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


def agree(forms: Sequence[LoadedConfig], voters: Container[Backend]) -> VariantAgreement:
    """Return the leading configuration.

    `forms`: configurations of at least one Triton, recent changes last. `voters`: Tritons that are available;
    configurations of others count only if none of these has one.
    """
    present = [form for form in forms if form.backend in voters] or list(forms)
    newest_first = present[::-1]
    leading = max(newest_first, key=lambda form: sum(map(form.agrees_with, present)))
    agreeing = [form for form in present if form.agrees_with(leading)]
    signatures = [form.tensors for form in agreeing]
    signature = replace(
        min(signatures, key=lambda each: each.max_rows),
        reads_headers=any(each.reads_headers for each in signatures),
        heeds_timeout=any(each.heeds_timeout for each in signatures),
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
