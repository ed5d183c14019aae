"""Diagnosis: derives findings from facts, rule by rule, those on the installation here."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, grouped
from tidegate_proxy.app.doctor.latency import (
    in_turn_on_processors,
    measured_elsewhere,
    measured_otherwise,
    not_measured,
    slos_too_short,
    unreachable_slos,
    unused_profiles,
    unused_shapes,
    waits_behind_longer_ones,
)
from tidegate_proxy.app.doctor.models import (
    batches_of_one,
    calls_inside_triton,
    conflicting_queue_policies,
    disagreements,
    double_batching_delay,
    ensembles_not_expanded,
    ineffective_settings,
    merged_rows,
    models_that_do_not_load,
    models_that_nobody_has,
    policies_that_refuse,
    unbatched_models,
    unused_policy_parts,
)
from tidegate_proxy.deployed.state import read_state


def broken_plugins(facts: DoctorFacts) -> Iterator[Finding]:
    """Find installed plugins that cannot be imported."""
    for distribution, why in facts.broken_plugins.items():
        yield Finding(
            "warning",
            "broken-plugin",
            f"plugin {distribution}",
            f"it is installed and cannot be imported: {why}",
            f"install what it lacks, or take it away: pip uninstall {distribution}",
        )


def unseen_gpus(facts: DoctorFacts) -> Iterator[Finding]:
    """Find a local Triton with models on GPUs where the GPUs cannot be detected."""
    if facts.has_nvml or facts.has_layout:
        return
    on_gpu = {
        address
        for service in facts.services.values()
        for form in service.forms
        if any(group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU for group in form.config.instance_group)
        for address in form.tritons
    }
    for index, triton in enumerate(facts.config.tritons):
        if triton.is_local and triton.device_class is None and triton.grpc in on_gpu:
            yield Finding(
                "advice",
                "nvml",
                f"tritons.{index}.device_class",
                "the GPU of its models is unknown, so that measurements count for every device class",
                'pip install "tidegate-proxy[nvml]", or name the kind',
            )


def restarted_tritons(folder: Path) -> Iterator[Finding]:
    """Find workers of a running deployment in a folder whose Triton was restarted."""
    state = read_state(folder)
    for worker in state.workers if state else ():
        if worker.restarts:
            times = "once" if worker.restarts == 1 else f"{worker.restarts} times"
            yield Finding(
                "warning",
                "triton-restarted",
                f"worker {worker.name}",
                f"its Triton ended by itself and was started again {times}",
                f"see why in {worker.log}, and update Triton or take the model out that ends it",
            )


Rule = Callable[[DoctorFacts], Iterator[Finding]]

AT_START: Final[tuple[Rule, ...]] = (
    slos_too_short,
    unreachable_slos,
    conflicting_queue_policies,
    models_that_do_not_load,
    measured_elsewhere,
)
"""Rules whose findings `serve` logs at start; it reports the others elsewhere or does not start."""
DIAGNOSIS_RULES: Final[tuple[Rule, ...]] = (
    policies_that_refuse,
    models_that_nobody_has,
    unused_policy_parts,
    disagreements,
    ineffective_settings,
    merged_rows,
    calls_inside_triton,
    ensembles_not_expanded,
    double_batching_delay,
    not_measured,
    unused_shapes,
    unused_profiles,
    broken_plugins,
    *AT_START,
    waits_behind_longer_ones,
    measured_otherwise,
    unbatched_models,
    batches_of_one,
    in_turn_on_processors,
    unseen_gpus,
)


def diagnose(facts: DoctorFacts, rules: tuple[Rule, ...] = DIAGNOSIS_RULES) -> list[Finding]:
    """Return all findings, most severe first; a finding that applies to several models appears once."""
    return grouped(finding for rule in rules for finding in rule(facts))
