"""Recorded runs, replayed: the same, or the first difference is shown."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import build_app
from tidegate.engine import Recorder
from tidegate.host import Plugins
from tidegate.testing import random_scenario, run_scenario

PLUGINS = Plugins.installed()
WORLD = 1  # one with a few dozen requests
HEADER = '{"version": 1, "policy": "x", "options": {}, "setup": {"models": [], "workers": [], "profiles": []}}'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with path.open("wb") as out:
        run_scenario(PLUGINS.policy("symphony"), random_scenario(random.Random(WORLD)), recorder=Recorder(out))
    return path


def replay(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(PLUGINS), ["replay", str(path), *options])
    return result.exit_code, " ".join(result.output.split())


def test_a_recording_is_what_its_replay_does(log: Path) -> None:
    events = len(log.read_bytes().splitlines()) - 1
    assert events > 10
    code, output = replay(log)
    assert code == 0, output
    assert output.startswith(f"symphony: {events} events,")
    assert output.endswith("all the same")


def test_the_first_difference_is_shown(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    changed = next(number for number, line in enumerate(lines) if b'"command":"Dispatch"' in line)
    lines[changed] = lines[changed].replace(
        b'"command":"Dispatch","batch":{"id":', b'"command":"Dispatch","batch":{"id":7'
    )
    log.write_bytes(b"".join(lines))
    code, output = replay(log)
    assert code == 1
    assert f"event {changed} was answered differently" in output
    assert output.count("Dispatch(") == 2
    assert replay(log, "--json")[0] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 is no header"),
        (
            '{"version": 0, "policy": "x", "options": {}, "setup": {"models": [], "workers": [], "profiles": []}}',
            "version 0",
        ),
        ('{"version": 1, "policy": "x", "options": {}, "setup": {"models": [], "workers": [], "profiles": []}}', "'x'"),
    ],
)
def test_what_is_no_log_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    code, output = replay(path)
    assert code == 1
    assert says in output


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    assert "absent" in replay(tmp_path / "absent")[1]
