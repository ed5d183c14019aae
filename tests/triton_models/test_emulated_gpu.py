"""The emulated GPU: its arithmetic, and a real Triton that runs it."""

import http.client
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.conftest import eventually
from tests.triton_models.conftest import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_triton_models import MODEL_NAMES, model_source

ONE_TENSOR = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SENDS = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output [ { name: "A" data_type: TYPE_UINT8 dims: [ -1 ] }, { name: "B" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""
TIMED = """
input [ { name: "X" data_type: TYPE_STRING dims: [ -1 ] }, { name: "MILLIS" data_type: TYPE_FP32 dims: [ 1 ] } ]
output { name: "Y" data_type: TYPE_STRING dims: [ -1 ] }
"""


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model's module, imported outside Triton."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("pb_utils"))
    spec = importlib.util.spec_from_file_location("emulated_gpu_model", model_source("emulated_gpu"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    repository = tmp_path_factory.mktemp("emulated")
    one = "instance_group { count: 1 kind: KIND_CPU }"
    batch_of_8 = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }"
    add_model(
        repository,
        "linear",
        "emulated_gpu",
        f"max_batch_size: 8\n{ONE_TENSOR}{one}\n{batch_of_8}",
        alpha_ms=5,
        beta_ms=20,
    )
    add_model(repository, "plain", "emulated_gpu", f"max_batch_size: 8\n{ONE_TENSOR}{one}", alpha_ms=5, beta_ms=20)
    add_model(
        repository,
        "timed",
        "emulated_gpu",
        f"max_batch_size: 8\n{TIMED}{one}",
        time_input="MILLIS",
        time_reduce="sum",
        beta_ms=5,
    )
    for name, batch in (("sends", 8), ("sends_alone", 0)):
        tensors = f"max_batch_size: {batch}\n{SENDS}{one}"
        add_model(repository, name, "emulated_gpu", tensors, alpha_ms=1, output_bytes=1000)
    return start_triton([repository])


def _call(triton: EmbeddedTriton, model: str, arrays: dict[str, Any]) -> tuple[triton_grpc.InferResult, float]:
    """Infer once; returns the result and the milliseconds it took."""
    inputs = []
    for name, array in arrays.items():
        kind = "BYTES" if array.dtype == np.object_ else "FP32"
        inputs.append(triton_grpc.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        start = time.monotonic()
        result = client.infer(model, inputs)
        return result, (time.monotonic() - start) * 1000


def test_source_exists_for_every_model() -> None:
    assert all(model_source(name).is_file() for name in MODEL_NAMES)
    with pytest.raises(ValueError, match="there are emulated_gpu, onnx_runner"):
        model_source("tensorrt")


def test_latency_line_and_table(emulated: ModuleType) -> None:
    line = emulated.latency_ms({"alpha_ms": "2", "beta_ms": "3.5"})
    assert [line(1), line(8)] == [5.5, 19.5]
    table = emulated.latency_ms({"table_ms": json.dumps({"2": 4.0, "4": 6.0, "8": 14.0})})
    assert [table(rows) for rows in (1, 2, 3, 4, 6, 8, 10)] == [4.0, 4.0, 5.0, 6.0, 10.0, 14.0, 18.0]
    assert emulated.latency_ms({"table_ms": '{"4": 6}'})(32) == 6.0


def test_each_shape_has_a_table(emulated: ModuleType) -> None:
    of = emulated.latencies_ms({"shapes_ms": '{"x:320": {"1": 5, "3": 9}, "x:640": {"1": 10}}'})
    assert (of("x:320", 2), of("x:640", 4)) == (7, 10)
    with pytest.raises(ValueError, match="the request has the shape 'x:7', and shapes_ms has x:320, x:640"):
        of("x:7", 1)
    assert emulated.latencies_ms({"alpha_ms": "2"})("whatever", 3) == 6


def test_each_instance_group_has_a_table(emulated: ModuleType) -> None:
    parameters = {"groups_ms": '{"L4": {"1": 5, "3": 9}, "P4_old": {"1": 10}}'}
    assert emulated.latencies_ms(parameters, "L4_1")("", 2) == 7
    assert (
        emulated.latencies_ms(parameters, "P4_old")("", 2) == emulated.latencies_ms(parameters, "P4_old_0")("", 1) == 10
    )
    with pytest.raises(ValueError, match="has L4, P4_old, and the instance is 'T4_0'"):
        emulated.latencies_ms(parameters, "T4_0")
    with pytest.raises(ValueError, match="no meaning beside groups_ms"):
        emulated.latencies_ms(parameters | {"table_ms": "{}"}, "L4_1")
    with pytest.raises(ValueError, match="expected JSON"):
        emulated.latencies_ms({"groups_ms": "5"}, "L4_1")


def test_stalls_come_as_often_as_asked_for(emulated: ModuleType) -> None:
    factor = emulated.stalls({"stall_probability": "0.1", "stall_factor": "7"}, "gpu_0")
    drawn = [factor() for _ in range(5000)]
    assert set(drawn) == {1, 7}
    assert drawn.count(7) == pytest.approx(500, rel=0.2)
    assert emulated.stalls({}, "gpu_0")() == 1


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
def test_jitter_has_mean_one_and_the_variation_asked_for(emulated: ModuleType, kind: str) -> None:
    parameters = {"jitter": "0.3", "jitter_kind": kind, "seed": "7"}
    draw = emulated.jitter(parameters, "m_0_0")
    factors = [draw() for _ in range(20_000)]
    assert statistics.mean(factors) == pytest.approx(1.0, abs=0.02)
    assert statistics.stdev(factors) == pytest.approx(0.3, abs=0.02)
    again = emulated.jitter(parameters, "m_0_0")
    assert [again() for _ in range(5)] == factors[:5]
    assert emulated.jitter(parameters, "m_0_1")() != factors[0]


class Clock:
    """The module's time, which passes only where it sleeps."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def told(at: Path, **changes: object) -> dict[str, str]:
    """Half of what it takes is computing, which a neighbor's 50 % of the cache make three times as long."""
    document = {"board": str(at), "uses": {"1": [8, 9, 0.5]}, "minds": [0.04, 0.0, 0.0], **changes}
    return {"neighbors": json.dumps(document)}


def test_a_neighbor_is_felt_while_it_is_busy(
    emulated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 ms of work beside one that is busy for 20: those do 10 of it."""
    clock = Clock()
    monkeypatch.setattr(emulated, "time", clock)
    lines = np.zeros((4, 3))
    lines[1] = 1.02, 50, 30
    lines[2] = 0.9, 50, 30  # has ended
    lines[3] = 1000, 50, 30  # was killed before the clock began anew
    board = tmp_path / "board"
    board.write_bytes(lines.tobytes())
    mine = emulated.neighbors(told(board))
    assert mine.hold(clock.now_ns, 32_000_000, rows=1) == pytest.approx(1_042_000_000, abs=2)
    assert clock.now_ns == pytest.approx(1_042_000_000, abs=2)
    assert np.fromfile(board)[:3].tolist() == [0, 8, 9], "it is idle again"
    assert mine.hold(clock.now_ns, 32_000_000, rows=7) == pytest.approx(1_074_000_000, abs=2), "alone"


def test_while_it_is_busy_its_neighbors_see_what_it_uses(
    emulated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = tmp_path / "board"
    seen = []

    class Watched(Clock):
        def sleep(self, seconds: float) -> None:
            until_s, cache, dram = np.fromfile(board)[:3]
            seen.append((until_s > self.now_ns / 1e9 + seconds + 0.04, cache, dram))  # where it wakes so much later
            super().sleep(seconds)

    monkeypatch.setattr(emulated, "time", Watched())
    emulated.neighbors(told(board)).hold(1_000_000_000, 3_000_000, rows=1)
    assert seen == [(True, 8, 9)] * 3


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"board": "/nowhere/gpu0"}, "/nowhere/gpu0: No such file"),
        ({"minds": [1, 2]}, "expected JSON with board"),
        ({"uses": {}}, "expected JSON with board"),
        ({"uses": {"1": [1, 2, -1]}}, "nothing negative"),
        ({"uses": None}, "expected JSON with board"),
    ],
)
def test_neighbors_that_make_no_sense_are_refused(
    emulated: ModuleType, tmp_path: Path, changes: dict[str, object], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        emulated.neighbors(told(tmp_path / "board", **changes))
    assert emulated.neighbors({}) is None


HOLDS_A_LINE = """
import importlib.util, sys
from types import ModuleType
sys.modules["triton_python_backend_utils"] = ModuleType("pb_utils")
spec = importlib.util.spec_from_file_location("model", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    mine = module.neighbors({"neighbors": sys.argv[2]})
except ValueError as error:
    print(error, flush=True)
else:
    mine._write(0.0, 7.0, 0.0)
    print(mine._line, flush=True)
sys.stdin.read()
"""


def test_a_line_is_free_again_once_its_process_is_killed(
    emulated: ModuleType, tmp_path: Path, at_the_end: Callable[..., None]
) -> None:
    board = tmp_path / "board"

    def start() -> tuple["subprocess.Popen[str]", str]:
        command = [sys.executable, "-c", HOLDS_A_LINE, str(model_source("emulated_gpu")), told(board)["neighbors"]]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        at_the_end(process.communicate)
        at_the_end(process.kill)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    (first, line), (_, other) = start(), start()
    assert (line, other) == ("0", "1")
    first.kill()
    first.wait()
    assert start()[1] == "0"
    assert start()[1] == "2"
    assert np.fromfile(board).reshape(-1, 3)[:4, 1].tolist() == [7, 7, 7, 0]


def test_a_board_that_is_full_is_named(emulated: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(emulated.fcntl, "lockf", taken)
    with pytest.raises(ValueError, match=r"all 64 lines of the board .*/board are taken: no more instances"):
        emulated.neighbors(told(tmp_path / "board"))


def test_holds_for_the_promised_time_and_echoes(server: EmbeddedTriton) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    result, took_ms = _call(server, "plain", {"INPUT0": rows})
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows)
    assert 5 * 4 + 20 <= took_ms < 1000 * (5 * 4 + 20), "milliseconds, no seconds"


def test_a_dynamic_batch_is_held_once_for_all_its_rows(server: EmbeddedTriton) -> None:
    def one(value: int) -> float:
        rows = np.full((2, 3), value, dtype=np.float32)
        result, took_ms = _call(server, "linear", {"INPUT0": rows})
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows)
        return took_ms

    with ThreadPoolExecutor(4) as pool:
        took_ms = list(pool.map(one, range(4)))
    assert min(took_ms) >= 5 * 8 + 20
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:

        def counted() -> tuple[int, int]:
            (statistic,) = client.get_inference_statistics("linear").model_stats
            return statistic.inference_count, statistic.execution_count

        eventually(lambda: counted() == (8, 1), "one execution of eight rows")  # Triton answers first, and counts then


def test_time_carried_by_an_input(server: EmbeddedTriton) -> None:
    words = np.array([["a"], [b"\xff\x00"], [""]], dtype=np.object_)
    millis = np.array([[10], [20], [5]], dtype=np.float32)
    result, took_ms = _call(server, "timed", {"X": words, "MILLIS": millis})
    assert result.as_numpy("Y").tolist() == [[b"a"], [b"\xff\x00"], [b""]]
    assert 10 + 20 + 5 + 5 <= took_ms < 1000 * (10 + 20 + 5 + 5), "milliseconds, no seconds"
    with pytest.raises(Exception, match="'MILLIS' must hold milliseconds"):
        _call(server, "timed", {"X": words, "MILLIS": -millis})


def test_sends_so_many_bytes_for_each_row(server: EmbeddedTriton) -> None:
    result, _ = _call(server, "sends", {"INPUT0": np.ones((3, 2), np.float32)})
    np.testing.assert_array_equal(result.as_numpy("A"), np.zeros((3, 1000), np.uint8))
    np.testing.assert_array_equal(result.as_numpy("B"), np.zeros((3, 1000), np.uint8))
    result, _ = _call(server, "sends_alone", {"INPUT0": np.ones(2, np.float32)})
    np.testing.assert_array_equal(result.as_numpy("A"), np.zeros(1000, np.uint8))


def test_overshoot_is_on_the_metrics_page(server: EmbeddedTriton) -> None:
    for _ in range(2):  # the first batch's overshoot is published within the second's hold
        _call(server, "plain", {"INPUT0": np.zeros((1, 1), dtype=np.float32)})
    connection = http.client.HTTPConnection(server.metrics_address)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    (line,) = (line for line in page.splitlines() if line.startswith("tidegate_emulated_gpu") and '"plain"' in line)
    assert line.startswith('tidegate_emulated_gpu_overshoot_us{instance="plain_0_0",model="plain"} ')
    assert float(line.rpartition(" ")[2]) > 0


def test_bad_parameters_fail_the_load_and_say_why(
    load_errors: Callable[[Path], dict[str, str]], tmp_path: Path
) -> None:
    bad: dict[str, tuple[dict[str, object], str]] = {
        "none": ({}, "exactly one of the parameters alpha_ms, table_ms and time_input must be set"),
        "two": ({"alpha_ms": 1, "table_ms": '{"1": 2}'}, "not ['alpha_ms', 'table_ms']"),
        "text": ({"alpha_ms": "fast"}, "parameter alpha_ms is 'fast': expected a number, not negative"),
        "table": ({"table_ms": '{"0": 2}'}, "expected rows from 1"),
        "input": ({"time_input": "T"}, "config.pbtxt has no TYPE_FP32 input of that name"),
        "kind": ({"alpha_ms": 1, "jitter_kind": "normal"}, "expected lognormal or gamma"),
        "bytes": ({"alpha_ms": 1, "output_bytes": 0}, "expected a whole number of at least 1"),
        "floats": ({"alpha_ms": 1, "output_bytes": 5}, "output 'OUTPUT0' is TYPE_FP32: make it TYPE_UINT8"),
    }
    for name, (parameters, _) in bad.items():
        add_model(tmp_path, name, "emulated_gpu", f"max_batch_size: 8\n{ONE_TENSOR}", **parameters)
    reasons = load_errors(tmp_path)
    for name, (_, reason) in bad.items():
        assert reason in reasons[name]
