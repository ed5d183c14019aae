"""Changes of the layout, live: real Tritons come and go under load, and no request is lost."""

import os
import signal
from collections.abc import Callable

from tests.conftest import wait_until
from tests.proxy.actuation.conftest import Live, Load
from tests.proxy.actuation.deployment import Told, layout

Start = Callable[..., Live]
StartLoad = Callable[[Live], Load]


def test_a_worker_moves_and_no_request_is_lost(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1))
    load = start_load(live)
    Told.wants = layout(1, 2, batch=4)
    live.wait_for("done")
    load.goes_on()
    assert live.serving == ["gpu1", "gpu2"]
    wait_until(lambda: live.running == ["gpu1", "gpu2"], "the old process to end")
    Told.wants = layout(3, 4, batch=2)
    live.wait_for("done", 2)
    load.goes_on()
    assert live.serving == ["gpu3", "gpu4"]
    assert load.end() == []


def test_a_shadow_that_is_never_ready_is_undone(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1), start_limit_s=5)
    load = start_load(live)
    live.sign("loading").unlink()
    live.sign("hold").touch()
    Told.wants = layout(1, 2)
    wait_until(live.sign("loading").exists, "the shadow to load")
    assert "gpu2" in live.running
    live.wait_for("undone")
    load.goes_on()
    assert live.serving == ["gpu0", "gpu1"]
    wait_until(lambda: live.running == ["gpu0", "gpu1"], "the shadow to end")
    assert load.end() == []


def test_a_shadow_that_dies_while_it_loads_is_undone(start_live: Start) -> None:
    live = start_live(layout(0), pause_s=100)
    live.sign("hold").touch()
    Told.wants = layout(1)
    wait_until(lambda: "gpu1" in live.running, "the shadow")
    os.kill(live.pid("gpu1"), signal.SIGKILL)
    live.wait_for("undone")
    assert (live.serving, live.actuator.loop.change) == (["gpu0"], None)


def test_the_old_process_is_killed_meanwhile(start_live: Start, start_load: StartLoad) -> None:
    live = start_live(layout(0, 1))
    load = start_load(live)
    live.sign("hold").touch()
    Told.wants = layout(1, 2)
    wait_until(lambda: "gpu2" in live.running, "the shadow")
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
    Told.wants = layout(1)
    wait_until(lambda: "gpu1" in live.running, "the shadow")
    config = live.proxy.serving.config
    assert config.controller is not None
    off = config.model_copy(update={"controller": config.controller.model_copy(update={"enabled": False})})
    live.proxy.run(live.proxy.serving.reconfigure(off))
    live.wait_for("undone")
    wait_until(lambda: live.running == ["gpu0"], "the shadow to end")
    asked = Told.asked
    load.goes_on()
    assert (Told.asked, live.serving) == (asked, ["gpu0"])
    live.sign("hold").unlink()
    live.proxy.run(live.proxy.serving.reconfigure(config))
    live.wait_for("done")
    assert live.serving == ["gpu1"]
    assert load.end() == []
