"""The command line, in a process of its own as a parent would start it, and in this one."""

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tidegate_loadtest.cli import app

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton


def test_json_on_stdout_is_one_object_for_a_parent_process(triton: "FakeTriton") -> None:
    command = [sys.executable, "-m", "tidegate_loadtest", "--target", triton.target, "--model", "image"]
    load = ["--rate", "200", "--process", "uniform", "--duration-s", "0.2", "--warmup-s", "0.1", "--slo-ms", "1000"]
    done = subprocess.run(
        [*command, *load, "--shape", "IMAGE:3,2,2", "--rows", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["issued"] == 40
    assert report["summary"]["completed"] == 40
    assert report["server"]["executions"] == 0  # the fake counts nothing
    assert len(triton.requests) == 60
    assert done.stderr == ""


@pytest.mark.parametrize("load", [["--rate", "500", "--process", "gamma"], ["--concurrency", "2"]])
def test_people_get_a_table_and_the_first_message_of_each_failure(triton: "FakeTriton", load: list[str]) -> None:
    arguments = ["--target", triton.target, "--model", "failing", "--duration-s", "0.1", "--slo-ms", "50", *load]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    assert "attainment of 50 ms" in done.stdout
    assert "first UNAVAILABLE: no worker left" in done.stdout


def test_an_unreachable_server_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as unused:  # bound but not listening: nobody else gets the port, nobody answers
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        done = CliRunner().invoke(app, ["--target", target, "--model", "echo", "--rate", "1", "--slo-ms", "1"])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {target}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--rate", "1", "--concurrency", "1"],
        ["--rate", "0"],
        ["--rate", "1", "--shape", "IMAGE"],
        ["--rate", "1", "--shape", "IMAGE:3,x"],
        ["--rate", "1", "--shape", "IMAGE:3,-1"],
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_asked(triton: "FakeTriton", wrong: list[str]) -> None:
    done = CliRunner().invoke(app, ["--target", triton.target, "--model", "image", "--slo-ms", "1", *wrong])
    assert done.exit_code == 2
    assert "Error" in done.stderr
