"""Large JSON holds nobody up: it is read and written in another process, and says the same."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec, split_elements
from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http import infer_request, infer_response
from tidegate_proxy.servers.http.infer_request import ResponseForm
from tidegate_proxy.servers.http.json_data import RefusedRequest
from tidegate_proxy.servers.http.json_worker_pool import FROM_BYTES, JsonWorkerPool
from tidegate_proxy.service.passthrough import NO_SEQUENCE, SequencePosition
from tidegate_proxy.tritons.embedded import EmbeddedTriton

SIGNATURE = ModelSignature("m", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 8)
NESTED = b'{"id":"a:b","inputs":[{"name":"X","datatype":"FP32","shape":[1,%d],"data":[%b]}]}'
TEXT = ResponseForm(binary=False, named={})


@pytest.fixture
def aside() -> Iterator[JsonWorkerPool]:
    """One whose processes end with the test."""
    made = JsonWorkerPool()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_aside() -> Iterator[JsonWorkerPool]:
    """One whose processes several tests share: each takes seconds of a core to start."""
    made = JsonWorkerPool()
    yield made
    made.close()


def _request(elements: int) -> bytes:
    return NESTED % (elements, b",".join([b"[[1]]"] * elements))


def test_it_says_the_same_and_holds_no_request_up(shared_aside: JsonWorkerPool) -> None:
    body = _request(1 << 16)
    expected = infer_request.translate(SIGNATURE, "", body, len(body))

    async def ask() -> tuple[Any, int]:
        rounds = 0
        work = asyncio.create_task(shared_aside.translate(SIGNATURE, "", body, len(body)))
        while not work.done():
            await asyncio.sleep(0.005)
            rounds += 1
        return work.result(), rounds

    result, rounds = asyncio.run(ask())
    assert result == expected
    assert rounds > 1, "the loop goes on meanwhile"


def _answer(datatype: str, tensor: np.ndarray[Any, Any]) -> bytes:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    answer.outputs.add(name="Y", datatype=datatype, shape=[1, tensor.size])
    answer.raw_output_contents.append(tensor.tobytes())
    return bytes(answer.SerializeToString())


def test_answers_are_written_so_too(shared_aside: JsonWorkerPool) -> None:
    message = _answer("FP32", np.arange(FROM_BYTES, dtype=np.float32))

    async def ask() -> infer_response.ResponseBody:
        shared_aside._is_up()
        await asyncio.gather(*shared_aside._starting)
        return await shared_aside.render(message, TEXT)

    body = asyncio.run(ask())
    assert body == infer_response.render(message, TEXT)
    assert json.loads(bytes(body.pieces[0]))["outputs"][0]["data"][-1] == FROM_BYTES - 1


@pytest.mark.parametrize(("datatype", "kind"), [("FP32", "<f4"), ("INT64", "<i8")])
def test_an_answer_waits_for_no_process_to_start(
    aside: JsonWorkerPool, monkeypatch: pytest.MonkeyPatch, datatype: str, kind: str
) -> None:
    monkeypatch.setattr(JsonWorkerPool, "_start", lambda _: asyncio.Event().wait())
    message = _answer(datatype, np.arange(FROM_BYTES).astype(kind))

    async def ask() -> tuple[list[infer_response.ResponseBody], int]:
        rounds = 0
        works = [asyncio.create_task(aside.render(message, TEXT)) for _ in range(2)]
        while not all(work.done() for work in works):
            await asyncio.sleep(0.001)
            rounds += 1
        return [work.result() for work in works], rounds

    bodies, rounds = asyncio.run(ask())
    assert [json.loads(bytes(body.pieces[0]))["outputs"][0]["data"] for body in bodies] == [list(range(FROM_BYTES))] * 2
    assert rounds > 1, "the loop goes on meanwhile"


def test_an_answer_waits_for_no_other_in_the_thread_once_a_process_is_up(
    aside: JsonWorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = _answer("FP32", np.arange(FROM_BYTES, dtype=np.float32))
    expected = infer_response.render(message, TEXT)
    is_done = threading.Event()
    monkeypatch.setattr(infer_response, "render", lambda *_: is_done.wait() and expected)

    async def ask() -> None:
        first = asyncio.create_task(aside.render(message, TEXT))
        await asyncio.sleep(0)  # it begins
        try:
            assert await aside.render(message, TEXT) == expected
            assert not first.done()
        finally:
            is_done.set()  # the loop waits for the thread at its end
        assert await first == expected

    asyncio.run(ask())


def test_what_is_passed_on_is_looked_into_so_too(aside: JsonWorkerPool) -> None:
    body = b'{"parameters":{"sequence_id":7},' + _request(FROM_BYTES)[1:]
    small = body.replace(b",[[1]]", b"")
    for text, pools in ((small, 0), (body, 1)):
        sequence, header = asyncio.run(aside.outline(text))
        assert sequence == SequencePosition("7")
        assert header == infer_request.outline(text, len(text))
        assert header is not None
        assert header.inputs[0].name == "X"
        assert sum(process.pool is not None for process in aside._processes) == pools
    assert asyncio.run(aside.outline(b"[" * FROM_BYTES)) == (NO_SEQUENCE, None)


@pytest.mark.parametrize(
    ("body", "raised"),
    [
        (b'{"inputs":' + b" " * FROM_BYTES + b"oops}", NotSchedulable),
        (b"[" * FROM_BYTES, RefusedRequest),
    ],
    ids=["no JSON", "too deep"],
)
def test_so_are_errors(shared_aside: JsonWorkerPool, body: bytes, raised: type[Exception]) -> None:
    with pytest.raises(raised) as expected:
        infer_request.translate(SIGNATURE, "", body, len(body))
    with pytest.raises(raised) as told:
        asyncio.run(shared_aside.translate(SIGNATURE, "", body, len(body)))
    assert str(told.value) == str(expected.value)
    assert getattr(told.value, "status", None) == getattr(expected.value, "status", None)


def test_small_ones_need_no_process(aside: JsonWorkerPool) -> None:
    body = _request(10)
    asyncio.run(aside.translate(SIGNATURE, "", body, len(body)))
    assert all(process.pool is None for process in aside._processes)


@pytest.mark.parametrize("what", ["translate", "render", "outline"])
async def test_of_a_crowd_the_event_loop_parses_or_writes_one_an_iteration(aside: JsonWorkerPool, what: str) -> None:
    loop = asyncio.get_running_loop()
    body, answer = _request(4000), _answer("FP32", np.zeros(10_000, np.float32))
    iteration = 0
    worked_at: list[int] = []

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    async def ask(owner: str) -> int:
        if what == "translate":
            await aside.translate(SIGNATURE, "", body, len(body), owner)
        elif what == "render":
            await aside.render(answer, TEXT, owner)
        else:
            await aside.outline(body, owner)
        worked_at.append(iteration)
        return len(worked_at)

    loop.call_soon(count)
    crowd = [asyncio.create_task(ask("crowd")) for _ in range(20)]
    await asyncio.sleep(0)
    place = await ask("neighbor")
    await asyncio.gather(*crowd)
    assert len(set(worked_at)) == len(worked_at) == 21
    assert max(worked_at) - min(worked_at) <= 22, "none of the iterations is left out"
    assert place <= 3, "the neighbor's turn comes before those of the crowd that wait"


async def test_a_large_one_that_a_triton_can_parse_waits_for_no_process_to_start(aside: JsonWorkerPool) -> None:
    body = _request(1 << 16)
    for _ in range(2):
        with pytest.raises(NotSchedulable, match="are being started"):
            await aside.translate(SIGNATURE, "", body, len(body), may_bypass=True)
    expected = await aside.translate(SIGNATURE, "", body, len(body))
    assert await aside.translate(SIGNATURE, "", body, len(body), may_bypass=True) == expected
    await asyncio.gather(*aside._starting)
    crowd = (aside._run("a", 1, os._exit, 1) for _ in aside._processes)
    assert all(isinstance(each, BrokenProcessPool) for each in await asyncio.gather(*crowd, return_exceptions=True))
    with pytest.raises(NotSchedulable, match="are being started"):
        await aside.translate(SIGNATURE, "", body, len(body), may_bypass=True)
    await asyncio.gather(*aside._starting)


def test_a_triton_answers_a_large_one_while_no_process_is_up(
    triton: EmbeddedTriton, serve_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_self: JsonWorkerPool) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(JsonWorkerPool, "_start", hang)
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    proxy = serve_here([], tritons=tritons, listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"})
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 100_000], "data": [0.25] * 100_000}
    for large, accepted in ((True, 0), (False, 1)):
        sent = {**tensor, **({} if large else {"shape": [1, 1], "data": [0.25]})}
        request = Request(
            f"http://{proxy.serving.http_address}/v2/models/echo/infer", json.dumps({"inputs": [sent]}).encode()
        )
        with urlopen(request, timeout=60) as answer:
            assert json.load(answer)["outputs"][0]["data"] == sent["data"]
        assert proxy.engine.tally.accepted == accepted


def test_a_small_one_waits_for_few_large_ones(shared_aside: JsonWorkerPool) -> None:
    large, small = _request(1 << 17), _request(FROM_BYTES // 4)

    async def ask() -> int:
        crowd = [
            asyncio.create_task(shared_aside.translate(SIGNATURE, "", large, len(large), f"crowd {number % 4}"))
            for number in range(12)
        ]
        await asyncio.sleep(0)
        await shared_aside.translate(SIGNATURE, "", small, len(small), "neighbor")
        before = sum(work.done() for work in crowd)
        for work in crowd:
            work.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        return before

    assert asyncio.run(ask()) <= 6, "the two that run, one of each of the others, and what ends meanwhile"


async def test_what_ends_a_process_ends_no_other_work(aside: JsonWorkerPool) -> None:
    body = _request(1 << 16)
    expected = await aside.translate(SIGNATURE, "", body, len(body))
    with pytest.raises(BrokenProcessPool):
        await aside._run("a", 1, os._exit, 1)
    crowd = (aside.translate(SIGNATURE, "", body, len(body)) for _ in range(4))
    killer, *others = await asyncio.gather(aside._run("a", 1, os._exit, 1), *crowd, return_exceptions=True)
    assert isinstance(killer, BrokenProcessPool)
    assert others == [expected] * 4


ENDS_EARLY = """
import asyncio, os
from tidegate_proxy.servers.http.json_worker_pool import JsonWorkerPool

