"""Names that a shell would run, in whatever field of a layout may have them: scripts do what they do for any other."""

import subprocess
from pathlib import Path

import pytest

from tidegate.schemas import Device, LayoutWorker, Mig, Mps, Slice, WholeDevice
from tidegate_repo_generator.deploying.launch import build_file, launch_file
from tidegate_repo_generator.deploying.mps import daemon_file, domain_of
from tidegate_repo_generator.deploying.places import places_of
from tidegate_repo_generator.deploying.slices import share_of
from tidegate_repo_generator.model import DeployTarget

HOSTILE = [
    "$(touch {})",
    "`touch {}`",
    "';touch {};'",
    '";touch {};"',
    "a\ntouch {}\n#",
    "}}|touch {}",
    "\\",
    "'",
    "-n",
]
SLICES = [WholeDevice(), Mig("1g.5gb", 0), Mps(20, 100), Mps(20, instance=Mig("3g.20gb", 4))]


@pytest.mark.parametrize("part", SLICES, ids=["whole", "mig", "mps", "mps of mig"])
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_never_run(name: str, part: Slice, tmp_path: Path) -> None:
    made, told, hostile = tmp_path / "made", tmp_path / "told", name.format(tmp_path / "made")
    for folder in ("tools", "workers", "mps", "pipes"):
        (tmp_path / folder).mkdir()
    for tool, does in (
        ("tidegate", f'printf %s "$4" > {told}; echo MIG-1'),
        ("nvidia-smi", "echo GPU-1"),
        *((tool, "exit 0") for tool in ("nvidia-cuda-mps-control", "tritonserver", "python3")),
    ):
        (tmp_path / "tools" / tool).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "tools" / tool).chmod(0o755)
    worker = LayoutWorker(
        name=hostile, device=Device(hostile, 0, hostile), slice=part, device_class=hostile, hosts=(hostile, "p")
    )
    place = places_of([worker], {}, 9000)[hostile]
    texts = {
        f"workers/{place.folder}.sh": launch_file(worker, place, DeployTarget.TRITON_TENSORRT),
        f"workers/{place.folder}.build.sh": build_file(worker, ["engines/k/p.json"]),
    }
    if domain := domain_of(worker):
        texts[domain.script] = daemon_file(domain, [worker], [f"{place.folder}.sh"], share_of(worker))
    environment = {"PATH": f"{tmp_path}/tools:/usr/bin:/bin", "TIDEGATE_MPS": str(tmp_path / "pipes")}
    for script, text in texts.items():
        (tmp_path / script).write_text(text)
        subprocess.run(["bash", tmp_path / script, "start"], env=environment, check=True, timeout=60)
        assert not made.exists(), text
    if isinstance(part, Mig) or (isinstance(part, Mps) and part.instance):
        assert told.read_text() == hostile
