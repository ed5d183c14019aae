"""Locust sends a scenario's requests at their instants, over gRPC and HTTP, and says how many were on time."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import eventually
from tests.loadtest.locust.conftest import printed_by
from tests.python_models import ECHO, write_model
from tidegate.workload import draw_requests, read_scenario
from tidegate_proxy.tritons.embedded import EmbeddedTriton

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import StartLocust

HEADLESS = ("--headless", "--only-summary")
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""


def in_window(path: Path) -> int:
    """How many requests of the scenario come after the warm-up."""
    return sum(at_ns >= 0.2 * 1e9 for at_ns in draw_requests(read_scenario(path), 0).at_ns)


def test_a_scenario_is_sent_as_it_is_drawn(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    path = scenario()
    locust = start_locust(*HEADLESS, "--host", f"http://{triton.target}", "--scenario", path)
    assert locust.ended() == 0, locust.output
    sequence = draw_requests(read_scenario(path), 0)
    assert len(triton.requests) == len(sequence)
    assert sorted(request.inputs[0].shape[0] for request in triton.requests) == sorted(sequence.rows or ())
    assert min(triton.patience_s) > 24 * 3600  # no deadline travels with a request
    row = locust.row()
    assert (row["requests"], row["attainment"], row["failed"]) == (str(in_window(path)), "100.00%", "0")


@pytest.mark.slow
def test_requests_leave_whatever_the_server_does(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    # The server answers no request before twenty are there: a sender that waited for an answer would wait for ever.
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", scenario("crowd"))
    assert locust.ended() == 0, locust.output
    assert locust.row("crowd")["attainment"] == "100.00%"


@pytest.mark.slow
def test_a_silent_server_costs_the_timeout(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    path = scenario("silent", rate_rps=20)
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", path, "--timeout-s", 0.3)
    assert locust.ended() == 1  # Locust's own: there were errors
    assert locust.row("silent")["failed"] == f"{in_window(path)} CLIENT_TIMEOUT"
    assert "CLIENT_TIMEOUT: no answer within 0.3 s" in locust.output


ATTAINMENT = """
from tidegate_loadtest.locust.attainment import Attainment
worker, master = Attainment(), Attainment()
worker.add("m", "", on_time=True, late_ns=6_000_000)
worker.add("m", "", on_time=False, late_ns=0)
master.merge(worker.take())
worker.add("m", "UNAVAILABLE", on_time=False, late_ns=0)
master.merge(worker.take())
for scheduled in (None, {"m": 4, "n": 0}):
    (row,) = master.rows({"m": 5.0, "n": None}, 2.0, scheduled)
    print(list(row.values()))
"""
OPTIONS = """
from tidegate_loadtest.locust.users import target_of
for host in (None, "localhost", "http://localhost:8000/", "localhost:8001"):
    try:
        print(target_of(host))
    except Exception as error:
        print(error)
"""


def test_reports_of_workers_are_added_and_lost_requests_are_misses() -> None:
    late = "not measured: 33.3% sent late"
    so_far, at_last = printed_by(ATTAINMENT)
    assert so_far == str(["m", "5", 3, "33.33%", "0.5", "1 UNAVAILABLE", late])
    assert at_last == str(["m", "5", 4, "25.00%", "0.5", "1 UNAVAILABLE, 1 UNREPORTED", late])


def test_the_host_is_an_address_with_a_port() -> None:
    says = ("--host must be HOST:PORT", "--host must be HOST:PORT", "localhost:8000", "localhost:8001")
    assert all(line.startswith(expected) for line, expected in zip(printed_by(OPTIONS), says, strict=True))


@pytest.mark.slow
def test_http_and_a_server_that_is_killed_half_way(
    start_triton: Callable[..., EmbeddedTriton],
    start_locust: "StartLocust",
    scenario: Callable[..., Path],
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "models", "echo", ECHO, CONFIG)
    server = start_triton([tmp_path / "models"])
    load = (*HEADLESS, "--host", server.http_address, "--protocol", "http", "--shape", "X:4|8")
    whole = start_locust(*load, "--scenario", scenario())
    assert whole.ended() == 0, whole.output
    assert whole.row()["failed"] == "0"
    begun = "All users spawned"
    half = start_locust(*load, "--scenario", scenario(duration_s=5, rate_rps=30))
    eventually(lambda: begun in half.output, "the load to begin")
    os.kill(server.pid, signal.SIGKILL)
    assert half.ended() == 1, half.output
    assert half.row()["failed"] != "0"


@pytest.mark.slow
def test_a_closed_loop_lasts_as_long_as_locust_is_told(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    users = ("--closed-loop", "--users", 3, "--spawn-rate", 10, "--run-time", "2s")
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", scenario(), *users)
    assert locust.ended() == 0, locust.output
    assert 1 <= triton.most_in_flight <= 3
    assert locust.row()["attainment"] == "100.00%"
    assert 0 < int(locust.row()["requests"]) <= len(triton.requests)


@pytest.mark.slow
def test_what_is_stopped_reports_what_had_ended(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path]
) -> None:
    locust = start_locust(*HEADLESS, "--host", triton.target, "--scenario", scenario(duration_s=60))
    eventually(lambda: len(triton.requests) > 100, "requests")
    locust.interrupt()
    assert locust.ended() == 0, locust.output
    assert locust.row()["failed"] == "0"
    assert 0 < int(locust.row()["requests"]) <= len(triton.requests) < 60 * 100


@pytest.mark.slow
def test_what_is_wrong_is_said_before_any_load(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int, tmp_path: Path
) -> None:
    given = ("--scenario", scenario("absent").rename(tmp_path / "absent_model.yaml"))
    sends, nobody = ("--scenario", scenario()), f"127.0.0.1:{free_port}"
    wrong: list[tuple[tuple[object, ...], str]] = [
        ((), "give --scenario FILE"),
        (given, "unknown model 'absent'"),
        (("--scenario", "absent.yaml"), "absent.yaml"),
        ((*sends, "--shape", "X"), "--shape 'X': write NAME:3,48,320"),
        ((*sends, "--timeout-s", 0), "--timeout-s must be positive, not 0"),
        ((*sends, "--host", nobody), nobody),
        ((*sends, "--host", nobody, "--protocol", "http"), nobody),
    ]
    started = [start_locust("--headless", "--host", triton.target, *arguments) for arguments, _says in wrong]
    for locust, (_arguments, says) in zip(started, wrong, strict=True):
        assert locust.ended() == 1, locust.output
        (line,) = (line for line in locust.output.splitlines() if line.startswith("error: "))
        assert says in line
    assert triton.requests == []
