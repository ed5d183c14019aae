"""A master and two workers on one machine: one schedule, divided."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import eventually
from tests.loadtest.locust.conftest import printed_by
from tidegate.workload import draw_requests, read_scenario

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import Locust, StartLocust


def start(start_locust: "StartLocust", port: int, *arguments: object) -> tuple["Locust", list["Locust"]]:
    workers = start_workers(start_locust, port)
    return start_master(start_locust, port, *arguments), workers


def start_workers(start_locust: "StartLocust", port: int) -> list["Locust"]:
    return [start_locust("--worker", "--master-port", port) for _ in range(2)]


def start_master(start_locust: "StartLocust", port: int, *arguments: object) -> "Locust":
    return start_locust(
        "--master", "--master-bind-port", port, "--expect-workers", 2, "--headless", "--only-summary", *arguments
    )


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


BARRIER = """
from argparse import Namespace
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerNode, WorkerNodes
from tidegate_loadtest.locust import users

class Master(MasterRunner):
    def __init__(self):
        self.clients, self.custom_messages, self.begun = WorkerNodes(), {}, []
        for name in ("first", "second", "lost"):
            self.clients[name] = WorkerNode(name)

    def __del__(self):
        pass

    def send_message(self, msg_type, data=None, client_id=None):
        assert msg_type == users.BEGIN_MESSAGE
        self.begun.append((client_id, data))

    def is_ready(self, worker):
        listener, _concurrent = self.custom_messages[users.READY_MESSAGE]
        listener(environment=environment, msg=Message(users.READY_MESSAGE, None, worker))

environment = Environment(parsed_options=Namespace())
runner = environment.runner = Master()
test = users.LocustTest(environment)
test.check = lambda: None
environment.events.test_start.fire(environment=environment)
runner.is_ready("first")
runner.is_ready("second")
print([name for name, _instant in runner.begun])
del runner.clients["lost"]
environment.events.worker_report.fire(client_id="first", data={"tidegate": test.attainment.take()})
print(sorted(name for name, _instant in runner.begun))
runner.is_ready("latecomer")
print(runner.begun[-1][0], len({instant for _name, instant in runner.begun}))
"""


def test_workers_begin_together_once_all_are_ready_or_lost() -> None:
    assert printed_by(BARRIER) == ["[]", "['first', 'second']", "latecomer 1"]


@pytest.mark.slow
def test_workers_share_a_closed_loop(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    users = ("--closed-loop", "--users", 2, "--spawn-rate", 10)
    load = ("--host", triton.target, "--scenario", scenario())
    master, workers = start(start_locust, free_port, *load, *users)
    eventually(lambda: len(triton.requests) > 10, "requests")
    master.interrupt()
    assert master.ended() == 0, [each.output for each in (master, *workers)]
    assert 1 <= triton.most_in_flight <= 2


@pytest.fixture
def traced(scenario: Callable[..., Path]) -> Path:
    """Scenario in a folder where no process runs, with a trace beside it."""
    path = scenario()
    folder = path.parent / "scenarios"
    folder.mkdir()
    (folder / "trace.txt").write_text("".join(f"{number / 100}\n" for number in range(100)))
    poisson = "{process: poisson, rate_rps: 100}"
    text = path.read_text().replace(poisson, "{process: trace, file: trace.txt, format: lines}")
    traced = folder / path.name
    traced.write_text(text)
    return traced


@pytest.mark.slow
def test_workers_find_a_trace_beside_the_scenario(
    triton: "FakeTriton", start_locust: "StartLocust", traced: Path, free_port: int
) -> None:
    scenario = traced.relative_to(traced.parent.parent)
    master, workers = start(start_locust, free_port, "--host", triton.target, "--scenario", scenario)
    assert master.ended() == 0, [each.output for each in (master, *workers)]
    assert len(triton.requests) == len(draw_requests(read_scenario(traced), 0))


@pytest.mark.slow
def test_a_worker_that_cannot_draw_ends_the_test(
    triton: "FakeTriton", start_locust: "StartLocust", traced: Path, free_port: int
) -> None:
    master = start_master(start_locust, free_port, "--host", triton.target, "--scenario", traced, "--loglevel", "DEBUG")
    eventually(lambda: "Waiting for workers" in master.output, "the master to have read the trace")
    (traced.parent / "trace.txt").unlink()
    workers = start_workers(start_locust, free_port)
    assert master.ended() == 1, master.output
    assert "trace.txt: No such file" in master.output
    assert [worker.ended() for worker in workers] == [0, 0], [worker.output for worker in workers]
    assert triton.requests == []


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
