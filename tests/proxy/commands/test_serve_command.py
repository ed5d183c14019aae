"""`tidegate serve`: what is wrong with its arguments is said in words; its end."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest

from tests.command_line import invoke
from tests.conftest import HERE, eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Serve = Callable[..., tuple[int, str]]
BACKEND_UNAVAILABLE = "127.0.0.1:1"
POINT = {"rows": 1, "median_ms": 1.0, "p95_ms": 1.0, "samples": 5}
PROFILE = {"model": "echo", "alpha_ms": 1.0, "beta_ms": 1.0, "points": [POINT]}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`serve(*arguments)`: what it ends with and says as an error, in this process, whose logging it leaves alone."""
    monkeypatch.setattr("tidegate_proxy.observability.logs.configure_logs", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str]:
        result = invoke("serve", "--listen", "127.0.0.1:0", *arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "gRPC" not in result.stdout
        return result.exit_code, " ".join(result.stderr.replace("│", " ").split())

    return run


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--policy", "nope"], 1, "error: no policy named 'nope' is installed; installed: "),
        (["--policy", "[/nope]"], 1, "error: no policy named '[/nope]' is installed"),
        (
            [],
            1,
            f"error: no Triton is ready at {BACKEND_UNAVAILABLE} after 0.2 s: does it run, and is this its gRPC port?",
        ),
        (["--profiles", "/nope.json"], 1, "error: command line: profiles: there is no file /nope.json"),
        (["--listen", "nonsense"], 1, "listen.grpc: 'nonsense' is not HOST:PORT"),
        (["--config", "/nope.yaml"], 1, "error: /nope.yaml: No such file"),
        (["--event-log", "/nope/log"], 1, "error: /nope/log: No such file or directory"),
        (["--slo", "echo"], 2, "'echo' is not NAME=VALUE"),
        (["--slo", "echo=soon"], 2, "echo=soon: not a positive number of milliseconds"),
        (["--slo", "echo=0"], 2, "echo=0: not a positive number of milliseconds"),
        (["--slo", "echo=inf"], 2, "echo=inf: not a positive number of milliseconds"),
        (["-O", "nope"], 2, "'nope' is not NAME=VALUE"),
    ],
)
def test_what_is_wrong_before_any_triton_is_asked(serve: Serve, arguments: list[str], status: int, said: str) -> None:
    code, errors = serve("--triton", BACKEND_UNAVAILABLE, "--startup-timeout-s", "0.2", *arguments)
    assert (code, said in errors) == (status, True), errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--slo", "nope=5"],
            "error: an SLO is given for nope, which is not scheduled; these models are: echo, gated, mix",
        ),
        (["--slo", "flat=5"], "error: an SLO is given for flat, which is not scheduled"),
        (
            ["-O", "nope=5"],
            "error: options of policy 'symphony': nope: there is no such field; there are: ",
        ),
        (["-O", "deadline_margin_ms=-5"], "error: options of policy 'symphony': deadline_margin_ms: must be at least"),
        (["--observer", "nope"], "error: no observer named 'nope' is installed"),
        (["--listen-http", "127.0.0.1:0"], "error: the HTTP port of Triton at 127.0.0.1:"),
    ],
)
def test_what_only_shows_with_a_triton(serve: Serve, triton: EmbeddedTriton, arguments: list[str], said: str) -> None:
    code, errors = serve("--triton", triton.grpc_address, *arguments)
    assert (code, said in errors) == (1, True), errors


