"""Changes of the layout, live: real Tritons come and go under load, and no request is lost."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, eventually
from tests.proxy.app.actuation.deployment import layout
from tests.proxy.app.actuation.live import Live, Load
from tests.proxy.app.actuation.split import of_blocks, write_blocks
from tidegate.schemas import write_document
from tidegate_proxy.deployed import tritons
from tidegate_proxy.deployed.folder import DeploymentError, WorkerNotStarted
from tidegate_repo_generator.deploying.deploy import deploy

Start = Callable[..., Live]
StartLoad = Callable[[Live], Load]


def told(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(variable.split("=", 1) for variable in variables if variable)


def test_a_worker_moves_and_no_request_is_lost(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1))
    load = start_load(live)
    live.wants(layout(1, 2, batch=4))
    live.wait_for("done")
    load.goes_on()
    assert live.serving == ["gpu1", "gpu2"]
    eventually(lambda: live.running == ["gpu1", "gpu2"], "the old process to end")
    live.wants(layout(3, 4, batch=2))
    live.wait_for("done", 2)
    load.goes_on()
    assert live.serving == ["gpu3", "gpu4"]
    assert load.end() == []


@pytest.mark.slow
def test_first_workers_and_new_ones_are_told_of_their_shares(
    start_live: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tritons, "_DRIVER", tmp_path / "nvidiactl")  # which there is not
    live = start_live(layout(0, percent=40))
    first = told(live.pid("gpu0"))
    live.wants(
        layout(0, percent=60).model_copy(
            update={"workers": (layout(0, percent=60).workers[0].model_copy(update={"name": "gpu0-60"}),)}
        )
    )
    live.wait_for("done")
    second = told(live.pid("gpu0-60"))
    assert [each["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for each in (first, second)] == ["40", "60"]
    assert [Path(each["CUDA_MPS_PIPE_DIRECTORY"]).name for each in (first, second)] == ["gpu-0"] * 2


def test_a_deployment_whose_shares_have_no_daemon_does_not_start(
    start_live: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(tritons, "_DRIVER", tmp_path / "nvidiactl")
    monkeypatch.setattr(tritons, "which", lambda name: None)
    with pytest.raises(DeploymentError, match=r"worker 'gpu1' has a share of GPU 1, and no MPS daemon answers at"):
        start_live(layout(1, 2, percent=40))


def test_a_shadow_that_is_never_ready_is_undone(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1), startup_timeout_s=2)
    load = start_load(live)
    live.sign("hold").touch()
    live.wants(layout(1, 2))
    eventually(lambda: "gpu2" in live.running, "the shadow")
    live.wants(None)
    live.wait_for("undone")
    assert reasons(live)[0] == "not up within 2 s: gpu2"
    load.goes_on()
    assert live.serving == ["gpu0", "gpu1"]
    eventually(lambda: live.running == ["gpu0", "gpu1"], "the shadow to end")
    assert load.end() == []


@pytest.mark.slow
def test_a_shadow_that_dies_while_it_loads_is_undone(start_live: Start) -> None:
    live = start_live(layout(0), cooldown_s=100)
    live.sign("hold").touch()
    live.wants(layout(1))
    eventually(lambda: "gpu1" in live.running, "the shadow")
    os.kill(live.pid("gpu1"), signal.SIGKILL)
    live.wait_for("undone")
    assert (live.serving, live.actuator.loop.change) == (["gpu0"], None)


def test_the_old_process_is_killed_meanwhile(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1))
    load = start_load(live)
    live.sign("hold").touch()
    live.wants(layout(1, 2))
    eventually(lambda: "gpu2" in live.running, "the shadow")
    os.kill(live.pid("gpu0"), signal.SIGKILL)
    load.goes_on()
    live.sign("hold").unlink()
    live.wait_for("done")
    load.goes_on()
    assert live.serving == ["gpu1", "gpu2"]
    assert load.end() == []


def test_control_is_halted_at_once(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0))
    load = start_load(live)
    live.sign("hold").touch()
    live.wants(layout(1))
    eventually(lambda: "gpu1" in live.running, "the shadow")
    config = live.proxy.serving.config
    assert config.controller is not None
    off = config.model_copy(update={"controller": config.controller.model_copy(update={"enabled": False})})
    live.proxy.run(live.proxy.serving.reconfigure(off))
    live.wait_for("undone")
    eventually(lambda: live.running == ["gpu0"], "the shadow to end")
    asked = live.asked
    load.goes_on()
    assert (live.asked, live.serving) == (asked, ["gpu0"])
    live.sign("hold").unlink()
    live.proxy.run(live.proxy.serving.reconfigure(config))
    live.wait_for("done")
    assert live.serving == ["gpu1"]
    assert load.end() == []


@pytest.mark.parametrize(
    ("sign", "answer_timeout_s", "reason"),
    [
        ("hangs", 1, "it did not answer within 1 s (answer_timeout_s), and its process was stopped"),
        ("ends", PATIENCE_S, "its process ended with status 7 before it answered"),
    ],
)
def test_a_controller_that_does_not_answer_costs_nothing(
    start_live: Start, sign: str, answer_timeout_s: float, reason: str
) -> None:
    live = start_live(layout(0), answer_timeout_s=answer_timeout_s)
    eventually((live.told / "asked").exists, "the controller")
    (live.told / sign).touch()
    live.wait_for("refused")
    assert reasons(live)[0] == reason
    (live.told / sign).unlink()
    live.wants(layout(1))
    live.wait_for("done")  # by another process
    assert live.serving == ["gpu1"]


@pytest.mark.slow
def test_what_does_not_run_is_not_warm(start_live: Start) -> None:
    live = start_live(layout(0), cooldown_s=100)
    live.sign("fails").touch()
    live.wants(layout(1))
    live.wait_for("undone")
    (why,) = reasons(live)
    assert "model 'm' at 127.0.0.1:" in why
    assert "does not run one row of zeros: " in why
    eventually(lambda: live.running == ["gpu0"], "the shadow to end")


@pytest.mark.slow
def test_a_shadow_that_runs_out_of_memory_says_so(start_live: Start) -> None:
    live = start_live(layout(0), cooldown_s=100)
    live.sign("broken").touch()
    live.wants(layout(1))
    live.wait_for("undone")
    (why,) = reasons(live)
    assert "worker 'gpu1' did not come up" in why
    assert "CUDA out of memory" in why


@pytest.mark.slow
def test_one_that_ends_once_it_was_warm_undoes_the_change(start_live: Start) -> None:
    live = start_live(layout(0), cooldown_s=100)
    live.sign("hold-gpu2").touch()
    live.wants(layout(1, 2))
    eventually(lambda: live.actuator.report()["workers"].get("gpu1") == "warm", "the one that is not held")
    os.kill(live.pid("gpu1"), signal.SIGKILL)
    live.wait_for("undone")
    assert reasons(live) == ["worker 'gpu1' did not come up: its Triton ended once it was warm"]
    eventually(lambda: live.running == ["gpu0"], "both shadows to end")
    assert live.serving == ["gpu0"]


@pytest.mark.slow
def test_a_plan_that_the_policy_refuses_is_undone(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0), cooldown_s=100)
    load = start_load(live)

    def refuse(models: object) -> None:
        raise ValueError("these are too many")

    live.proxy.in_loop(lambda: setattr(live.proxy.engine.policy, "check_models", refuse))
    live.wants(layout(1))
    live.wait_for("undone")
    assert reasons(live) == ["the switch was refused: these are too many"]
    load.goes_on()
    assert live.serving == ["gpu0"]
    assert load.end() == []


@pytest.mark.slow
def test_who_is_asked_to_stop_undoes_what_is_under_way(start_live: Start) -> None:
    live = start_live(layout(0))
    live.sign("hold").touch()
    live.wants(layout(1))
    eventually(lambda: "gpu1" in live.running, "the shadow")
    started = [worker.pid for worker in live.tritons.workers]
    live.proxy.stop()
    assert live.proxy.serving.driver.observability.metrics.counts.changes == {"starting": 1, "undone": 1}
    live.tritons.stop_all()
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_a_worker_that_is_started_again_while_its_former_process_ends_is_not_lost(start_live: Start) -> None:
    """A change that is undone and proposed again does that: the same name, another id."""
    live = start_live(layout(0))
    live.sign("hold-gpu1").touch()
    wanted = layout(1)
    (worker,) = wanted.workers
    with ThreadPoolExecutor() as pool:
        former = pool.submit(live.tritons.start, 7, worker, wanted, PATIENCE_S)
        eventually(lambda: "gpu1" in live.running, "the first to be launched")
        first = live.pid("gpu1")
        again = pool.submit(live.tritons.start, 8, worker, wanted, PATIENCE_S)
        pool.submit(live.tritons.stop, 7, "gpu1").result()
        live.sign("hold-gpu1").unlink()
        assert isinstance(former.exception(), WorkerNotStarted)
        again.result()
    assert live.running == ["gpu0", "gpu1"]
    second = live.pid("gpu1")
    assert second != first
    live.tritons.stop(8, "gpu1")
    assert live.running == ["gpu0"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, second))


def test_a_reload_leaves_the_layout_that_is_in_force(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0))
    load = start_load(live)
    before = live.proxy.serving.config
    live.wants(layout(1))
    live.wait_for("done")
    live.proxy.run(live.proxy.serving.reconfigure(before.model_copy(update={"startup_timeout_s": 7.0})))
    load.goes_on()
    assert (live.serving, live.proxy.serving.config.startup_timeout_s) == (["gpu1"], 7.0)
    assert load.end() == []


@pytest.mark.slow
def test_what_does_not_drain_on_time_is_tried_elsewhere(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0), drain_timeout_s=0.5)
    load = start_load(live)
    live.sign("stuck-gpu0").touch()
    live.wants(layout(1))
    live.wait_for("done")
    load.goes_on()
    assert live.serving == ["gpu1"]
    eventually(lambda: live.running == ["gpu1"], "the old process to end")
    assert load.end() == []


def test_a_model_is_cut_while_it_serves(start_live: Start, at_the_end: Callable[..., None], tmp_path: Path) -> None:
    write_document(tmp_path / "layout.json", of_blocks((0, 2)))
    deploy(tmp_path / "layout.json", tmp_path / "deployment", {"m": write_blocks(tmp_path)}, policy="fifs")
    live = start_live(tmp_path / "deployment", cooldown_s=100)
    load = Load(live.proxy.address, tensors=("x", "y"), width=4, expected=lambda asked: -asked)
    at_the_end(load.end)
    load.goes_on()
    live.wants(of_blocks((0, 1), (1, 2)))
    live.wait_for("done")
    load.goes_on()
    assert live.serving == ["of m.0-1", "of m.1-2"]
    assert load.end() == []


def reasons(live: Live) -> list[str]:
    """Why changes came to nothing."""
    return [each["reason"] for each in live.actuator.report()["events"] if each["reason"]]