async def start():
    pool = JsonWorkerPool()
    pool._is_up()
    while not all(process.pool for process in pool._processes):
        await asyncio.sleep(0)
    print(*(number for process in pool._processes for number in process.pool._processes), flush=True)
    os._exit(0)

asyncio.run(start())
"""


@pytest.mark.slow
def test_processes_end_whose_parent_ended_while_they_started() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, check=True, timeout=300)
    numbers = ended.stdout.split()
    assert len(numbers) == 2
    eventually(lambda: not any(Path("/proc", number).exists() for number in numbers), "the processes to end")


def _strings(sizes: list[int]) -> bytes:
    return b"".join(size.to_bytes(4, "little") + bytes(size) for size in sizes)


@given(st.integers(0, 9), st.integers(0, 300))
def test_strings_of_one_size_are_split_at_a_glance(size: int, count: int) -> None:
    tensor = _strings([size] * count)
    assert split_elements(tensor, count) == list(range(4 + size, len(tensor) + 1, 4 + size))[:count]


@given(st.lists(st.integers(0, 5), min_size=64, max_size=200), st.integers(-1, 1))
def test_strings_of_several_sizes_are_split_one_by_one(sizes: list[int], more: int) -> None:
    tensor = _strings(sizes)
    if more:
        with pytest.raises(ValueError, match="BYTES tensor"):
            split_elements(tensor, len(sizes) + more)
    else:
        assert split_elements(tensor, len(sizes)) == np.cumsum([4 + size for size in sizes]).tolist()
