"""`tidegate loadtest`: its files, and what it says before any load."""

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.command_line import invoke
from tests.pages import verdicts
from tidegate.workload import read_scenario
from tidegate_loadtest import server_slos

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

SCENARIO = """
warmup_s: 0.1
duration_s: 0.4
workers: [{{count: 2}}]
models: [{{name: {model}, slo_ms: 2000, profile: {{alpha_ms: 1, beta_ms: 5, max_batch: 8}}}}]
arrivals: {{process: uniform, rate_rps: 100}}
policies: [{{name: fifs}}, {{name: triton}}]
"""


def scenario(folder: Path, model: str = "echo") -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(model=model))
    return path


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_live_and_simulated_have_the_same_columns(triton: "FakeTriton", tmp_path: Path) -> None:
    path, live, simulated, page = (tmp_path / name for name in ("scenario.yaml", "live.json", "sim.json", "live.html"))
    scenario(tmp_path)
    files = ("-o", live, "--html", page)
    done = invoke("loadtest", path, "--target", triton.target, "--policy", "fifs", "--seed", 3, "--seed", 4, *files)
    assert done.exit_code == 0, done.output
    simulation = invoke("simulate", path, "--policy", "fifs", "--seed", 3, "--seed", 4, "-o", simulated)
    assert simulation.exit_code == 0
    rows, others = read(live)["rows"], read(simulated)["rows"]
    assert [list(row) for row in rows] == [list(row) for row in others]
    same = ("policy", "seed", "model", "rate_rps", "accepted", "offered_rps", "answered")
    assert [[row[name] for name in same] for row in rows] == [[row[name] for name in same] for row in others]
    assert all(row["lateness_p99_ms"] is not None for row in rows)
    assert len(triton.requests) == 2 * 50
    assert _headings(done.stdout) == [*_headings(simulation.stdout), "late p99 ms"]
    assert "generator late p50, p99 ms" in page.read_text()


def _headings(output: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.startswith("┃ policy"))
    return [heading.strip() for heading in line.strip("┃").split("┃")]


def test_a_target_needs_neither_workers_nor_profiles(triton: "FakeTriton", tmp_path: Path) -> None:
    """What a server has of its own is not written into the results, either."""
    whole = yaml.safe_load(SCENARIO.format(model="echo"))
    plain = {**whole, "models": [{"name": "echo", "slo_ms": 1000}]}
    del plain["workers"]
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(plain))
    done = invoke("loadtest", path, "--target", f"t={triton.target}", "-o", tmp_path / "live.json")
    assert done.exit_code == 0, done.output
    document = read(tmp_path / "live.json")
    assert document["scenario"]["workers"] == []
    assert document["scenario"]["models"] == [{"name": "echo", "slo_ms": 1000}]
    assert document["rows"][0]["answered"] == 40, "those of the window"
    refused = invoke("simulate", path, "--policy", "fifs")
    assert "give profile" in refused.output, "the simulator needs them"


def test_a_server_with_another_slo_than_the_scenario_is_a_warning(
    triton: "FakeTriton", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_slos, "_server_slos_ms", lambda _target: {"echo": 25.0})
    done = invoke("loadtest", scenario(tmp_path), "--target", triton.target)
    (slo_ms,) = (model.slo_ms for model in read_scenario(tmp_path / "scenario.yaml").models)
    assert f"warning: echo: the server goes by an SLO of 25 ms, the scenario by an SLO of {slo_ms:g} ms" in done.stderr
    monkeypatch.setattr(server_slos, "_server_slos_ms", lambda _target: {"echo": slo_ms})
    assert "warning" not in invoke("loadtest", scenario(tmp_path), "--target", triton.target).stderr


def test_a_target_is_called_by_its_address_unless_it_is_named(triton: "FakeTriton", tmp_path: Path) -> None:
    done = invoke("loadtest", scenario(tmp_path), "--target", triton.target, "-o", tmp_path / "live.json")
    assert done.exit_code == 0, done.output
    assert {row["policy"] for row in read(tmp_path / "live.json")["rows"]} == {triton.target}


def test_a_generator_that_fell_behind_is_no_measurement(triton: "FakeTriton", tmp_path: Path) -> None:
    files = ("-o", tmp_path / "live.json", "--html", tmp_path / "live.html")
    limit = ("--lateness-limit-ms", 0)
    done = invoke("loadtest", scenario(tmp_path), "--target", triton.target, "--policy", "triton", *limit, *files)
    (run,) = read(tmp_path / "live.json")["not_measured"]
    assert (run["policy"], run["seed"]) == ("triton", 0)
    assert run["reason"].startswith("the load generator fell behind its schedule (p99 ")
    headline = f"triton, seed 0: not measured: {run['reason']}."
    assert done.stdout.splitlines()[-3] == headline, "followed by the names of the files"
    assert verdicts((tmp_path / "live.html").read_text()) == [headline]


def test_the_first_message_of_each_failure_is_shown(triton: "FakeTriton", tmp_path: Path) -> None:
    done = invoke("loadtest", scenario(tmp_path, "failing"), "--target", triton.target)
    assert "first UNAVAILABLE: no worker left" in done.stdout


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("absent", (), "it has no model 'absent'; its models are: "),
        ("ecko", (), "it has no model 'ecko'; did you mean 'echo'? Its models are: "),
        ("image", (), "give its -1 a size with --shape IMAGE:"),
        ("echo", ("--shape", "Y:3"), "--shape Y: no model of the scenario has this input (echo: X)"),
        ("echo", ("--policy", "fifs", "--policy", "triton"), "runs one policy"),
        ("echo", ("--policy", "absent"), "no policy named 'absent'"),
    ],
)
def test_what_is_wrong_is_said_before_any_load(
    triton: "FakeTriton", tmp_path: Path, model: str, arguments: tuple[str, ...], says: str
) -> None:
    done = invoke("loadtest", scenario(tmp_path, model), "--target", triton.target, *arguments)
    assert done.exit_code == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert triton.requests == []


@pytest.mark.parametrize(
    ("named", "policy", "called"),
    [("before=", (), "before"), ("before=", ("--policy", "fifs"), "before"), ("", ("--policy", "fifs"), "fifs")],
)
def test_a_target_may_have_a_name(
    triton: "FakeTriton", tmp_path: Path, named: str, policy: tuple[str, ...], called: str
) -> None:
    out = tmp_path / "live.json"
    done = invoke("loadtest", scenario(tmp_path), "--target", f"{named}{triton.target}", *policy, "-o", out)
    assert done.exit_code == 0, done.stderr
    assert {row["policy"] for row in json.loads(out.read_text())["rows"]} == {called}


def test_a_target_without_its_port(tmp_path: Path) -> None:
    done = invoke("loadtest", scenario(tmp_path), "--target", "localhost")
    assert done.exit_code == 1
    assert done.stderr == "error: 'localhost' is not HOST:PORT of a server's gRPC, such as localhost:8001\n"


def test_nobody_at_the_target(tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound but not listening: nobody else gets the port, nobody answers
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        done = invoke("loadtest", scenario(tmp_path), "--target", target)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {target}: no Triton and no Tidegate answers: does it run, and is this its")


def test_a_wrong_option_of_a_policy_is_said_before_anything_starts(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace("name: triton", "name: triton, options: {delay: 3}"))
    done = invoke("loadtest", path)
    assert done.exit_code == 1
    assert "options of policy 'triton': delay" in done.stderr
