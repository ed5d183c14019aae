"""Everything at once, as a seeded generator has it: every request ends once, and nothing is left."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.fake_answers import echo, too_few_rows
from tidegate_proxy.scheduling.driver import Driver

Make = Callable[..., Any]
OK, UNAVAILABLE, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


class Chaos:
    """Answers well, late, with an error, with noise or not at all, as a seeded generator has it."""

    def __init__(self, seed: int) -> None:
        self._generator = Random(seed)
        self._lock = threading.Lock()
        self.over = threading.Event()

    def __call__(self, request: Any, context: Any) -> bytes:
        with self._lock:
            luck = self._generator.random()
        if luck < 0.7 or self.over.is_set():
            return echo(request)
        if luck < 0.8:
            self.over.wait(0.02)
            return echo(request)
        if luck < 0.9:
            context.abort(self._generator.choice(list(grpc.StatusCode)[1:]), "bad luck")
        if luck < 0.98:
            return too_few_rows(request, context)
        self.over.wait(120)
        return echo(request)


class Callers:
    """Clients of every sort, in threads: some wait, some are in a hurry, some leave."""

    def __init__(self, proxy: Any, start_call: Make, open_stream: Make) -> None:
        self._proxy = proxy
        self._start_call = start_call
        self._open_stream = open_stream

    def __call__(self, seed: int) -> None:
        generator = Random(seed)
        for _ in range(30):
            rows = np.ones((generator.randint(1, 3), 3), np.float32)
            request = request_of("echo", {"X": rows}, id="mine")
            if generator.random() < 0.3:
                request.parameters["timeout"].int64_param = generator.randint(1, 50_000)
            if generator.random() < 0.5:
                self._ask(generator, request)
            else:
                self._stream(generator, request)

    def _ask(self, generator: Random, request: Any) -> None:
        call = self._start_call(self._proxy, "ModelInfer", request, timeout=generator.choice([0.01, 20]))
        if generator.random() < 0.2:
            call.cancel()
            return
        assert call.exception() is None or call.code() is not OK

    def _stream(self, generator: Random, request: Any) -> None:
        count, leaves = generator.randint(1, 8), generator.random() < 0.4
        metadata = [("triton_grpc_error", generator.choice(["true", "false"]))]
        stream = self._open_stream(self._proxy, [request] * count, metadata=metadata)
        if leaves:
            stream.cancel()
            return
        received = 0
        try:
            for _ in stream:
                received += 1
        except grpc.RpcError:
            assert dict(metadata)["triton_grpc_error"] == "true"
        else:
            assert received == count


def _come_and_go(fakes: list[Any], stop: threading.Event) -> None:
    """Fakes that do not answer probes for a while, one after the other."""
    generator = Random(1)
    live = fakes[0].answers["ServerLive"]
    while not stop.wait(0.2):
        fake = generator.choice(fakes)
        fake.answers.pop("ServerLive", None)
        stop.wait(0.1)
        fake.answers["ServerLive"] = live


@pytest.mark.parametrize("policy_name", ["fifs", "symphony"])
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(
    policy_name: str,
    start_fake: Make,
    serve_here: Make,
    open_stream: Make,
    start_call: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.EVERY_S", 0.02)
    drivers: list[Driver] = []

    class Seen(Driver):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            drivers.append(self)

    monkeypatch.setattr("tidegate_proxy.app.serve.Driver", Seen)
    chaos = [Chaos(seed) for seed in range(3)]
    fakes = [start_fake(each) for each in chaos]
    proxy = serve_here(fakes, policy=policy_name, limits={"max_queue_size": 60, "execution_timeout_s": 0.1})
    callers = Callers(proxy, start_call, open_stream)
    stop = threading.Event()
    with ThreadPoolExecutor(9) as pool:
        coming = pool.submit(_come_and_go, fakes, stop)
        try:
            list(pool.map(callers, range(8), timeout=120))
        finally:
            stop.set()
        coming.result(120)
    for each in chaos:
        each.over.set()
    (driver,) = drivers
    tally = proxy.engine.tally
    eventually(lambda: tally.ended == tally.accepted and proxy.engine.in_flight == 0, "every request to have ended")
    eventually(lambda: not driver.waiting and not driver.running, "the driver to forget them")
    assert (proxy.engine.queued, driver.clients.held_bytes) == (0, 0)
    assert tally.answered > 0
