"""A clean environment that has the wheels and what they ask for, and nothing of this repository."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.members import ROOT, members, version

PROGRAM = Path(__file__).parent / "newcomer.py"

LIST_INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps([
    {
        "name": each.metadata["Name"].lower().replace("_", "-"),
        "version": each.version,
        "license": each.metadata["License-Expression"] or (each.metadata["License"] or "").partition(chr(10))[0],
    }
    for each in distributions()
]))
"""


def try_out(wheels: Sequence[Path], uv: Path) -> list[dict[str, str]]:
    """Install `tidegate[all]` from these wheels and do what a newcomer does. Exits with 1 where that goes wrong.

    Return name, version and license of every distribution in the environment.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-dist-") as name:
        folder = Path(name).resolve()
        python = folder / "venv" / "bin" / "python"
        _run(folder, uv, "venv", "--quiet", "--python", sys.executable, folder / "venv")
        # By their files: an index that has distributions of these names is not asked for them.
        files = [f"{_distribution(wheel)} @ {wheel.as_uri()}" for wheel in wheels]
        wanted = [re.sub(r"^tidegate ", "tidegate[all] ", file) for file in files]
        _run(folder, uv, "pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", *wanted)
        program = folder / PROGRAM.name
        program.write_text(PROGRAM.read_text())
        # -P: nothing is imported from the folder that it runs in.
        sys.stdout.write(_run(folder, python, "-P", program, version(), *(member.name for member in members())))
        installed: list[dict[str, str]] = json.loads(_run(folder, python, "-P", "-c", LIST_INSTALLED))
        return installed


def _distribution(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-")


def _run(folder: Path, *command: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = os.pathsep.join((str(folder / "venv" / "bin"), environment["PATH"]))
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout
