"""Orloj in front of a model whose time depends on its input: applications are learned, and run apart."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.proxy.fixtures.fake_answers import echo
from tidegate.host import Plugins
from tidegate.observation import read_log
from tidegate.sim.replay import replay

Make = Callable[..., Any]
QUICK_MS, SLOW_MS = 2.0, 40.0
LESSONS = 12
"""The engine tells of a distribution for the first time when eight requests have run alone."""


class Dynamic:
    """Takes as many milliseconds as the largest number in a batch says; at a zero it waits until it is let go on."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        """What each batch held, from the first zero on."""
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, request: Any, _context: Any) -> bytes:  # noqa: ANN401 - a protobuf message
        numbers = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(request.inputs[0].shape))[:, 0]
        if not numbers.any():
            self.entered.set()
            assert self.go_on.wait(120)
        elif self.entered.is_set():
            self.batches.append(numbers.tolist())
        time.sleep(float(numbers.max()) / 1000)
        return echo(request)


def test_applications_are_learned_and_run_apart(
    start_fake: Make,
    serve_here: Make,
    call: Make,
    start_call: Make,
    outcome: Make,
    request_of: Make,
    eventually: Make,
    tmp_path: Path,
) -> None:
    model, log = Dynamic(), tmp_path / "log"
    proxy = serve_here(
        [start_fake(model)],
        policy="orloj",
        app={"parameter": "app"},
        models={"echo": {"slo_ms": 100_000}},
        record=log,
    )

    def asked(app: str, number_ms: float) -> Any:  # noqa: ANN401
        message = request_of("echo", {"X": np.full((1, 3), number_ms, np.float32)})
        message.parameters["app"].string_param = app
        return message

    for app, number_ms in (("quick", QUICK_MS), ("slow", SLOW_MS)):
        for _ in range(LESSONS):
            assert call(proxy, "ModelInfer", asked(app, number_ms))[0] is grpc.StatusCode.OK
    first = start_call(proxy, "ModelInfer", asked("quick", 0))
    assert model.entered.wait(120)
    mixed = [("slow", SLOW_MS), ("quick", QUICK_MS), ("slow", SLOW_MS), ("quick", QUICK_MS)]
    calls = [start_call(proxy, "ModelInfer", asked(*each)) for each in mixed]
    eventually(lambda: proxy.engine.queued == len(calls), "them to queue")
    model.go_on.set()
    assert all(outcome(each)[0] is grpc.StatusCode.OK for each in (first, *calls))
    assert [number for batch in model.batches for number in batch] == [QUICK_MS] * 2 + [SLOW_MS] * 2
    assert all(len(set(batch)) == 1 for batch in model.batches), "none is padded to a slower one"
    policy = proxy.engine.policy
    told_ms = {app: times.mean_ns / 1e6 for (_, _, app), times in policy._times.items()}
    assert QUICK_MS <= told_ms["quick"] < SLOW_MS <= told_ms["slow"]
    proxy.stop()
    with log.open("rb") as lines:
        header, read = read_log(lines)
        fresh = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        assert replay(header, read, fresh).difference is None
