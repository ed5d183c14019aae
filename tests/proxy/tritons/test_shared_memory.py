"""Large tensors are handed to a Triton on this machine in shared memory, and nobody can tell."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.conftest import eventually
from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX, ProcessLock

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "MORE" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "LONG" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
SOURCE = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a = pb.get_input_tensor_by_name(request, "A").as_numpy()
            outputs = {
                "MORE": a + 1,
                "TEXT": np.array([[b"row %d" % row[-1]] for row in a], dtype=object),
                "LONG": np.repeat(a, int(a.max()), axis=1),
            }
            wanted = request.requested_output_names()
            tensors = [pb.Tensor(name, value) for name, value in outputs.items() if name in wanted]
            answers.append(pb.InferenceResponse(tensors))
        return answers
"""
FLOATS = 50_000
"""Of each request: 200 KB."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose outputs are as long as the values of its input say."""
    repository = tmp_path_factory.mktemp("growing")
    write_model(repository, "grow", SOURCE, CONFIG)
    return repository


@pytest.fixture(scope="module")
def growing(start_triton: Callable[..., EmbeddedTriton], repository: Path) -> EmbeddedTriton:
    """A Triton with it."""
    return start_triton([repository])


@pytest.fixture
def through(
    growing: EmbeddedTriton, serve_here: Callable[..., Any], connect: Callable[..., Any]
) -> triton_grpc.InferenceServerClient:
    """A client of a Tidegate in front of it."""
    client: triton_grpc.InferenceServerClient = connect(serve_here([growing]))
    return client


def input_of(value: int, rows: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((rows, FLOATS), value, np.float32)


def infer(
    client: triton_grpc.InferenceServerClient, value: int, *, rows: int = 1, outputs: tuple[str, ...] = ()
) -> Any:
    tensor = triton_grpc.InferInput("A", [rows, FLOATS], "FP32")
    tensor.set_data_from_numpy(input_of(value, rows))
    wanted = [triton_grpc.InferRequestedOutput(name) for name in outputs] or None
    return client.infer("grow", [tensor], outputs=wanted, request_id=f"it is {value}")


def check(answer: Any, value: int, rows: int = 1) -> None:
    response = answer.get_response()
    assert (response.id, response.model_name, len(response.outputs)) == (f"it is {value}", "grow", 3)
    assert not any(output.parameters for output in response.outputs)
    np.testing.assert_array_equal(answer.as_numpy("MORE"), input_of(value, rows) + 1)
    np.testing.assert_array_equal(answer.as_numpy("LONG"), np.repeat(input_of(value, rows), value, axis=1))
    assert answer.as_numpy("TEXT").tolist() == [[b"row %d" % value]] * rows


def shared(triton: EmbeddedTriton, connect: Callable[..., Any]) -> set[str]:
    return {
        name for name in connect(triton).get_system_shared_memory_status().regions if name.startswith(REGION_PREFIX)
    }


def mapped_here() -> list[str]:
    """The regions of the proxy in this process, as Linux tells of them."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"/dev/shm/{REGION_PREFIX}" in line]


def test_large_tensors_are_shared(
    through: triton_grpc.InferenceServerClient, growing: EmbeddedTriton, connect: Callable[..., Any]
) -> None:
    def answered_through_a_region() -> bool:
        check(infer(through, 1), 1)
        return bool(shared(growing, connect))

    eventually(answered_through_a_region, "a region to be made")
    for rows in (1, 3, 8):
        check(infer(through, 1, rows=rows), 1, rows)
    assert not through.get_system_shared_memory_status().regions, "clients do not see it"
    eventually(lambda: all(line.endswith(" (deleted)") for line in mapped_here()), "no region to have a name any more")
    assert mapped_here()


def test_of_a_batch_each_client_gets_its_own_rows(
    through: triton_grpc.InferenceServerClient, growing: EmbeddedTriton, connect: Callable[..., Any]
) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: infer(through, 1), range(64)))
    for answer in answers:
        check(answer, 1)
    assert shared(growing, connect)


def test_only_what_was_asked_for_is_answered(through: triton_grpc.InferenceServerClient) -> None:
    for outputs in [("LONG",), ("TEXT",), ("TEXT", "MORE")] * 2:
        response = infer(through, 2, outputs=outputs).get_response()
        assert {output.name for output in response.outputs} == set(outputs)


def test_an_answer_that_is_larger_than_the_last_one(through: triton_grpc.InferenceServerClient) -> None:
    for value in (1, 1, 1, 3, 3, 2, 5, 5, 1, 5):
        check(infer(through, value), value)


def test_a_client_that_has_all_regions_forgotten_takes_none_from_us(through: triton_grpc.InferenceServerClient) -> None:
    for _ in range(5):
        check(infer(through, 1), 1)
        through.unregister_system_shared_memory()
        check(infer(through, 1), 1)


def test_a_triton_that_starts_anew_maps_new_ones(
    start_triton: Callable[..., EmbeddedTriton],
    repository: Path,
    serve_here: Callable[..., Any],
    connect: Callable[..., Any],
) -> None:
    mortal = start_triton([repository])
    client = connect(serve_here([mortal]))

    def shares(triton: EmbeddedTriton) -> bool:
        try:
            check(infer(client, 1), 1)
        except InferenceServerException:
            return False
        return bool(shared(triton, connect))

    eventually(lambda: shares(mortal), "a region")
    port = int(mortal.grpc_address.rpartition(":")[2])
    os.kill(mortal.pid, signal.SIGKILL)
    mortal.stop()
    back = start_triton([repository], grpc_port=port)
    eventually(lambda: shares(back), "an answer through a new region")


HOLD = """
import sys
from pathlib import Path
from tidegate_proxy.tritons.shared_memory import ProcessLock
print(ProcessLock(Path("/dev/shm")).name, flush=True)
sys.stdin.read()
"""


def test_what_a_dead_process_has_left_is_forgotten_and_what_a_living_one_has_is_not(
    growing: EmbeddedTriton, serve_here: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    client = connect(growing)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", HOLD], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    names = [f"{REGION_PREFIX}{process.stdout.readline().strip()}-{number}" for number, process in enumerate(processes)]
    try:
        for name in (*names, f"{REGION_PREFIX}1-of-whom-nobody-knows"):
            file = Path(f"/dev/shm/test-{name}")
            file.write_bytes(bytes(64))
            client.register_system_shared_memory(name, f"/{file.name}", 64)
            file.unlink()
        processes[0].kill()
        processes[0].wait()
        serve_here([growing]).stop()
        assert shared(growing, connect) == {names[1]}
        processes[1].communicate()
        serve_here([growing]).stop()
        assert not shared(growing, connect)
        assert not list(Path("/dev/shm").glob(f"{names[0].rpartition('-')[0]}*"))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        client.unregister_system_shared_memory()


def test_a_region_that_was_being_made_as_its_process_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    held = HOLD.replace("/dev/shm", str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", held], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    try:
        regions = [tmp_path / f"{REGION_PREFIX}{process.stdout.readline().strip()}-region" for process in processes]
        for region in regions:
            region.write_bytes(bytes(64))
        processes[0].kill()
        processes[0].wait()
        ProcessLock(tmp_path).close()
        assert [region.exists() for region in regions] == [False, True]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
