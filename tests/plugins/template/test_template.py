"""The template becomes a policy of another name exactly as its README says, and passes its own tests then."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidegate.host import Plugins
from tidegate.testing import check_policy

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "plugins" / "template"
README = (TEMPLATE / "README.md").read_text(encoding="utf-8")
RECIPE = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first block of commands in the README makes of the template."""
    folder = tmp_path_factory.mktemp("work")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", RECIPE], cwd=folder, env={**os.environ, "PATH": path}, check=True, timeout=120)
    return folder / "tidegate-acme-edf"


def test_nothing_keeps_the_old_name(renamed: Path) -> None:
    files = [path for path in renamed.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"pyproject.toml", "README.md", "policy.py", "plugin.py", "test_policy.py"}
    assert [path for path in files if "template" in f"{path.relative_to(renamed)} {path.read_text()}".lower()] == []


@pytest.mark.slow
def test_its_own_tests_pass(renamed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=renamed,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d passed", done.stdout.splitlines()[-1]), done.stdout


def test_its_entry_point_offers_it(renamed: Path, monkeypatch: pytest.MonkeyPatch, plugins: Plugins) -> None:
    project = tomllib.loads((renamed / "pyproject.toml").read_text(encoding="utf-8"))
    monkeypatch.syspath_prepend(renamed / "src")
    (module,) = project["project"]["entry-points"]["tidegate"].values()
    plugins.register(importlib.import_module(module), project["project"]["name"])
    spec = plugins.policy("acme-edf")
    assert spec.policy.__name__ == "AcmeEdf"
    check_policy(spec, worlds=10, seed=1000)


def test_the_readme_has_the_shape_of_every_other(plugins: Plugins) -> None:
    section = README.split("\n## template\n")[1]
    parts = re.findall(r"^### (.*)$", section, re.MULTILINE)
    assert parts == ["How it works", "Options", "Limits"]
    assert "`deadline_margin_ms`" in section
    assert "template" not in plugins.policies, "it is there to be copied, not installed"