def test_a_port_that_is_taken(serve: Serve, triton: EmbeddedTriton) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, errors = serve("--triton", triton.grpc_address, "--listen", address)
    assert code == 1
    assert errors.endswith(
        f"error: cannot listen on {address}: is the port taken? Stop what listens there, or give another address "
        "(port 0 takes a free port)"
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("nonsense [/x]", "is no JSON"),
        ({}, "profiles: must be given"),
        ({"version": 2, "profiles": []}, "version: must be 1"),
        ({"profiles": [PROFILE | {"points": []}]}, "profiles.0.points: must have at least 1 entry, not 0"),
        ({"profiles": [PROFILE | {"points": [POINT | {"p95_ms": -1}]}]}, "profiles.0.points.0.p95_ms: must be"),
        ({"profiles": [PROFILE | {"points": [POINT | {"rows": 0}]}]}, "profiles.0.points.0.rows: must be"),
        ({"profiles": [PROFILE | {"modle": "echo"}]}, "profiles.0.modle: there is no such field"),
    ],
)
def test_a_profile_file_that_cannot_be_used(serve: Serve, tmp_path: Path, document: Any, said: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    code, errors = serve("--triton", BACKEND_UNAVAILABLE, "--profiles", str(path))
    assert code == 1
    assert f"error: {path}: {said}" in errors


def test_a_shell_is_told_in_words() -> None:
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "serve", "--triton", BACKEND_UNAVAILABLE]
    done = subprocess.run([*command, "--policy", "nope"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "error: no policy named 'nope' is installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_as_many_files_as_are_allowed_may_be_open() -> None:
    script = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard)); "
        "from tidegate_proxy.commands.running import allow_all_files; allow_all_files(); "
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


def test_profiles_are_taken_up(triton: EmbeddedTriton, start_tidegate: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"profiles": [PROFILE]}))
    tidegate = start_tidegate([triton], profiles=path)
    assert "INFO no profile, learning from a guess: `tidegate profile` measures one (model=mixer" in tidegate.log
    assert "measures one (model=echo" not in tidegate.log
    assert "profile does not fit" not in tidegate.log


def test_a_measured_shape_that_no_request_has_is_a_warning(
    triton: EmbeddedTriton, start_tidegate: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"profiles": [PROFILE | {"shape": "Z:3"}]}))
    tidegate = start_tidegate([triton], profiles=path)
    assert "WARNING profile does not fit: no request of 'echo' has the shape 'Z:3'" in tidegate.log


def test_a_guess_is_worth_a_warning_where_there_is_an_slo(
    triton: EmbeddedTriton, start_tidegate: Callable[..., Any]
) -> None:
    tidegate = start_tidegate([triton], slo="echo=1000")
    assert "WARNING no profile, learning from a guess: `tidegate profile` measures one (model=echo" in tidegate.log
    assert "INFO no profile, learning from a guess: `tidegate profile` measures one (model=mixer" in tidegate.log


def test_what_is_under_way_is_answered_before_it_ends(
    gate: Any, triton: EmbeddedTriton, start_tidegate: Callable[..., Any], start_call: Callable[..., Any]
) -> None:
    tidegate = start_tidegate([triton])
    running = start_call(tidegate, "ModelInfer", request_of("gated", {"X": np.ones((1, 3), np.float32)}))
    eventually(gate.somebody_waits, "the model to run")
    tidegate.ask_to_stop()
    not_ready = (grpc.StatusCode.OK, b"")
    eventually(lambda: outcome(start_call(tidegate, "ServerReady", b"")) == not_ready, "its end to begin")
    gate.open()
    assert outcome(running)[0] is grpc.StatusCode.OK
    assert tidegate.stop()["answered"] == 1


def test_the_start_says_by_which_slo_requests_are_rejected_and_where_the_dashboard_is(
    triton: EmbeddedTriton, start_tidegate: Callable[..., Any], transport_of_tests: str
) -> None:
    """SLOs of config.pbtxt, too: `patient` has one."""
    tidegate = start_tidegate([triton], slo="echo=1000", listen_metrics="127.0.0.1:0")
    (slos,) = (line for line in tidegate.output.splitlines() if line.startswith("SLO "))
    assert "echo 1000 ms" in slos
    assert "patient 600000 ms" in slos
    assert slos.endswith("requests that cannot meet it are rejected (on_deadline_miss: serve answers them late)")
    if transport_of_tests == HERE:
        (url,) = re.findall(r"^dashboard (http://127\.0\.0\.1:\d+/dashboard)$", tidegate.output, re.MULTILINE)
        with urlopen(url, timeout=30) as answer:
            assert answer.status == 200


def test_no_dashboard_is_announced_where_there_is_none(
    triton: EmbeddedTriton, start_tidegate: Callable[..., Any]
) -> None:
    tidegate = start_tidegate([triton], listen_metrics="0.0.0.0:0")
    assert re.search(r"^metrics +0\.0\.0\.0:", tidegate.output, re.MULTILINE)
    assert "dashboard " not in tidegate.output
