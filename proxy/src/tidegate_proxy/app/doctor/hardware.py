"""Profiles of other hardware than what is here. Nothing is said where nobody can know: of a Triton that is elsewhere,
of a profile that does not tell what it was measured on."""

from collections.abc import Iterator
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate.documents import Hardware, ModelProfile
from tidegate_proxy.app.doctor.facts import Facts, Service
from tidegate_proxy.app.doctor.finding import Finding

_RULE: Final = "profile-elsewhere"
_EMULATED: Final = frozenset({"alpha_ms", "table_ms", "groups_ms", "shapes_ms", "time_input"})
"""Parameters of an emulated GPU, one of which says how long it takes: the same on every machine."""
_ON_GPU: Final = frozenset({int(model_config_pb2.ModelInstanceGroup.KIND_GPU)})
_ON_CPU: Final = frozenset({int(model_config_pb2.ModelInstanceGroup.KIND_CPU)})
"""The kinds of all instances of a model; a Triton tells of each what it has made of `auto`."""


def measured_elsewhere(facts: Facts) -> Iterator[Finding]:
    """Profiles of another GPU, or of another processor for a model that runs on it: they say what is not so here."""
    ends = ": batches, and what can be in time, are planned by another machine until it has been learned"
    for service, profile, there, here, kinds in _of_this_machine(facts):
        if kinds == _ON_GPU and there.gpus and here.gpus and not set(there.gpus) & set(here.gpus):
            what = f"it was measured on {_gpus(there)}, and this machine has {_gpus(here)}"
        elif kinds == _ON_CPU and there.cpu != here.cpu:
            what = f"it runs on the CPU, and was measured on {there.cpu}, where this machine has {here.cpu}"
        else:
            continue
        yield Finding("warning", _RULE, f"model {service.name}", what + ends, _remedy(facts, profile))


def measured_otherwise(facts: Facts) -> Iterator[Finding]:
    """Profiles of this processor with another number of cores, or of a GPU that they do not name."""
    for service, profile, there, here, kinds in _of_this_machine(facts):
        if kinds == _ON_GPU and here.gpus and not there.gpus:
            what = f"it runs on a GPU, and its profile names none: it was measured on {there.cpu}, or nothing told"
        elif kinds == _ON_CPU and there.cpu == here.cpu and there.cores != here.cores:
            what = f"it runs on the CPU, and was measured with {there.cores} cores, where there are {here.cores} here"
        else:
            continue
        yield Finding("advice", _RULE, f"model {service.name}", what, _remedy(facts, profile))


def _of_this_machine(facts: Facts) -> Iterator[tuple[Service, ModelProfile, Hardware, Hardware, set[int]]]:
    """Models that Tritons of this machine run, with each profile that holds for them and tells where it was measured.

    Besides that hardware, the hardware of this machine, and the kinds of the model's instances.

    Where some of its Tritons are elsewhere and their workers of other kinds, nobody knows whose a profile is.
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
        for kind in service.kinds:
            for profile in facts.measured.measured_for(service.name, kind):
                if profile.hardware is not None:
                    yield service, profile, profile.hardware, here, kinds


def is_emulated(config: model_config_pb2.ModelConfig) -> bool:
    """Whether a model stands for one on a GPU."""
    return config.backend == "python" and not _EMULATED.isdisjoint(config.parameters)


def _gpus(hardware: Hardware) -> str:
    return " and ".join(dict.fromkeys(hardware.gpus))


def _remedy(facts: Facts, profile: ModelProfile) -> str:
    triton = next(triton.grpc for triton in facts.config.tritons if triton.is_local)
    of_kind = "" if profile.kind == "default" else f" --kind {profile.kind}"
    return f"tidegate profile {profile.model} --triton {triton}{of_kind} -o {facts.config.profiles}"
