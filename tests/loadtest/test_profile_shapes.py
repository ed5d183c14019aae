"""A model whose time depends on its requests' shapes: measured by shape, served with that, and by what was served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import typer
from typer.testing import CliRunner

from tests.python_models import write_model
from tidegate.api import RequestArrived
from tidegate.observation import LogEntry, LogHeader, read_log
from tidegate.schemas import ModelProfile, read_profiles
from tidegate_loadtest.commands.profile import profile
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.requested_shapes import recorded_shapes
from tidegate_proxy.tritons.embedded import EmbeddedTriton

MS_PER_ELEMENT = 0.05
SOURCE = f"""
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pixels = [pb_utils.get_input_tensor_by_name(request, "PIXELS").as_numpy() for request in requests]
        time.sleep(sum(each.size for each in pixels) * {MS_PER_ELEMENT} / 1e3)
        answers = [pb_utils.Tensor("Y", np.zeros((len(each), 1), np.float32)) for each in pixels]
        return [pb_utils.InferenceResponse([answer]) for answer in answers]
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "PIXELS" data_type: TYPE_FP32 dims: [ 2, -1 ] }
input { name: "MASK:0" data_type: TYPE_UINT8 dims: [ -1 ] }
input { name: "FIXED" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
NARROW, WIDE = "MASK:0:10;PIXELS:2,10", "MASK:0:60;PIXELS:2,60"


@pytest.fixture(scope="module")
def triton(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> str:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "reader", SOURCE, CONFIG)
    return start_triton([repository]).grpc_address


def _run(*arguments: str, status: int = 0) -> str:
    """What `tidegate profile reader` printed, errors with it; its columns told apart by spaces."""
    app = typer.Typer()
    app.command()(profile)
    result = CliRunner().invoke(app, ("reader", "--samples", "5", *arguments))
    assert result.exit_code == status, result.output
    return " ".join(result.output.replace("│", " ").split())


def _median_ms(measured: ModelProfile) -> dict[int, float]:
    return {point.rows: point.median_ms for point in measured.points}


def test_every_shape_is_measured_and_a_kind_named(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    where = ("--triton", triton, "-o", str(file), "--rows", "1,2")
    told = _run(*where, "--shape", "PIXELS:2,10;MASK:0:10;FIXED:3", "--shape", WIDE, "--shape", NARROW)
    narrow, wide = read_profiles(file).profiles
    assert [each.key for each in (narrow, wide)] == [("reader", "default", NARROW), ("reader", "default", WIDE)]
    for measured, elements in ((narrow, 20), (wide, 120)):
        for rows, median_ms in _median_ms(measured).items():
            assert median_ms >= rows * elements * MS_PER_ELEMENT, "faster than the model can be"
    for measured in (narrow, wide):
        assert f"{measured.shape} 1 {_median_ms(measured)[1]:.2f}" in told
        assert f"{measured.shape}: l(b) = {measured.alpha_ms:.3f} ms * b + {measured.beta_ms:.3f} ms" in told

    assert "reader through Triton, on A100" in _run(*where, "--shape", NARROW, "--device-class", "A100")
    of_kind = {each.key: each for each in read_profiles(file).profiles}
    assert sorted(of_kind) == [("reader", "A100", NARROW), ("reader", "default", NARROW), ("reader", "default", WIDE)]
    assert of_kind["reader", "default", WIDE] == wide, "what else is in the file is kept"


def _log(path: Path) -> tuple[LogHeader, list[LogEntry]]:
    with path.open("rb") as lines:
        header, entries = read_log(lines)
        return header, list(entries)


def _send(address: str, widths: list[int]) -> None:
    with triton_grpc.InferenceServerClient(address) as client:
        for width in widths:
            sent: dict[str, Any] = {
                "PIXELS": np.zeros((1, 2, width), np.float32),
                "MASK:0": np.zeros((1, width), np.uint8),
                "FIXED": np.zeros((1, 3), np.float32),
            }
            inputs = []
            for name, array in sent.items():
                datatype = "UINT8" if array.dtype == np.uint8 else "FP32"
                inputs.append(triton_grpc.InferInput(name, array.shape, datatype))
                inputs[-1].set_data_from_numpy(array)
            client.infer("reader", inputs, client_timeout=120)


def test_a_tidegate_plans_by_the_measured_shapes_and_its_recording_says_which_to_measure(
    triton: str, tmp_path: Path
) -> None:
    file, recording = tmp_path / "profiles.json", tmp_path / "events.jsonl"
    where = ("--triton", triton, "-o", str(file), "--rows", "1,4")
    _run(*where, "--shape", NARROW, "--shape", WIDE)
    serve = ("--triton", triton, "--policy", "fifs", "--profiles", str(file), "--event-log", str(recording))
    command = ("serve", "--listen", "127.0.0.1:0", *serve)
    with serving_command(*command, log=tmp_path / "tidegate.errors") as address:
        _send(address, [60, 10, 60, 30])
    header, entries = _log(recording)
    measured = {each.shape: each for each in read_profiles(file).profiles}
    started = {each.shape: each for each in header.setup.profiles}
    assert set(started) == {"", NARROW, WIDE}
    for shape in (NARROW, WIDE):
        assert started[shape] == measured[shape].to_profile(4), "a Tidegate starts from what was measured"
    slowest = tuple(map(max, started[NARROW].expected, started[WIDE].expected))  # on a busy machine either may be
    assert started[""].expected == slowest
    shapes = [entry.event.request.shape for entry in entries if isinstance(entry.event, RequestArrived)]
    assert shapes == [WIDE, NARROW, WIDE, "MASK:0:30;PIXELS:2,30"], "requests have the shapes that were measured"

    again = tmp_path / "again.json"
    told = _run(
        "--triton", triton, "-o", str(again), "--rows", "1", "--shapes-from", str(recording), "--max-shapes", "1"
    )
    assert "1 of 3 shapes, which 50.0% of 4 requests of reader have" in told
    assert f"{WIDE} 2 1 " in told, "shape, requests, rows"
    assert [each.shape for each in read_profiles(again).profiles] == [WIDE]

    with recording.open("rb") as lines, pytest.raises(LoadTestError, match="no request of model 'other' in it, but re"):
        recorded_shapes(lines, "other", 1)

    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(recording.read_bytes().replace(WIDE.encode(), WIDE[:9].encode() + b"#0123456789abcdef"))
    with cut.open("rb") as lines:
        found = recorded_shapes(lines, "reader", 8)
    assert {each.text: each.requests for each in found.shapes} == {NARROW: 1, "MASK:0:30;PIXELS:2,30": 1}
    assert (found.distinct, found.requests, found.share) == (3, 4, 0.5)
    cut.write_bytes(cut.read_bytes().replace(NARROW.encode(), b"MASK#0").replace(b"MASK:0:30;PIXELS:2,30", b"MASK#1"))
    with cut.open("rb") as lines, pytest.raises(LoadTestError, match="'reader' in it are cut: write them with --shape"):
        recorded_shapes(lines, "reader", 8)


def test_real_inputs_are_measured_by_the_shapes_that_they_have(triton: str, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    for application, width, count in (("", 10, 3), ("wide", 60, 2), ("rare", 30, 1)):
        folder = inputs / application
        folder.mkdir(exist_ok=True)
        for number in range(count):
            tensors = {"PIXELS": np.full((2, width), number, "f"), "MASK:0": np.zeros(width, "u1")}
            np.savez(folder / f"{number}.npz", **tensors, FIXED=np.zeros(3, "f"))
    file = tmp_path / "profiles.json"
    where = ("--triton", triton, "-o", str(file), "--rows", "1,4", "--inputs", f"reader={inputs}")
    _run(*where, "--max-shapes", "2")
    narrow, wide = read_profiles(file).profiles
    assert [each.shape for each in (narrow, wide)] == [NARROW, WIDE]
    assert _median_ms(wide)[4] >= 4 * 120 * MS_PER_ELEMENT, "faster than the model can be"
    _run(*where, "--shape", "MASK:0:30;PIXELS:2,30")
    assert len(read_profiles(file).profiles) == 3
    told = _run(*where, "--shape", "MASK:0:7;PIXELS:2,7", status=1)
    assert "no file has the shape MASK:0:7;PIXELS:2,7; they have MASK:0:10;PIXELS:2,10" in told
