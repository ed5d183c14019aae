"""Findings on latency: SLOs that cannot be met, profiles of other hardware, models that slow each other down."""

from collections.abc import Iterator
from math import ceil
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate.observation.timeline_recorder import MAX_RESPONSE_MARGIN_FRACTION
from tidegate.schemas import Hardware, ModelProfile
from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, OneRow, ServedModel, one_row
from tidegate_proxy.app.doctor.models import remedy_for
from tidegate_proxy.tritons.batching_mode import GRAPH_MODES
from tidegate_proxy.tritons.catalog import DEADLINE_MISS_PARAMETER, SLO_PARAMETER
from tidegate_proxy.tritons.initial_profiles import said_of_others


def slos_too_short(facts: DoctorFacts) -> Iterator[Finding]:
    """Find SLOs below the latency of a request of one row, so that all or slow requests are rejected."""
    for service in facts.services.values():
        rows = one_row(facts, service)
        if service.slo_ms is not None and rows:
            yield from _too_short(facts, service, service.slo_ms, rows)


def _too_short(facts: DoctorFacts, service: ServedModel, slo_ms: float, rows: list[OneRow]) -> Iterator[Finding]:
    is_first = facts.config_of(service.name).slo_first_ms is not None
    where = f"models.{service.name}.{'slo_first_ms' if is_first else 'slo_ms'}"
    serves_late = service.model is not None and service.model.on_deadline_miss == "serve"
    usable_ms = slo_ms * (1 - MAX_RESPONSE_MARGIN_FRACTION)
    hopeless = [row for row in rows if row.expected_ms >= slo_ms]
    quickest = rows[0]
    remedy = f"set it to {_enough_ms(rows)} ms or more, twice that for batches to form"
    fate = "answered late" if serves_late else "rejected"
    if len(hopeless) == len(rows):
        yield Finding(
            "warning" if serves_late else "error",
            "slo-too-short",
            where,
            f"{slo_ms:g} ms are less than the {quickest.expected_ms:.3g} ms that one row takes ({quickest.source}), so "
            f"that nearly every request is {fate}",
            remedy,
        )
    elif hopeless:
        shapes = ", ".join(f"{row.shape} ({row.expected_ms:.3g} ms)" for row in hopeless)
        yield Finding(
            "warning",
            "slo-too-short",
            where,
            f"{slo_ms:g} ms are less than one row of some shapes takes, so that such requests are {fate}: {shapes}",
            remedy,
        )
    elif slow := [row for row in rows if row.upper_ms > usable_ms]:
        worst = max(slow, key=lambda row: row.upper_ms)
        of_shape = f" of shape {worst.shape}" if worst.shape else ""
        yield Finding(
            "warning",
            "slo-tight",
            where,
            f"{slo_ms:g} ms leave no room: one row{of_shape} takes up to {worst.upper_ms:.3g} ms ({worst.source}), "
            f"and a part is kept free for the response latency, so that requests are {fate} as soon as anything waits",
            remedy,
        )


def _enough_ms(rows: list[OneRow]) -> int:
    """Enough for one row of any shape, with what is kept free for the response latency, in ms."""
    return ceil(max(row.upper_ms for row in rows) / (1 - MAX_RESPONSE_MARGIN_FRACTION))


def unreachable_slos(facts: DoctorFacts) -> Iterator[Finding]:
    """Find SLOs and late-request settings of models whose requests are not scheduled: they have no effect."""
    for service in facts.services.values():
        if service.model is not None or service.consent.scheduling in GRAPH_MODES:
            continue
        model_config = facts.config_of(service.name)
        settings = {"slo_ms": model_config.slo_ms, "on_deadline_miss": model_config.on_deadline_miss}
        fields = [f"models.{service.name}.{field}" for field, given in settings.items() if given]
        parameters = [name for name in (SLO_PARAMETER, DEADLINE_MISS_PARAMETER) if name in service.config.parameters]
        if service.name in facts.judged:
            for where in (*fields, *(f"model {service.name}" for _ in parameters)):
                yield _slo_during_rollout(facts, service, where)
            continue
        why = f"its requests are not scheduled ({service.consent.why})"
        remedy = "take it out, or see to it that they can be scheduled"
        if service.consent.is_left_to_triton:
            remedy = (
                f"set models.{service.name}.max_concurrency, scheduling: batched if its rows are independent, or take "
                "it out"
            )
        for where in fields:
            if service.consent.is_left_to_triton:
                yield Finding("warning", _SLO_IGNORED, where, f"it has no effect: {why}", remedy)
            else:
                yield Finding("error", _SLO_IGNORED, where, f"{why}, so that `serve` does not start", remedy)
        for parameter in parameters:
            what = f"{parameter} of its config.pbtxt is not read: {why}"
            yield Finding("warning", _SLO_IGNORED, f"model {service.name}", what, remedy)


