"""Every command of the tutorials runs, in the order of the page, as its reader would type it: in an empty folder."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTS = ("8000", "8001", "8002", "8100", "8101", "8102")
"""Of Triton and of Tidegate, as the pages have them."""


def _commands(page: str) -> str:
    text = (ROOT / "docs/tutorials" / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def _elsewhere(commands: str) -> str:
    """The same on ports that are free; on others than 8001 a Triton's HTTP and metrics have to be named."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        there = {port: str(each.getsockname()[1]) for port, each in zip(PORTS, sockets, strict=True)}
    commands = commands.replace(
        "tidegate triton ", "tidegate triton --grpc-port 8001 --http-port 8000 --metrics-port 8002 "
    )
    commands = commands.replace(
        "tritons: [localhost:8001]",
        "tritons: [{grpc: 'localhost:8001', http: 'localhost:8000', metrics: 'localhost:8002'}]",
    )
    commands = commands.replace(
        "serve --triton localhost:8001", "serve --triton localhost:8001,http=localhost:8000,metrics=localhost:8002"
    )
    commands = commands.replace(
        "event_log: run.jsonl",
        "event_log: run.jsonl\nlisten: {grpc: '127.0.0.1:8101', http: '127.0.0.1:8100', metrics: '127.0.0.1:8102'}",
    )
    commands = commands.replace(
        "--event-log run",
        "--listen 127.0.0.1:8101 --listen-http 127.0.0.1:8100 --listen-metrics 127.0.0.1:8102 --event-log run",
    )
    assert "127.0.0.1:8101" in commands, "a Tidegate would listen on the ports of the page"
    return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: there[match[1]], commands)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["operator.md", "researcher.md"])
def test_every_command_runs(page: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-xc", _elsewhere(_commands(page))],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=500)
    finally:
        if shell.poll() is None or shell.returncode:  # what it had put into the background is still there
            _end(shell.pid)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert shell.returncode == 0, f"{said}\n{logs}"
    FIGURES[page](tmp_path, said)


def _check_operator(folder: Path, said: str) -> None:
    first, second = re.findall(r"^localhost:\d+ (\[.*\])$", said, re.MULTILINE)[:2]
    assert first == second, "Triton and Tidegate answer alike"
    log = (folder / "tidegate.log").read_text()
    assert "scorer 100 ms: requests that cannot meet it are rejected" in log, "the configuration's SLO, not the model's"
    assert re.search(
        r"^(tidegate has [\d.]+ % on time, triton [\d.]+ %|tidegate against triton: not measured)", said, re.M
    )
    counted = re.findall(r'^tidegate_requests_total\{[^}]*outcome="(\w+)"[^}]*\} ([\d.]+)$', said, re.MULTILINE)
    assert sum(float(count) for _, count in counted) >= 3 * 4 * 40 * 0.8, "three rounds of Poisson 40/s"
    assert re.search(r"^symphony: \d+ events, \d+ commands, all the same$", said, re.MULTILINE)


def _check_researcher(folder: Path, said: str) -> None:
    """The order of the policies, and a simulation within 5 % of what was measured."""
    simulated, expected, live = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("simulated", "expected", "live")
    )
    attained = {row["policy"]: row["attainment"] for row in simulated["rows"] if row["model"] == "*"}
    assert attained["paper"] > 0.98
    assert attained["symphony"] > 0.98
    assert min(attained["paper"], attained["symphony"]) > attained["triton(max_queue_delay_ms=5)"]
    assert f"{attained['paper']:.2%}" in said, "the table shows it"
    found = {
        each["policy"]: each["median_rps"] for each in json.loads((folder / "goodput.json").read_text())["goodput"]
    }
    assert max(found, key=lambda policy: found[policy]) == "paper"
    assert "paper carries " in said
    assert (
        "inceptionresnetv2 150 ms: requests that cannot meet it are rejected" in (folder / "tidegate.log").read_text()
    )
    if live["not_measured"]:
        pytest.skip(f"this machine is too busy: {live['not_measured'][0]['reason']}")
    (own,), (measured,) = ([row for row in each["rows"] if row["model"] == "*"] for each in (expected, live))
    assert measured["accepted"] == own["accepted"]
    for figure in ("attainment", "goodput_rps"):
        assert measured[figure] == pytest.approx(own[figure], rel=0.05), figure


FIGURES = {"operator.md": _check_operator, "researcher.md": _check_researcher}


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return
