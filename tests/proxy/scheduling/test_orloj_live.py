"""Before a model whose time depends on its input: applications are learned, by Orloj and by others."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.fake_answers import echo
from tidegate.host import Plugins
from tidegate.observation import read_log
from tidegate.sim.replay import replay

Make = Callable[..., Any]
APPS_MS = {"quick": 2.0, "slow": 20.0}
FEW, MANY = 12, 80
"""The engine tells of a distribution for the first time when eight requests have run alone, and again after 64."""
AT_ONCE = 120
"""What is sent at once runs in batches of up to four: more than the sixteen that tell what requests share."""


class Dynamic:
    """Takes as many milliseconds for each row as the largest number says; at a zero it waits until it is let go on."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        """What each batch held, from the first zero on."""
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, request: Any, _context: Any) -> bytes:
        numbers = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(request.inputs[0].shape))[:, 0]
        if not numbers.any():
            self.entered.set()
            assert self.go_on.wait(120)
        elif self.entered.is_set():
            self.batches.append(numbers.tolist())
        time.sleep(len(numbers) * float(numbers.max()) / 1000)
        return echo(request)


BY_APPLICATION = {
    "name": "by-model",
    "options": {"parts": [{"models": ["*"], "policy": "clockwork", "separate_applications": True}]},
}


@pytest.mark.parametrize("policy", ["orloj", BY_APPLICATION], ids=["orloj", "clockwork by application"])
def test_applications_are_learned(
    policy: str | dict[str, Any], start_fake: Make, serve_here: Make, call: Make, start_call: Make, tmp_path: Path
) -> None:
    model, log = Dynamic(), tmp_path / "log"
    proxy = serve_here(
        [start_fake(model)],
        policy=policy,
        app={"parameter": "app"},
        models={"echo": {"slo_ms": 100_000}},
        event_log=log,
    )

    def asked(app: str, number_ms: float | None = None) -> Any:
        message = request_of(
            "echo", {"X": np.full((1, 3), APPS_MS[app] if number_ms is None else number_ms, np.float32)}
        )
        message.parameters["app"].string_param = app
        return message

    def ask_alone(times: int) -> None:
        for app in sorted(APPS_MS) * times:
            assert call(proxy, "ModelInfer", asked(app))[0] is grpc.StatusCode.OK

    ask_alone(FEW)
    crowd = [start_call(proxy, "ModelInfer", asked(app)) for app in sorted(APPS_MS) * (AT_ONCE // 2)]
    assert all(outcome(each)[0] is grpc.StatusCode.OK for each in crowd)
    ask_alone(MANY)
    first = start_call(proxy, "ModelInfer", asked("quick", 0))
    assert model.entered.wait(120)
    before = proxy.engine.tally.accepted
    calls = [start_call(proxy, "ModelInfer", asked(app)) for app in ("slow", "quick") * 2]
    eventually(lambda: proxy.engine.tally.accepted == before + len(calls), "them to come, of which one may be sent")
    model.go_on.set()
    assert all(outcome(each)[0] is grpc.StatusCode.OK for each in (first, *calls))
    ran_ms = [number for batch in model.batches for number in batch]
    assert sorted(ran_ms) == [APPS_MS["quick"]] * 2 + [APPS_MS["slow"]] * 2
    if policy == "orloj":
        told_ms = {app: times.mean_ns / 1e6 for (_, _, app), times in proxy.engine.policy._times.items()}
    else:
        profiles = {shape: profile for (_, _, shape), profile in proxy.engine.expectations.profiles.items() if shape}
        (quick,) = (profile for shape, profile in profiles.items() if not shape.endswith("x as long"))
        *_, slow = (profile for shape, profile in profiles.items() if shape.endswith("x as long"))  # classes may change
        told_ms = {"quick": quick.expected_ns(1) / 1e6, "slow": slow.expected_ns(1) / 1e6}
    # Never faster than they can be. How much slower, and so whether they may share batches, is a matter of how busy the
    # machine is: that they then run apart, test_time_classes and the tests of Orloj show.
    assert told_ms["quick"] > APPS_MS["quick"] * 0.5
    assert told_ms["slow"] > APPS_MS["slow"] * 0.8
    proxy.stop()
    with log.open("rb") as lines:
        header, read = read_log(lines)
        fresh = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        assert replay(header, read, fresh).difference is None
