"""Locust sends a scenario's requests at their instants, over gRPC and HTTP, and reports as `tidegate simulate` does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tritonclient.grpc as triton_grpc

from tests.command_line import invoke
from tests.conftest import eventually
from tests.python_models import ECHO, write_model
from tidegate.workload import draw_requests, read_scenario
from tidegate_proxy.tritons.embedded import EmbeddedTriton

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import StartLocust

HEADLESS = ("--headless", "--only-summary", "--results-json", "results.json", "--requests-csv", "requests.csv")
Results = Callable[[], dict[str, Any]]
Sent = Callable[[], list[dict[str, str]]]
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""


def start_echo(start_triton: Callable[..., EmbeddedTriton], folder: Path) -> EmbeddedTriton:
    write_model(folder, "echo", ECHO, CONFIG)
    return start_triton([folder])


def test_a_scenario_has_the_columns_of_its_simulation(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], results: Results, tmp_path: Path
) -> None:
    path = scenario()
    page = ("--policy", "fifs", "--results-html", "live.html")
    locust = start_locust(*HEADLESS, "--host", f"http://{triton.target}", "--scenario", path, *page)
    simulated = tmp_path / "simulated.json"
    arguments = ["simulate", str(path), "--policy", "fifs", "-o", str(simulated)]
    assert invoke(*arguments).exit_code == 0
    assert locust.ended() == 0, locust.output
    document, other = results(), json.loads(simulated.read_text())
    assert [list(row) for row in document["rows"]] == [list(row) for row in other["rows"]]
    same = ("policy", "seed", "model", "rate_rps", "accepted", "offered_rps", "answered")
    assert [[row[key] for key in same] for row in document["rows"]] == [
        [row[key] for key in same] for row in other["rows"]
    ]
    assert document["rows"][0]["attainment"] == 1
    assert document["rows"][0]["lateness_p50_ms"] is not None
    assert document["command"] == "loadtest"
    sequence = draw_requests(read_scenario(path), 0)
    assert len(triton.requests) == len(sequence)
    assert sorted(request.inputs[0].shape[0] for request in triton.requests) == sorted(sequence.rows or ())
    assert min(triton.patience_s) > 24 * 3600  # no deadline travels with a request
    assert "generator late p50, p99 ms" in (tmp_path / "live.html").read_text()


@pytest.mark.slow
def test_requests_leave_on_time_whatever_the_server_does(
    triton: "FakeTriton", start_locust: "StartLocust", results: Results, requests_sent: Sent
) -> None:
    # The server answers nobody before all twenty are there: whoever waits for an answer waits for ever.
    load = ("--model", "crowd", "--rate", 40, "--process", "uniform", "--duration-s", 0.5, "--slo-ms", 60_000)
    locust = start_locust(*HEADLESS, "--host", triton.target, *load)
    assert locust.ended() == 0, locust.output
    assert results()["summary"]["attainment"] == 1
    lines = sorted(requests_sent(), key=lambda line: int(line["number"]))
    assert [float(line["due_ms"]) for line in lines] == [25.0 * number for number in range(20)]
    assert all(float(line["sent_ms"]) >= float(line["due_ms"]) for line in lines)
    assert float(lines[0]["ended_ms"]) >= float(lines[-1]["sent_ms"])
    assert results()["summary"]["p99_ms"] > 400  # counted from the schedule


@pytest.mark.slow
def test_a_silent_server_costs_the_timeout(triton: "FakeTriton", start_locust: "StartLocust", results: Results) -> None:
    load = ("--model", "silent", "--rate", 20, "--duration-s", 0.5, "--slo-ms", 60_000, "--timeout-s", 0.3)
    locust = start_locust(*HEADLESS, "--host", triton.target, *load)
    assert locust.ended() == 1  # Locust's own: there were errors
    summary = results()["summary"]
    assert summary["failed"] == {"CLIENT_TIMEOUT": summary["issued"]}
    assert "first CLIENT_TIMEOUT: no answer within 0.3 s" in locust.output


@pytest.mark.slow
def test_a_generator_that_fell_behind_says_so(
    triton: "FakeTriton", start_locust: "StartLocust", results: Results
) -> None:
    load = ("--model", "echo", "--rate", 50, "--duration-s", 0.5, "--slo-ms", 60_000, "--lateness-limit-ms", 0)
    locust = start_locust(*HEADLESS, "--host", triton.target, *load)
    assert locust.ended() == 0, locust.output
    assert "the load generator fell behind its schedule" in locust.output
    assert "the load generator fell behind its schedule" in results()["summary"]["not_measured"]


def inferences(server: EmbeddedTriton) -> int:
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        return int(client.get_inference_statistics("echo").model_stats[0].inference_count)


@pytest.mark.slow
def test_http_and_a_server_that_is_killed_half_way(
    start_triton: Callable[..., EmbeddedTriton],
    start_locust: "StartLocust",
    scenario: Callable[..., Path],
    results: Results,
    requests_sent: Sent,
    tmp_path: Path,
) -> None:
    server = start_echo(start_triton, tmp_path / "models")
    shape = ("--shape", "X:4|8")
    files = ("--headless", "--only-summary", "--results-json", "results.json", "--requests-csv", "requests.csv")
    whole = start_locust(*files, "--host", server.http_address, "--protocol", "http", "--scenario", scenario(), *shape)
    assert whole.ended() == 0, whole.output
    total = results()["rows"][0]
    assert total["answered"] == total["accepted"] > 0
    assert total["batches"] > 0  # what the server says of itself, over HTTP
    before = inferences(server)
    halves = {}
    for protocol, address in (("grpc", server.grpc_address), ("http", server.http_address)):
        halves[protocol] = start_locust(
            *("--headless", "--only-summary", "--host", address, "--protocol", protocol, "--slo-ms", 60_000, *shape),
            *("--model", "echo", "--rate", 30, "--duration-s", 3, "--results-json", f"{protocol}.json"),
        )
    began = "All users spawned"
    eventually(lambda: all(began in locust.output for locust in halves.values()), "both to begin")
    eventually(lambda: inferences(server) > before + 60, "a third of the 180 that both send")
    os.kill(server.pid, signal.SIGKILL)
    for protocol, locust in halves.items():
        assert locust.ended() == 1, locust.output
        summary = json.loads((tmp_path / f"{protocol}.json").read_text())["summary"]
        failed = sum(summary["failed"].values())
        assert 0 < failed < summary["issued"], protocol
        assert summary["completed"] + failed == summary["issued"], protocol
        assert summary["attainment"] < 1


@pytest.mark.slow
def test_a_closed_loop_lasts_as_long_as_locust_is_told(
    triton: "FakeTriton", start_locust: "StartLocust", results: Results
) -> None:
    users = ("--users", 3, "--spawn-rate", 10, "--run-time", "2s")
    locust = start_locust(*HEADLESS, "--host", triton.target, "--model", "echo", "--slo-ms", 60_000, *users)
    assert locust.ended() == 0, locust.output
    assert 1 <= triton.most_in_flight <= 3
    summary = results()["summary"]
    assert summary["attainment"] == 1
    assert 0 < summary["issued"] <= len(triton.requests)


@pytest.mark.slow
def test_what_is_stopped_reports_what_had_ended(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], results: Results
) -> None:
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", scenario(duration_s=60))
    eventually(lambda: len(triton.requests) > 100, "requests")
    locust.interrupt()
    assert locust.ended() == 0, locust.output
    row = results()["rows"][0]
    assert row["answered"] == row["accepted"]
    assert 0 < row["accepted"] <= len(triton.requests) < 60 * 100
    assert "Stopped after " in locust.output


WRONG: list[tuple[tuple[object, ...], str]] = [
    (("--model", "absent", "--slo-ms", 5), "unknown model 'absent'"),
    (("--scenario", "absent.yaml"), "absent.yaml"),
    (("--scenario", "scenario.yaml", "--policy", "absent"), "no policy named 'absent'"),
]
OPTIONS = """
from argparse import Namespace
from dataclasses import asdict
from tidegate_loadtest.locust.options import OPTION_PREFIX, Options, target_of
for given in (
    {"slo_ms": 5},
    {"model": "echo"},
    {"model": "echo", "scenario": "s.yaml"},
    {"scenario": "s.yaml", "rate": 5},
    {"model": "echo", "slo_ms": 5, "rate": -1},
    {"model": "echo", "slo_ms": 5, "duration_s": 0},
    {"model": "echo", "slo_ms": 5, "results_html": "r.html"},
    {"model": "echo", "slo_ms": 5, "results_json": "absent/r.json"},
    {"model": "echo", "slo_ms": 5, "shape": ["X"]},
    {"model": "echo", "slo_ms": 5, "inputs": ["X"]},
):
    try:
        parsed = Namespace(**{OPTION_PREFIX + name: value for name, value in {**asdict(Options()), **given}.items()})
        print(Options.of(parsed).sending())
    except Exception as error:
        print(error)