def _slo_during_rollout(facts: DoctorFacts, service: ServedModel, where: str) -> Finding:
    """Return the finding on a model that is bypassed only until the operator consents to batches."""
    remedy = f"before all is scheduled: {service.consent.why}"
    if facts.config.shadow:
        what = "shadow mode judges the model by this SLO as if `scheduling: batched` were set; scheduled it is not yet"
        return Finding("advice", _SLO_IGNORED, where, what, remedy)
    what = "the canary does not compare the model: its requests are not scheduled"
    return Finding("warning", _SLO_IGNORED, where, what, remedy)


def not_measured(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models with an SLO but without a profile, whose latency is a guess."""
    if facts.has_layout:
        return
    file = facts.config.profiles or "profiles.json"
    for service in facts.services.values():
        if service.model is None:
            continue
        for device_class in service.kinds:
            if facts.measured.profiles_of(service.name, device_class, service.model.max_rows):
                continue
            of_kind = "" if device_class == "default" else f" --device-class {device_class}"
            yield Finding(
                "advice" if service.slo_ms is None else "warning",
                "no-profile",
                f"model {service.name}",
                f"no profile for workers of device class {device_class!r}"
                f"{said_of_others(facts.measured, service.name)}: Tidegate begins with a guess and learns",
                f"tidegate profile --triton {facts.config.tritons[0].grpc}{of_kind} -o {file}",
            )


def unused_shapes(facts: DoctorFacts) -> Iterator[Finding]:
    """Find profiles of shapes that no request has."""
    for words in facts.unmatched_shapes:
        yield Finding("warning", "profile-shape-mismatch", "profiles", words, "")


def unused_profiles(facts: DoctorFacts) -> Iterator[Finding]:
    """Find profiles of models that no Triton has."""
    unknown = {profile.model for profile in facts.measured.profiles} - facts.services.keys()
    for name in sorted(unknown):
        yield Finding(
            "advice",
            "profile-unknown-model",
            "profiles",
            f"it has a model {name!r}, which no Triton has",
            remedy_for(name, facts.services),
        )


_RULE: Final = "profile-hardware-mismatch"
_SLO_IGNORED: Final = "slo-ignored"
_EMULATED: Final = frozenset({"alpha_ms", "table_ms", "groups_ms", "shapes_ms", "time_input"})
"""Parameters of an emulated GPU, one of which says how long it takes: the same on every machine."""
_ON_GPU: Final = frozenset({int(model_config_pb2.ModelInstanceGroup.KIND_GPU)})
_ON_CPU: Final = frozenset({int(model_config_pb2.ModelInstanceGroup.KIND_CPU)})
"""Return the kinds of all instances of a model; a Triton reports what it has made of `auto`."""


def measured_elsewhere(facts: DoctorFacts) -> Iterator[Finding]:
    """Find profiles of another GPU, or of another CPU for a model that runs on it: their latency is wrong here.

    It finds nothing if the hardware is unknown: for a remote Triton, or a profile without hardware.
    """
    ends = ": batches, and what can be on time, are planned by another machine until it has been learned"
    for service, profile, there, here, kinds in _of_this_machine(facts):
        if kinds == _ON_GPU and there.gpus and here.gpus and not set(there.gpus) & set(here.gpus):
            what = f"it was measured on {_gpus(there)}, and this machine has {_gpus(here)}"
        elif kinds == _ON_CPU and there.cpu != here.cpu:
            what = f"it runs on the CPU, and was measured on {there.cpu}, where this machine has {here.cpu}"
        else:
            continue
        yield Finding("warning", _RULE, f"model {service.name}", what + ends, _remedy(facts, profile))


def measured_otherwise(facts: DoctorFacts) -> Iterator[Finding]:
    """Find profiles of this CPU with another number of cores, or without the GPU's name."""
    for service, profile, there, here, kinds in _of_this_machine(facts):
        if kinds == _ON_GPU and here.gpus and not there.gpus:
            what = (
                f"it runs on a GPU, and its profile names none: it was measured on {there.cpu}, or its GPU was unknown"
            )
        elif kinds == _ON_CPU and there.cpu == here.cpu and there.cores != here.cores:
            what = f"it runs on the CPU, and was measured with {there.cores} cores, where there are {here.cores} here"
        else:
            continue
        yield Finding("advice", _RULE, f"model {service.name}", what, _remedy(facts, profile))


def _of_this_machine(facts: DoctorFacts) -> Iterator[tuple[ServedModel, ModelProfile, Hardware, Hardware, set[int]]]:
    """Models that Tritons of this machine run, with each profile that holds for them and says where it was measured.

    Besides that hardware, the hardware of this machine, and the kinds of the model's instances.

    If some of its Tritons are elsewhere with workers of other device classes, the owner of a profile is unknown.
    """
    here = facts.hardware
    if facts.has_layout or here is None:
        return
    local = {triton.grpc for triton in facts.config.tritons if triton.is_local}
    for service in facts.services.values():
        tritons = {address for form in service.forms for address in form.tritons}
        if service.model is None or not tritons & local or (len(service.kinds) > 1 and tritons - local):
            continue
        configs = [form.config for form in service.forms if local.intersection(form.tritons)]
        if any(map(is_emulated, configs)):
            continue
        kinds = {int(group.kind) for config in configs for group in config.instance_group}
        for device_class in service.kinds:
            for profile in facts.measured.measured_for(service.name, device_class):
                if profile.hardware is not None:
                    yield service, profile, profile.hardware, here, kinds


def is_emulated(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a model is emulated."""
    return config.backend == "python" and not _EMULATED.isdisjoint(config.parameters)


def _gpus(hardware: Hardware) -> str:
    return " and ".join(dict.fromkeys(hardware.gpus))


def _remedy(facts: DoctorFacts, profile: ModelProfile) -> str:
    triton = next(triton.grpc for triton in facts.config.tritons if triton.is_local)
    of_kind = "" if profile.device_class == "default" else f" --device-class {profile.device_class}"
    return f"tidegate profile {profile.model} --triton {triton}{of_kind} -o {facts.config.profiles}"


SERIALIZED_NOTE = (
    "their executions are serialized by a resource of its rate limiter that both need, or by `serialize_models`"
)
SEPARATION_REMEDY = (
    "serve one of them from a Triton of its own, or let them run in parallel: without that resource, "
    "or `serialize_models`"
)


def waits_behind_longer_ones(facts: DoctorFacts) -> Iterator[Finding]:
    """Find SLOs that a model cannot meet behind one batch of another model on all its workers."""
    if facts.has_layout:
        return
    for service in facts.services.values():
        own = one_row(facts, service)
        if service.slo_ms is None or not own:
            continue
        left_ms = service.slo_ms * (1 - MAX_RESPONSE_MARGIN_FRACTION) - max(row.upper_ms for row in own)
        longer = {
            name: max(row.expected_ms for row in rows)
            for name in service.beside
            if (rows := one_row(facts, facts.services[name]))
        }
        behind = {name: took_ms for name, took_ms in longer.items() if took_ms > left_ms > 0}
        if behind:
            worst = max(behind, key=lambda name: behind[name])
            yield Finding(
                "warning",
                "slo-shorter-than-serialized-wait",
                f"models.{service.name}.slo_ms",
                f"{service.slo_ms:g} ms are too short to wait for one row of {worst!r}, which takes "
                f"{behind[worst]:.3g} ms: {SERIALIZED_NOTE}",
                SEPARATION_REMEDY,
            )


def in_turn_on_processors(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models on CPUs whose execution is serialized: with cores for both, one of them idles."""
    if facts.has_layout or not any(triton.serialize_models is True for triton in facts.config.tritons):
        return
    for service in facts.services.values():
        others = [name for name in service.beside if _on_processors(facts.services[name])]
        if others and _on_processors(service):
            yield Finding(
                "advice",
                "serialized-models",
                f"model {service.name}",
                f"it runs on processors, as does {', '.join(others)}, and `serialize_models` serializes them: "
                "in parallel they are faster where there are cores for both",
                "leave `tritons.N.serialize_models` out, or let it be `learned`, if they do not call each other",
            )


def _on_processors(service: ServedModel) -> bool:
    cpu = model_config_pb2.ModelInstanceGroup.KIND_CPU
    groups = [group.kind for group in service.config.instance_group]
    return bool(groups) and all(kind == cpu for kind in groups) and not is_emulated(service.config)
