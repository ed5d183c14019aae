"""One scenario live, on the real tritonserver, and simulated."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.conftest import eventually
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, read_scenario
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated import emulated_cluster
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import plan_runs, run_live

pytestmark = pytest.mark.usefixtures("start_triton")  # skips where there is no tritonserver

DOCUMENT = """
warmup_s: 0.5
duration_s: {duration_s}
workers: [{{count: 2}}]
models:
  - {{name: slow, slo_ms: 400, profile: {{alpha_ms: 10, beta_ms: 40, max_batch: 8}}}}
  - {{name: slower, slo_ms: 600, weight: 0.5, rows: {{distribution: table, values: [1, 2]}},
     profile: {{points_ms: {{1: 60, 4: 110}}, max_batch: 4}}}}
arrivals: {{rate_rps: 24}}
policies: [{{name: symphony}}, {{name: triton, options: {{max_queue_delay_ms: 20}}}}]
"""


def scenario(tmp_path: Path, duration_s: float) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(DOCUMENT.format(duration_s=duration_s))
    return path


@pytest.fixture
def document(tmp_path: Path) -> Scenario:
    return read_scenario(scenario(tmp_path, 3))


@pytest.mark.parametrize("policy", ["symphony", pytest.param("triton", marks=pytest.mark.slow)])
def test_simulated_is_live(document: Scenario, policy: str) -> None:
    (run,) = plan_runs(document, [policy], [5], SendingOptions({}), gantt_s=1)
    live = run_live(run).result
    simulated = simulate(RunSpec(document, run.policy, 5, gantt_s=1))
    assert [list(asdict(row)) for row in live.rows] == [list(asdict(row)) for row in simulated.rows]
    for row, other in zip(live.rows, simulated.rows, strict=True):
        assert (row.policy, row.seed, row.model) == (other.policy, other.seed, other.model)
        assert (row.accepted, row.offered_rps) == (other.accepted, other.offered_rps)
        assert row.answered + sum(row.dropped.values()) + row.failed + row.stranded == row.accepted
        assert row.failed == row.stranded == 0
        assert other.attainment > 0.95
        assert row.mean_batch_rows is not None
        assert other.mean_batch_rows is not None
        assert row.busy_share > 0
    if policy == "symphony":  # the event log knows the workers
        assert live.total.busy_shares.keys() == simulated.total.busy_shares.keys()
        assert live.gantt


GRAPHS = """
warmup_s: 1
duration_s: 2
workers: [{count: 2}]
models:
  - {name: find, weight: 0, profile: {alpha_ms: 4, beta_ms: 20, max_batch: 8}}
  - {name: read, slo_ms: 60000, profile: {alpha_ms: 6, beta_ms: 10, max_batch: 8}}
graphs:
  - name: pages
    slo_ms: 60000
    stages:
      - {model: find}
      - {model: read}
      - {model: read, name: read_again, after: [find]}
      - {model: find, name: check, after: [read, read_again]}
arrivals: {rate_rps: 30}
tenants: [{name: shop, weight: 2}, {name: limited, load: 0.5, requests_per_s: 1}]
policies: [{name: symphony}]
"""


def test_graphs_and_tenants_run_live_as_simulated(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(GRAPHS)
    document = read_scenario(path)
    (run,) = plan_runs(document, [], [5], SendingOptions({}))
    live, simulated = run_live(run).result, simulate(RunSpec(document, run.policy, 5))
    for row, other in zip(live.rows, simulated.rows, strict=True):
        assert (row.model, row.accepted) == (other.model, other.accepted)
        assert row.answered + sum(row.dropped.values()) == row.accepted
    batches = {row.model: row.batches for row in live.rows}
    assert batches["pages"] == 0
    assert batches["find"] > 0, "Tidegate expands the ensemble: only its stages ask for this model"
    shop, limited = live.tenants
    assert (shop.requests, limited.requests) == tuple(each.requests for each in simulated.tenants)
    assert (shop.rate_limited, shop.attainment) == (0, 1)
    assert 0 < limited.rate_limited < limited.requests
    assert shop.worker_s is not None
    assert limited.worker_s is not None
    assert shop.worker_s > limited.worker_s > 0


def children_of(pid: int) -> set[int]:
    """The processes below one."""
    try:
        own = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()
    return own.union(*(children_of(child) for child in own))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_whoever_interrupts_it_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "loadtest", str(scenario(tmp_path, 60))]
    with subprocess.Popen(
        [*command, "--policy", "symphony"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        try:
            eventually(lambda: list(tmp_path.glob("tidegate-loadtest-*/events.jsonl")), "Tidegate to be started")
            started = children_of(process.pid)
            assert len(started) > 4  # two commands, their tritonserver, its models
            process.send_signal(number)
            assert process.wait(120) != 0
        finally:
            process.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "what it started to end")
    assert not list(tmp_path.glob("tidegate-*"))


@pytest.mark.slow
def test_a_cluster_that_does_not_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    document = Scenario.model_validate(
        {
            "duration_s": 1,
            "workers": [{"count": 1}],
            "models": [{"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8}}],
            "arrivals": {"rate_rps": 1},
        }
    )
    with (
        pytest.raises(LoadTestError, match=r"`tidegate serve` did not start: .*no policy named 'absent'"),
        emulated_cluster(document, PolicyChoice(name="absent"), 0, tmp_path),
    ):
        pass
    assert not any(str(tmp_path).encode() in command_of(pid) for pid in children_of(os.getpid()))
