"""Between two stages of a batch nothing is left behind, however the batch ends."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate.api import (
    Batch,
    Commands,
    Dispatch,
    Model,
    Pipeline,
    Policy,
    PolicyOptions,
    Profile,
    RequestArrived,
    Setup,
    Stage,
    Worker,
)
from tidegate.engine import Engine
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.base.outcome import Outcome
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.messages.request import PendingRequest, ResponseDeadline, open_envelope
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog
from tidegate_proxy.tritons.shared_memory import SharedRegion, SharedRegions

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend

MS = 1_000_000
WIDTH = 40_000
HEAD = ModelSignature("a", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 1)
TAIL = ModelSignature("b", {"Y": TensorSpec("FP32", (-1,))}, frozenset({"Z"}), 1)
WHOLE = ModelSignature("m", HEAD.inputs, frozenset({"Z"}), 1)
MODEL = Model("m", 1, None, (Pipeline(("a", "b"), 1),))
WORKERS = (Worker(0, "w0", ("a",)), Worker(1, "w1", ("b",)), Worker(2, "w2", ("b",)))


class Piling(FirstComeFirstServed):
    """Books every request at once, its second stage on w1 behind all others."""

    best_effort = True

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        first_ns = self._next_ns = max(getattr(self, "_next_ns", 0), event.now_ns)
        self._next_ns += 2 * MS
        self._batches = getattr(self, "_batches", -1) + 1
        stages = (Stage(0, "a", first_ns, MS), Stage(1, "b", first_ns + MS, MS))
        return [Dispatch(Batch(self._batches, "m", (event.request.id,), stages))]


class Triton:
    """Of a Backend what stages need; its calls end when a test says so."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.alive = True
        self.channel = self
        self.turns = None
        self.calls: list[Callable[..., None]] = []

    def unary(self, _method: str, _message: bytes, then: Callable[..., None], _metadata: object) -> Any:
        self.calls.append(then)
        return self

    def push(self) -> None:
        """Of a channel."""

    def cancel(self) -> None:
        """Of a call."""

    def opened(self, metadata: Any) -> Any:
        """Of a Backend."""
        return metadata

    def cut_off(self) -> None:
        """Of a Backend."""

    def withdraw(self) -> None:
        """Of a Backend."""
        self.alive = False

    def take_back(self) -> None:
        """Of a Backend."""
        self.alive = True

    def answer(self, output: str, sent: bytes) -> None:
        """End its first call well."""
        message = service_pb2.ModelInferResponse(model_name="p", model_version="1")
        message.outputs.add(name=output, datatype="FP32", shape=[1, WIDTH])
        message.raw_output_contents.append(sent)
        self.calls.pop(0)(message.SerializeToString(), grpc.StatusCode.OK, "")


class Counted:
    """Regions that are always there, and how many of them are in use."""

    def __init__(self) -> None:
        self.in_use: list[SharedRegion] = []

    def take(self, size: int, _backends: object) -> SharedRegion:
        region = cast("SharedRegion", _Memory(size))
        self.in_use.append(region)
        return region

    def give_back(self, region: SharedRegion) -> None:
        self.in_use.remove(region)

    discard = give_back

    def leave(self, _backend: object) -> None:
        """A Triton is gone."""


class _Memory:
    def __init__(self, size: int) -> None:
        self.name, self.memory = "region", memoryview(bytearray(size))

    write = SharedRegion.write


