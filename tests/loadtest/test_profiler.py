"""Measuring a model whose latency is known: an emulated GPU behind the real Triton. By shape: test_profile_shapes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.python_models import write_model
from tidegate.schemas import ProfilePoint, read_profiles
from tidegate_loadtest.commands.profile import profile
from tidegate_loadtest.profiler import default_sizes, fit_line
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_triton_models import model_source

ALPHA_MS, BETA_MS = 2.0, 5.0
CONFIG = """
backend: "python"
max_batch_size: {max_batch}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "alpha_ms" value: {{ string_value: "2" }} }}
parameters {{ key: "beta_ms" value: {{ string_value: "5" }} }}
"""


@pytest.fixture(scope="module")
def triton(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> str:
    repository = tmp_path_factory.mktemp("models")
    for name, max_batch in (("gpu", 8), ("unbatched", 0)):
        write_model(repository, name, model_source("emulated_gpu").read_text(), CONFIG.format(max_batch=max_batch))
    return start_triton([repository]).grpc_address


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(profile)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_it_finds_what_the_model_was_given(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    arguments = ("gpu", "--triton", triton, "-o", str(file), "--shape", "INPUT0:4", "--samples", "5", "--json")
    code, output = run(*arguments, "--device-class", "T4")
    assert code == 0, output
    written = read_profiles(file)
    assert json.loads(output.splitlines()[-1]) == written.model_dump(mode="json")
    (measured,) = written.profiles
    assert measured.key == ("gpu", "T4", "INPUT0:4")
    assert [point.rows for point in measured.points] == [1, 2, 4, 8]
    for point in measured.points:
        assert point.median_ms >= ALPHA_MS * point.rows + BETA_MS, "faster than the model can be"
        assert point.p95_ms >= point.median_ms
    assert measured.to_profile(8).upper_ns(8) >= (8 * ALPHA_MS + BETA_MS) * 1e6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent",), "absent"),
        (("gpu",), "--shape INPUT0:..., or take it from recorded traffic: --shapes-from EVENT_LOG"),
        (("gpu", "--shape", "INPUT0:4", "--shape", "INPUT0:4,5"), "--shape INPUT0:4,5: input 'INPUT0' is -1 (rows not"),
        (("gpu", "--shape", "INPUT0=4"), "'INPUT0=4' is no shape: write NAME:3,48,320"),
        (("gpu", "--shape", "X:4"), "--shape X:4: model 'gpu' has no input 'X'; it has INPUT0"),
        (("gpu", "--shape", "INPUT0:4", "--device-class", ""), "--device-class: give it a name, e.g. A100"),
        (("gpu", "--shapes-from", "nowhere"), "'nowhere' does not exist"),
        (("gpu", "--shapes-from", __file__), "line 1 is no header of an event log"),
        (("gpu", "--shape", "INPUT0:4", "--rows", "1,16"), "at most 8 rows, not 16"),
        (("gpu", "--rows", "1,x"), "not a list of positive numbers"),
        (("unbatched",), "max_batch_size 0"),
    ],
)
def test_what_cannot_be_measured_is_said(triton: str, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    code, output = run(*arguments, "--triton", triton, "-o", str(tmp_path / "profiles.json"))
    assert code in (1, 2)
    assert says in " ".join(output.replace("│", " ").split())
    assert not (tmp_path / "profiles.json").exists()


def test_a_file_that_cannot_be_used_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text("{}")
    nobody = ("gpu", "--triton", "127.0.0.1:1", "-o")
    assert "profiles: must be given" in run(*nobody, str(tmp_path / "profiles.json"))[1]
    assert "there is no folder" in run(*nobody, str(tmp_path / "absent" / "profiles.json"))[1]


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    code, output = run("gpu", "--triton", "127.0.0.1:1", "-o", str(tmp_path / "profiles.json"))
    assert code == 1
    assert "127.0.0.1:1" in output


def test_default_sizes_are_powers_of_two_and_the_largest() -> None:
    assert default_sizes(1) == [1]
    assert default_sizes(8) == [1, 2, 4, 8]
    assert default_sizes(12) == [1, 2, 4, 8, 12]


@given(st.floats(0, 10), st.floats(0.1, 50))
def test_a_straight_line_is_found_again(alpha_ms: float, beta_ms: float) -> None:
    sizes = (1, 2, 4, 8)
    medians = [alpha_ms * rows + beta_ms for rows in sizes]
    points = [ProfilePoint(rows=r, median_ms=ms, p95_ms=ms, samples=3) for r, ms in zip(sizes, medians, strict=True)]
    assert fit_line(points) == pytest.approx((alpha_ms, beta_ms), abs=1e-6)


def test_noise_makes_nothing_negative() -> None:
    falling = [ProfilePoint(rows=r, median_ms=ms, p95_ms=ms, samples=3) for r, ms in ((1, 9.0), (8, 5.0))]
    assert fit_line(falling) == (0.0, 7.0)
    steep = [ProfilePoint(rows=r, median_ms=ms, p95_ms=ms, samples=3) for r, ms in ((1, 1.0), (2, 4.0))]
    alpha_ms, beta_ms = fit_line(steep)
    assert alpha_ms > 0
    assert beta_ms == 0
