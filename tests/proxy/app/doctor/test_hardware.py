"""What the doctor says of profiles that were measured on other hardware than there is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.proxy.app.doctor.made_up import config_of, facts_of, profiles_of, said
from tidegate.schemas import Hardware, ProfileFile
from tidegate_proxy.app.doctor.facts import DoctorFacts, ModelConfigForm
from tidegate_proxy.app.doctor.latency import measured_elsewhere, measured_otherwise

H100 = Hardware(cpu="AMD EPYC 9554", cores=16, gpus=("NVIDIA H100 80GB HBM3",), driver="550.54")
A100 = Hardware(cpu="Intel Xeon 8358", cores=16, gpus=("NVIDIA A100-SXM4-40GB",), driver="550.54")
CPU = Hardware(cpu="AMD EPYC 9554", cores=16)


def _on_this_machine(
    there: Hardware | None, here: Hardware | None, kind: str, grpc: str = "localhost:1", **fields: Any
) -> DoctorFacts:
    """One Triton with one model on instances of this kind, whose profile was measured there."""
    (profile,) = profiles_of("m", median_ms=1, p95_ms=1).profiles
    measured = ProfileFile(profiles=[profile.model_copy(update={"hardware": there})])
    config = config_of("m", f"max_batch_size: 8 dynamic_batching {{}} instance_group {{ kind: {kind} }}")
    told = {"tritons": [{"grpc": grpc}, {"grpc": "far:1"}], **fields}
    facts = facts_of(config, config=told, measured=measured, hardware=here)
    return replace(facts, services={"m": replace(facts.services["m"], forms=(ModelConfigForm(config, (grpc,)),))})


@pytest.mark.parametrize(
    ("there", "here", "kind", "severity"),
    [
        (A100, H100, "KIND_GPU", "warning"),
        (H100, H100, "KIND_GPU", None),
        (H100, H100.model_copy(update={"gpus": ("Tesla T4", *H100.gpus)}), "KIND_GPU", None),
        (CPU, H100, "KIND_GPU", "advice"),
        (H100, CPU, "KIND_GPU", None),
        (A100, H100, "KIND_CPU", "warning"),
        (H100, CPU, "KIND_CPU", None),
        (CPU.model_copy(update={"cores": 4}), CPU, "KIND_CPU", "advice"),
        (None, H100, "KIND_GPU", None),
        (A100, None, "KIND_GPU", None),
        (A100, H100, "KIND_MODEL", None),
    ],
)
def test_a_profile_is_held_against_what_this_machine_has(
    there: Hardware | None, here: Hardware | None, kind: str, severity: str | None
) -> None:
    facts = _on_this_machine(there, here, kind)
    found = [*measured_elsewhere(facts), *measured_otherwise(facts)]
    assert said(found) == ([(severity, "profile-hardware-mismatch")] if severity else [])


def test_what_is_said_of_a_profile_of_another_gpu_names_both_and_how_to_measure_here(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.touch()
    (finding,) = measured_elsewhere(_on_this_machine(A100, H100, "KIND_GPU", profiles=str(file)))
    assert str(finding) == (
        "model m: it was measured on NVIDIA A100-SXM4-40GB, and this machine has NVIDIA H100 80GB HBM3: batches, and "
        "what can be on time, are planned by another machine until it has been learned; tidegate profile m --triton "
        f"localhost:1 -o {file}"
    )


def test_nothing_is_said_of_hardware_that_is_unknown_or_does_not_matter(tmp_path: Path) -> None:
    far = _on_this_machine(A100, H100, "KIND_GPU", grpc="gpu-1:8001")
    emulated = 'backend: "python" parameters { key: "table_ms" value: { string_value: "{}" } }'
    of_python = _on_this_machine(A100, H100, "KIND_CPU")
    service = of_python.services["m"]
    copied = model_config_pb2.ModelConfig()
    copied.CopyFrom(service.config)
    text_format.Merge(emulated, copied)
    asleep = replace(of_python, services={"m": replace(service, forms=(ModelConfigForm(copied, ("localhost:1",)),))})
    both = _on_this_machine(A100, H100, "KIND_GPU")
    of_both = replace(both.services["m"], kinds=("A100", "H100"))
    of_both = replace(of_both, forms=(ModelConfigForm(of_both.config, ("localhost:1", "far:1")),))
    (tmp_path / "layout.json").touch()
    told: dict[str, Any] = {
        "layout": str(tmp_path / "layout.json"),
        "tritons": [{"grpc": "localhost:1", "worker": "w"}],
    }
    planned = _on_this_machine(A100, H100, "KIND_GPU", **told)
    for facts in (far, asleep, replace(both, services={"m": of_both}), planned):
        assert list(measured_elsewhere(facts)) == []
