"""A plugin needs the contract and nothing else: shown in an environment that has only these two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
FOREIGN = ("grpc", "tritonclient", "onnx", "onnxruntime", "numpy", "starlette", "uvicorn", "tidegate_proxy")

pytestmark = pytest.mark.skipif(not UV.exists(), reason="needs uv beside the interpreter (`make install`)")


def run(*command: str | Path) -> str:
    """Run a command outside of the repository; returns what it says, and fails with it."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=Path(command[0]).parent, env=outside, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("clean")
    run(UV, "venv", "--quiet", "--python", sys.executable, home / "venv")
    python = home / "venv" / "bin" / "python"
    # `--no-sources`: as from a package index, without the workspace around.
    run(UV, "pip", "install", "--quiet", "--no-sources", "--python", python, "-c", ROOT / "constraints.txt",
        ROOT / "core", ROOT / "plugins" / "symphony")  # fmt: skip
    return python.parent


@pytest.mark.slow
def test_a_plugin_conforms_where_only_the_contract_is_installed(bin_dir: Path) -> None:
    program = """
from tidegate.host import Plugins
from tidegate.testing import check_policy
plugins = Plugins.installed()
assert sorted(plugins.policies) == ["auto", "by-model", "symphony"], plugins.policies
assert not plugins.broken, plugins.broken
check_policy(plugins.policy("symphony"), worlds=40)
"""
    run(bin_dir / "python", "-c", program)


def test_nothing_of_a_network_or_of_tensors_comes_along(bin_dir: Path) -> None:
    program = f"""
from importlib.util import find_spec
print(*(name for name in {FOREIGN!r} if find_spec(name)))
"""
    assert run(bin_dir / "python", "-c", program).split() == []


def test_the_command_line_works(bin_dir: Path) -> None:
    assert "symphony" in run(bin_dir / "tidegate", "plugins")
