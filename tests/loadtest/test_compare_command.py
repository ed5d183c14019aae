"""`tidegate compare`: how it is called, what it writes, and what it says before any load."""

import json
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import Result

from tests.command_line import invoke
from tests.pages import verdicts

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

SCENARIO = """
warmup_s: 0.1
duration_s: 0.4
seed: 7
workers: [{{count: 2}}]
models: [{{name: {model}, slo_ms: 2000, profile: {{alpha_ms: 1, beta_ms: 5, max_batch: 8}}}}]
arrivals: {{process: uniform, rate_rps: 100}}
policies: [{{name: fifs}}]
"""
REQUESTS = 50
"""Of one run, warm-up included."""


def scenario(folder: Path, model: str = "echo") -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(model=model))
    return path


def compare(*arguments: str | Path | int) -> Result:
    """Run it on whatever machine, however late it sends."""
    return invoke("compare", *arguments, "--lateness-limit-ms", 60_000)


def test_rounds_are_interleaved_and_alike(triton: "FakeTriton", tmp_path: Path) -> None:
    path, document, page = scenario(tmp_path), tmp_path / "c.json", tmp_path / "c.html"
    targets = ("--targets", f"a={triton.target}", f"b={triton.target}")
    done = compare(path, *targets, "--rounds", 2, "-o", document, "--html", page)
    assert done.exit_code == 0, done.output
    read = json.loads(document.read_text())
    rows = [(row["round"], row["target"], row["seed"]) for row in read["rows"] if row["model"] == "*"]
    assert rows == [(1, "a", 7), (1, "b", 7), (2, "b", 8), (2, "a", 8)]
    assert len(triton.requests) == 4 * REQUESTS
    runs = [triton.requests[start : start + REQUESTS] for start in range(0, 4 * REQUESTS, REQUESTS)]
    sent = [Counter(request.raw_input_contents[0] for request in run) for run in runs]
    assert sent[0] == sent[1] != sent[2] == sent[3]
    assert read["complete_rounds"] == [1, 2]
    assert read["stopped"] is None
    assert read["verdicts"] == [
        "b has 100.0 % on time, a 100.0 %: +0.0 points in 2 rounds; chance is not ruled out, take 3 or more."
    ]
    assert read["verdicts"][0] in done.stdout
    assert verdicts(page.read_text()) == read["verdicts"]
    assert read["settings"]["a"]["models"] == {"echo": read["settings"]["b"]["models"]["echo"]}
    assert "no dynamic_batching" in page.read_text().replace("<wbr>", "")


@pytest.mark.parametrize(
    "form", [("--target", "a={0}", "--target", "b={0}"), ("--targets", "a={0},b={0}"), ("a={0}", "b={0}")]
)
def test_targets_can_be_given_in_several_ways(triton: "FakeTriton", tmp_path: Path, form: tuple[str, ...]) -> None:
    done = compare(scenario(tmp_path), *(word.format(triton.target) for word in form), "--rounds", 1)
    assert done.exit_code == 0, done.output
    assert "b has 100.0 % on time, a 100.0 %: +0.0 points in one round; chance is not ruled out" in done.stdout


def test_inputs_come_from_files(triton: "FakeTriton", tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    folder.mkdir()
    np.save(folder / "a.npy", np.full(4, 42, np.float32))
    targets = ("--targets", f"a={triton.target}", f"b={triton.target}", "--rounds", 1)
    done = compare(scenario(tmp_path), *targets, "--inputs", f"echo={folder}")
    assert done.exit_code == 0, done.output
    assert {request.raw_input_contents[0] for request in triton.requests} == {np.full(4, 42, np.float32).tobytes()}


def test_requests_that_fail_are_reported(triton: "FakeTriton", tmp_path: Path) -> None:
    targets = ("--targets", f"a={triton.target}", f"b={triton.target}", "--rounds", 2)
    done = compare(scenario(tmp_path, "failing"), *targets)
    assert done.exit_code == 0, done.output
    assert "a: 80 of 80 requests failed; first UNAVAILABLE: no worker left" in done.stdout
    assert "b has 0.0 % on time, a 0.0 %: +0.0 points in 2 rounds; chance is not ruled out" in done.stdout


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("absent", ("a={0}", "b={0}"), "a: "),
        ("absent", ("a={0}", "b={0}"), "it has no model 'absent'; its models are: "),
        ("image", ("a={0}", "b={0}"), "give its -1 a size with --shape IMAGE:"),
        ("echo", ("a={0}",), "two servers at least, 1 given"),
        ("echo", ("a={0}", "a={0}"), "'a' is named twice"),
        ("echo", ("a={0}", "{0}"), "write NAME=HOST:PORT"),
        ("echo", ("a={0}", "b={0}", "--policy", "fifs"), "--policy is for emulated clusters"),
        ("echo", ("a={0}", "b={0}", "--inputs", "other=x"), "--inputs other=...: the scenario has no such model"),
        ("echo", ("a={0}", "b={0}", "--inputs", "echo=/absent"), "there is no such folder"),
        ("echo", (), "two policies at least, 1 chosen"),
    ],
)
def test_what_is_wrong_is_said_before_any_load(
    triton: "FakeTriton", tmp_path: Path, model: str, arguments: tuple[str, ...], says: str
) -> None:
    done = compare(scenario(tmp_path, model), *(word.format(triton.target) for word in arguments))
    assert done.exit_code == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert triton.requests == []


def test_nobody_at_one_target_is_said_before_the_other_has_any_load(triton: "FakeTriton", tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound but not listening: nobody else gets the port, nobody answers
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        done = compare(scenario(tmp_path), "--targets", f"here={triton.target}", f"gone={address}")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: gone: {address}: ")
    assert triton.requests == []


def test_a_wrong_scenario_is_said(triton: "FakeTriton", tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace("duration_s", "duration"))
    done = compare(path, "--targets", f"a={triton.target}", f"b={triton.target}")
    assert done.exit_code == 1
    assert "duration" in done.stderr
    assert compare(tmp_path / "absent.yaml", f"a={triton.target}", f"b={triton.target}").exit_code == 1
    assert triton.requests == []
