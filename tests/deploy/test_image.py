"""What the image of deploy/Dockerfile has."""

import re
from fnmatch import fnmatch
from pathlib import Path

from release.members import ROOT, Member, members

DEPLOY = ROOT / "deploy"


def _instructions(word: str) -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{word} ")]


def _installed() -> dict[Path, str]:
    """The folders that are installed, with the extras of each."""
    (run,) = (line for line in _instructions("RUN") if "uv pip install" in line)
    removed = {ROOT / folder for folder in re.findall(r"\brm -r (\S+)", run)}
    words = [word.strip('"') for word in run.split() if word.strip('"').startswith("./")]
    folders: dict[Path, str] = {}
    for word in words:
        path, _, extras = word.removeprefix("./").rstrip("]").partition("[")
        folders |= dict.fromkeys(ROOT.glob(path), extras)
    return {folder: extras for folder, extras in folders.items() if folder not in removed}


def test_the_image_has_every_distribution() -> None:
    """`tidegate generate` writes manifests with this image for whichever policy was asked for."""
    assert _installed().keys() == {member.folder for member in members()}


def test_the_image_has_every_extra_but_the_embedded_triton_and_clusters() -> None:
    """It stands before Tritons in containers of their own; sweeps on clusters (Ray: 200 MB) are no servers' work."""
    (core,) = (member for member in members() if member.name == "tidegate")
    assert _installed()[core.folder] == "$EXTRAS"
    (default,) = (line.partition("=")[2] for line in _instructions("ARG"))
    assert default in _own(core, "all")
    own = {extra for extra in core.manifest["project"]["optional-dependencies"] if extra != "all"}
    assert {*default.split(","), "policies", "ray"} == own  # `policies` comes with `proxy`
    assert "tidegate[policies]" in core.manifest["project"]["optional-dependencies"]["proxy"]


def _own(core: Member, extra: str) -> str:
    (own,) = (
        str(wanted)
        for wanted in core.manifest["project"]["optional-dependencies"][extra]
        if wanted.startswith("tidegate[")
    )
    return own


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    sources = [word for line in _instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert let_in == set(sources)
    kept_out = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    assert all(any(fnmatch(name, pattern) for pattern in kept_out) for name in ("__pycache__", "tidegate.egg-info"))
