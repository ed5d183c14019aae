"""`tidegate up` with a controller: Symphony's advice joins and releases workers, and nothing is left in the end."""

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import invoke
from tests.conftest import eventually
from tests.proxy.app.actuation.deployment import layout, write_deployment
from tests.proxy.app.actuation.live import Load
from tidegate.observation import ChangeProgressed, TopologyChanged, read_log
from tidegate.schemas import PROXY_FILE, write_document
from tidegate_loadtest.processes import deployment_up

ADVISED = {"name": "advised-workers", "interval_s": 1.0, "cooldown_s": 0.2, "min_improvement": 0}
SYMPHONY = {"name": "symphony", "options": {"advice_every_s": 0.5}}
Up = Callable[[Path], dict[str, Any]]


@pytest.fixture
def up(tmp_path: Path, start_triton: object) -> Iterator[Up]:
    """`up(folder)`: the deployment is up until the end of the test; what its state file says."""
    del start_triton  # which says whether there is a tritonserver
    with ExitStack() as running:
        yield lambda folder: running.enter_context(deployment_up(folder, tmp_path / "errors"))


def workers(folder: Path) -> dict[str, int]:
    """The processes that the state file names, by worker."""
    state = json.loads((folder / "run" / "state.json").read_text())
    return {worker["name"]: worker["pid"] for worker in state["workers"]}


def is_there(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_symphonys_advice_joins_workers_and_releases_them(up: Up, tmp_path: Path) -> None:
    few, every = (layout(*gpus, batch=1, slo_ms=400, batch_ms=150) for gpus in ((0,), (0, 1)))
    folder = tmp_path / "deployment"
    options = {"layout": "every.json"}
    record = tmp_path / "events.jsonl"
    write_deployment(
        folder, few, policy=SYMPHONY, controller={**ADVISED, "options": options}, event_log=str(record), seed=3
    )
    write_document(folder / "every.json", every)
    state = up(folder)
    load = Load(state["grpc"])  # four clients, of which one worker can serve two on time
    eventually(lambda: set(workers(folder)) == {"gpu0", "gpu1"}, "a worker to join")
    eventually(lambda: "tidegate_layout_gpus 2.0" in page(state, "metrics"), "the metrics to say so")
    load.end()
    quiet = Load(state["grpc"], clients=1, cooldown_s=0.3)
    eventually(lambda: len(workers(folder)) == 1, "a worker to be released")
    assert [words for words in quiet.end() if "expired" not in words] == []  # who is late is dropped, on a busy machine
    told = json.loads(page(state, "layout"))
    assert (told["control"]["enabled"], len(told["layout"]["workers"]), len(told["workers"])) == (True, 1, 1)
    assert {"starting", "switched", "done"} <= {each["state"] for each in told["control"]["events"]}
    assert 'tidegate_layout_changes_total{state="undone"} 0.0' in page(state, "metrics")
    os.kill(state["pid"], signal.SIGTERM)
    eventually(lambda: not is_there(state["pid"]), "the deployment to end")
    assert not (folder / "run" / "state.json").exists()
    assert list((folder / "run" / "workers").iterdir()) == []
    events = [entry.event for entry in read_log(record.read_bytes().splitlines())[1]]
    assert [event.state for event in events if isinstance(event, ChangeProgressed)][:3] == [
        "starting",
        "switched",
        "done",
    ]
    assert next(len(event.workers) for event in events if isinstance(event, TopologyChanged)) == 2
    replayed = invoke("replay", record)
    assert replayed.exit_code == 0, replayed.output


def page(state: dict[str, Any], name: str) -> str:
    """A page of the metrics' port."""
    with urllib.request.urlopen(f"http://{state['metrics']}/{name}", timeout=60) as answer:
        return str(answer.read().decode())


def test_nothing_is_left_of_a_change_when_all_is_killed(up: Up, tmp_path: Path) -> None:
    folder = tmp_path / "deployment"
    write_deployment(
        folder,
        layout(0, batch=1, slo_ms=400, batch_ms=150),
        policy=SYMPHONY,
        controller={**ADVISED, "options": {"layout": "every.json"}},
    )
    write_document(folder / "every.json", layout(0, 1, batch=1, slo_ms=400, batch_ms=150))
    state = up(folder)
    (folder / "signs" / "hold").touch()
    load = Load(state["grpc"])
    eventually(lambda: set(workers(folder)) == {"gpu0", "gpu1"}, "a shadow to start")
    started = workers(folder)
    assert all(map(is_there, started.values()))
    os.kill(state["pid"], signal.SIGKILL)
    load.end()
    eventually(lambda: not any(map(is_there, started.values())), "the Tritons to end")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"policy": "unknown"}, "policy.name: no policy named 'unknown' is installed"),
        ({"controller": {"name": "unknown"}}, "controller: no controller named 'unknown' is installed"),
        (
            {"controller": {"name": "advised-workers", "options": {"layout": "gone.json"}}},
            "controller: options of controller 'advised-workers': layout: ",
        ),
    ],
)
def test_unknown_names_are_said_before_anything_starts(tmp_path: Path, section: dict[str, Any], says: str) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0), **section)
    result = invoke("up", folder, "--foreground")
    assert result.exit_code == 1
    assert f"{folder / PROXY_FILE}:" in result.output
    assert says in " ".join(result.output.split())
    assert not (folder / "run").exists()
