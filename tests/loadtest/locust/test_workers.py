"""A master and two workers on one machine: one schedule, divided."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import eventually
from tidegate.workload import draw_requests, read_scenario

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import Locust, StartLocust


def start(start_locust: "StartLocust", port: int, *arguments: object) -> tuple["Locust", list["Locust"]]:
    workers = [start_locust("--worker", "--master-port", port) for _ in range(2)]
    master = start_locust(
        "--master", "--master-bind-port", port, "--expect-workers", 2, "--headless", "--only-summary", *arguments
    )
    return master, workers


def test_two_workers_send_the_schedule_without_overlap(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    path = scenario()
    master, workers = start(start_locust, free_port, "--host", triton.target, "--scenario", path)
    assert master.ended() == 0, master.output
    assert [worker.ended() for worker in workers] == [0, 0], [worker.output for worker in workers]
    sequence = draw_requests(read_scenario(path), 0)
    assert len(triton.requests) == len(sequence)
    assert sorted(request.inputs[0].shape[0] for request in triton.requests) == sorted(sequence.rows or ())
    row = master.row()
    assert int(row["requests"]) == sum(at_ns >= 0.2 * 1e9 for at_ns in sequence.at_ns)
    assert (row["attainment"], row["failed"]) == ("100.00%", "0")


@pytest.mark.slow
def test_what_a_lost_worker_should_have_sent_is_not_forgotten(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    load = ("--host", triton.target, "--scenario", scenario(duration_s=3, rate_rps=50), "--timeout-s", 2)
    master, workers = start(start_locust, free_port, *load)
    eventually(lambda: len(triton.requests) > 10, "requests")
    workers[0].kill()
    assert master.ended() == 1, master.output
    assert "UNREPORTED" in master.row()["failed"]
    assert master.row()["attainment"] != "100.00%"