class Waiting(PendingRequest):
    """One that waits."""

    def resolve(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Split:
    """A driver of one model in two parts: the first on one Triton, the second on two."""

    def __init__(self, policy: type[Policy] = FirstComeFirstServed) -> None:
        self.tritons = [Triton(f"triton-{worker.name}") for worker in WORKERS]
        backends = cast("list[Backend]", self.tritons)
        catalog = Catalog(
            models={"m": MODEL},
            signatures={"m": WHOLE},
            partitions={"a": HEAD, "b": TAIL},
            workers=list(WORKERS),
            backend_of=dict(enumerate(backends)),
            hosts={"m": backends},
        )
        setup = Setup((MODEL,), WORKERS, tuple(Profile(part, "default", (MS,)) for part in "ab"))
        engine = Engine(policy(setup, PolicyOptions()), name="fifs")
        self.regions = Counted()
        in_force, regions = SettingsHolder(CurrentSettings(stage_s=0.05)), cast("SharedRegions", self.regions)
        self.driver = Driver(engine, CurrentCatalog(catalog), in_force, Observability(setup, engine.reducer), regions)

    def send(self) -> PendingRequest:
        """One more request."""
        message = service_pb2.ModelInferRequest(model_name="m")
        message.inputs.add(name="X", datatype="FP32", shape=[1, WIDTH])
        message.raw_input_contents.append(np.ones(WIDTH, np.float32).tobytes())
        client = Waiting(open_envelope(message.SerializeToString(), WHOLE))
        now_ns = time.monotonic_ns()
        request = self.driver.admit(client, now_ns, ResponseDeadline(now_ns + 60_000_000_000, 0))
        assert request is not None
        self.driver.schedule(request)
        return client

    async def called(self, *numbers: int) -> Triton:
        """One of these Tritons, as soon as it is called."""
        async with asyncio.timeout(60):
            while True:
                for number in numbers:
                    if self.tritons[number].calls:
                        return self.tritons[number]
                await asyncio.sleep(0.001)

    def nothing_is_left(self) -> bool:
        """Whether no payload is kept, nor shared memory."""
        running = self.driver.running
        return not running._between and not running._running and not self.regions.in_use


async def _lost_while_the_first_stage_runs(split: Split) -> None:
    split.send()
    head = await split.called(0)
    for tail in split.tritons[1:]:
        split.driver.membership.give_up(cast("Backend", tail), "it is gone")
    head.answer("Y", bytes(4 * WIDTH))


async def _left_while_the_second_stage_runs(split: Split) -> None:
    client = split.send()
    (await split.called(0)).answer("Y", bytes(4 * WIDTH))
    tail = await split.called(1, 2)
    assert split.driver.leave(client)
    tail.answer("Z", bytes(4 * WIDTH))


async def _left_while_the_first_stage_runs(split: Split) -> None:
    client = split.send()
    head = await split.called(0)
    assert split.driver.leave(client)
    head.answer("Y", bytes(4 * WIDTH))
    async with asyncio.timeout(60):
        while split.driver.engine.in_flight:
            await asyncio.sleep(0.001)


async def _refused_by_the_second(split: Split) -> None:
    split.send()
    (await split.called(0)).answer("Y", bytes(4 * WIDTH))
    tail = await split.called(1, 2)
    tail.calls.pop(0)(None, grpc.StatusCode.INTERNAL, "it breaks")
    async with asyncio.timeout(60):
        while split.driver.engine.in_flight:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "happens",
    [
        _lost_while_the_first_stage_runs,
        _left_while_the_second_stage_runs,
        _left_while_the_first_stage_runs,
        _refused_by_the_second,
    ],
)
async def test_payloads_and_shared_memory_end_with_their_batch(
    happens: Callable[[Split], Coroutine[Any, Any, None]],
) -> None:
    split = Split()
    try:
        await happens(split)
        assert split.nothing_is_left()
    finally:
        await split.driver.close()


async def test_those_that_wait_for_a_worker_that_is_given_up_leave_nothing() -> None:
    split = Split(Piling)
    try:
        for _ in range(2):
            split.send()
            (await split.called(0)).answer("Y", bytes(4 * WIDTH))
        hung = await split.called(1)
        assert len(split.driver.running._between) == 1
        async with asyncio.timeout(60):
            while split.driver.running._between:
                split.driver.membership.give_up_overdue(cast("Backend", hung))
                await asyncio.sleep(0.001)
    finally:
        await split.driver.close()


async def test_what_is_learned_of_the_way_back_is_how_long_a_batch_takes_to_be_handed_over() -> None:
    """Not when its clients take their answers: only the event loop's own work lies in between."""
    split = Split()
    observed: list[int] = []
    split.driver._headroom.observe = observed.append  # type: ignore[assignment]
    try:
        client = split.send()
        (await split.called(0)).answer("Y", bytes(4 * WIDTH))
        assert not observed
        (await split.called(1, 2)).answer("Z", bytes(4 * WIDTH))
        assert isinstance(cast("Waiting", client).outcome, bytes)
        asyncio.get_running_loop().call_soon(observed.append, -1)
        while -1 not in observed:
            await asyncio.sleep(0)
        lag_ns, last = observed
        assert 0 <= lag_ns <= time.monotonic_ns() - client.ended_ns
        assert last == -1, "it was seen before anything else could happen"
    finally:
        await split.driver.close()
