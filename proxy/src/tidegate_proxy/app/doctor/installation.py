"""Findings on the installation: plugins, packages, Tritons that exit by themselves."""

from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding
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
                "nothing tells which GPU its models run on, so that what is measured counts for every kind",
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
