"""What the image of deploy/Dockerfile has."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_image_has_every_plugin_but_the_one_to_be_copied() -> None:
    """`tidegate generate` writes manifests with this image for whichever policy was asked for."""
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    removed = {ROOT / folder for folder in re.findall(r"\brm -r (\S+)", text)}
    (line,) = (line for line in text.splitlines() if "uv pip install" in line)
    installed = {path for word in line.split() if word.startswith("./") for path in ROOT.glob(word[2:])} - removed
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    left_out = {ROOT / folder for folder in workspace["exclude"]}
    assert {folder for folder in installed if folder.parent.name == "plugins"} == {
        folder.parent for folder in ROOT.glob("plugins/*/pyproject.toml")
    } - left_out
