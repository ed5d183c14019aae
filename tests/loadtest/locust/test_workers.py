"""A master and two workers on one machine: one schedule, divided."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import eventually
from tidegate.workload import draw_requests, read_scenario

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import Locust, StartLocust

FILES = ("--results-json", "results.json", "--requests-csv", "requests.csv")


def start(start_locust: "StartLocust", port: int, *arguments: object) -> tuple["Locust", list["Locust"]]:
    workers = [start_locust("--worker", "--master-port", port) for _ in range(2)]
    master = start_locust(
        "--master", "--master-bind-port", port, "--expect-workers", 2, "--headless", "--only-summary", *arguments
    )
    return master, workers


def test_two_workers_send_the_schedule_without_overlap(
    triton: "FakeTriton",
    start_locust: "StartLocust",
    scenario: Callable[..., Path],
    results: Callable[[], dict[str, Any]],
    requests_sent: Callable[[], list[dict[str, str]]],
    free_port: int,
) -> None:
    path = scenario()
    master, workers = start(start_locust, free_port, *FILES, "--host", triton.target, "--scenario", path)
    assert master.ended() == 0, master.output
    assert [worker.ended() for worker in workers] == [0, 0], [worker.output for worker in workers]
    sequence = draw_requests(read_scenario(path), 0)
    lines = requests_sent()
    assert sorted(int(line["number"]) for line in lines) == list(range(len(sequence)))
    assert len(triton.requests) == len(sequence)
    due_ms = {int(line["number"]): float(line["due_ms"]) + 200 for line in lines}
    assert all(abs(due_ms[number] * 1e6 - at_ns) < 2 for number, at_ns in enumerate(sequence.at_ns))
    each = Counter(line["worker"] for line in lines)
    assert len(each) == 2
    assert max(each.values()) - min(each.values()) <= 1
    assert results()["rows"][0]["attainment"] == 1


SLOW_TO_LISTEN = """
import gevent
from locust import events

@events.init.add_listener
def fall_asleep(**_rest):
    gevent.sleep(1)  # Locust counts the worker as ready all the while

from tidegate_loadtest.locust.users import TritonUser

class Client(TritonUser):
    pass
"""


@pytest.mark.slow
def test_a_worker_that_does_not_listen_yet_is_waited_for(
    triton: "FakeTriton",
    start_locust: "StartLocust",
    scenario: Callable[..., Path],
    results: Callable[[], dict[str, Any]],
    free_port: int,
    tmp_path: Path,
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_LISTEN)
    late = start_locust("-f", tmp_path / "slow.py", "--worker", "--master-port", free_port)
    sending = ("--host", triton.target, "--scenario", scenario())
    master = start_locust(
        "--master", "--master-bind-port", free_port, "--expect-workers", 1, "--headless", *FILES, *sending
    )
    assert master.ended() == 0, master.output + late.output
    assert "Unknown message" not in late.output
    assert results()["rows"][0]["attainment"] == 1


@pytest.mark.slow
def test_what_a_lost_worker_should_have_sent_is_not_forgotten(
    triton: "FakeTriton",
    start_locust: "StartLocust",
    scenario: Callable[..., Path],
    results: Callable[[], dict[str, Any]],
    free_port: int,
) -> None:
    path = scenario(duration_s=3, rate_rps=50)
    master, workers = start(start_locust, free_port, *FILES, "--host", triton.target, "--scenario", path)
    eventually(lambda: len(triton.requests) > 10, "requests")
    workers[0].kill()
    assert master.ended() == 0, master.output
    row = results()["rows"][0]
    assert row["failed"] > 0
    assert row["answered"] + row["failed"] == row["accepted"]
    assert "went with a worker that was lost" in master.output