for host in (None, "localhost", "http://localhost:8000/", "localhost:8001"):
    try:
        print(target_of(host))
    except Exception as error:
        print(error)
"""


def test_options_that_do_not_go_together_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", OPTIONS], capture_output=True, text=True, check=True, timeout=120)
    says = (
        "give either --scenario FILE or --model NAME",
        "--model needs --slo-ms",
        "give either --scenario FILE or --model NAME",
        "--rate is for --model",
        "--rate must be positive, not -1",
        "--duration-s must be positive, not 0",
        "--results-html needs --scenario",
        "--results-json absent/r.json: there is no such folder",
        "--shape 'X': write NAME:3,48,320",
        "--inputs 'X': write MODEL=FOLDER",
        "--host must be HOST:PORT",
        "--host must be HOST:PORT",
        "localhost:8000",
        "localhost:8001",
    )
    for line, expected in zip(done.stdout.splitlines(), says, strict=True):
        assert line.startswith(expected)


@pytest.mark.slow
def test_what_is_wrong_is_said_before_any_load(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    scenario()
    nobody = f"127.0.0.1:{free_port}"
    wrong = [
        *WRONG,
        (("--model", "echo", "--slo-ms", 5, "--host", nobody), nobody),
        (("--model", "echo", "--slo-ms", 5, "--host", nobody, "--protocol", "http"), nobody),
    ]
    started = [start_locust("--headless", "--host", triton.target, *arguments) for arguments, _says in wrong]
    for locust, (_arguments, says) in zip(started, wrong, strict=True):
        assert locust.ended() == 1, locust.output
        (line,) = (line for line in locust.output.splitlines() if line.startswith("error: "))
        assert says in line
    assert triton.requests == []
