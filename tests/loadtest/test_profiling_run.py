"""`tidegate profile` of several models: all of a server, on through failures, resumed after an interruption."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
import typer
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

from tests.command_line import invoke
from tests.conftest import eventually
from tests.python_models import write_model
from tidegate.schemas import Hardware, ModelProfile, hardware_here, read_profiles
from tidegate_loadtest.commands.profile import profile
from tidegate_loadtest.profiling_run import is_here, runs_on_gpu, why_gpus_are_unknown
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_triton_models import model_source

CONFIG = """
backend: "python"
max_batch_size: {max_batch}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {dims} ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "alpha_ms" value: {{ string_value: "0" }} }}
parameters {{ key: "beta_ms" value: {{ string_value: "1" }} }}
"""
SCENARIO = """
duration_s: 0.3
workers: [{count: 1}]
models: [{name: a, slo_ms: 1000, profile: {alpha_ms: 0, beta_ms: 1, max_batch: 2}}]
arrivals: {process: poisson, rate_rps: 30}
policies: [{name: fifs}, {name: symphony}]
"""
FAILS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("never today")
"""


@pytest.fixture(scope="module")
def triton(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> str:
    repository = tmp_path_factory.mktemp("models")
    source = model_source("emulated_gpu").read_text()
    models = {"a": (4, 4, source), "b": (2, 4, source), "failing": (2, 4, FAILS), "flat": (0, 4, source)}
    for name, (max_batch, dims, code) in (models | {"open": (2, -1, source)}).items():
        write_model(repository, name, code, CONFIG.format(max_batch=max_batch, dims=dims))
    return start_triton([repository]).grpc_address


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(profile)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def _known(file: Path) -> dict[str, ModelProfile]:
    return {each.model: each for each in read_profiles(file).profiles}


def test_without_names_all_are_measured_and_the_end_says_which_were_not(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    status, out, errors = run("--triton", triton, "-o", str(file), "--samples", "3")
    assert status == 1, "two of them should have been measured and were not"
    measured = _known(file)
    assert {name: [point.rows for point in each.points] for name, each in measured.items()} == {
        "a": [1, 2, 4],
        "b": [1, 2],
    }
    assert measured["a"].hardware == hardware_here()
    assert f"on {hardware_here()}" in out
    assert "left out: flat: max_batch_size 0" in errors
    failures = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(failures) == 2
    assert failures[0].startswith("error: open: input 'INPUT0' is -1: give its -1 a size")
    assert failures[1].startswith("error: failing: ")
    assert "never today" in failures[1]


def test_what_is_known_is_not_measured_again_if_that_is_said(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    arguments = ("a", "b", "--triton", triton, "-o", str(file), "--samples", "3", "--rows", "1,2,4")
    assert run(*arguments)[0] == 0
    before = _known(file)
    assert [point.rows for point in before["b"].points] == [1, 2], "four are more than it takes"
    status, _, errors = run(*arguments, "--resume")
    assert status == 0
    assert "measured before: a, b" in errors
    assert _known(file) == before
    of_another = before["a"].model_copy(update={"hardware": Hardware(cpu="another", cores=1)})
    file.write_text(json.dumps({"profiles": [of_another.model_dump(), before["b"].model_dump()]}))
    status, _, errors = run(*arguments, "--resume")
    assert "measured before: b" in errors
    assert _known(file)["a"].hardware == hardware_here(), "what another machine took says nothing"


def test_more_samples_than_are_known_are_taken(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    assert run("b", "--triton", triton, "-o", str(file), "--samples", "3")[0] == 0
    assert run("b", "--triton", triton, "-o", str(file), "--samples", "4", "--resume")[0] == 0
    assert {point.samples for point in _known(file)["b"].points} == {4}


def test_shapes_are_of_one_model(triton: str, tmp_path: Path) -> None:
    status, _, errors = run("--triton", triton, "-o", str(tmp_path / "p.json"), "--shape", "INPUT0:4")
    assert status == 2
    assert "is for one model" in errors


def test_what_was_measured_before_an_interruption_is_kept(triton: str, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    code = "import sys; from tidegate.cli import main; sys.argv = ['tidegate', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "profile", "b", "a", "--triton", triton, "-o", str(file)]
    # That of the second model takes as long as anybody wants it to.
    running = subprocess.Popen([*command, "--samples", "500"], stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: file.exists() or running.poll() is not None, "the first model to be measured")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130
    assert f"error: interrupted; 1 of 2 models are in {file}, and --resume goes on from there" in errors
    assert set(_known(file)) == {"b"}


def test_a_server_that_is_gone_ends_it(start_triton: Callable[..., EmbeddedTriton], tmp_path: Path) -> None:
    dies = "import os\n\nclass TritonPythonModel:\n    def execute(self, requests):\n        os.kill(os.getppid(), 9)\n"
    for name in ("a", "b"):
        write_model(tmp_path / "models", name, dies, CONFIG.format(max_batch=2, dims=4))
    server = start_triton([tmp_path / "models"])
    status, _, errors = run("--triton", server.grpc_address, "-o", str(tmp_path / "profiles.json"), "--samples", "3")
    assert status == 1
    assert "error: a: " in errors
    assert "error: b: " not in errors
    assert "0 of 2 models are in" in errors
    server.stop()


def test_a_triton_that_speaks_tls_is_measured_and_put_under_load(
    start_triton: Callable[..., EmbeddedTriton], tmp_path: Path
) -> None:
    authority = trustme.CA()
    ca, pem = tmp_path / "ca.pem", tmp_path / "me.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("triton.example").private_key_and_cert_chain_pem.write_to_path(pem)
    write_model(tmp_path / "models", "a", model_source("emulated_gpu").read_text(), CONFIG.format(max_batch=2, dims=4))
    files = [f"--grpc-server-cert={pem}", f"--grpc-server-key={pem}", f"--grpc-root-cert={ca}"]
    secure = start_triton([tmp_path / "models"], options=["--grpc-use-ssl-mutual=1", *files])
    file = tmp_path / "profiles.json"
    at = secure.grpc_address
    tls = ("--tls-ca", str(ca), "--tls-cert", str(pem), "--tls-key", str(pem), "--tls-server-name", "triton.example")
    status, _, errors = run("--triton", at, "-o", str(file), "--samples", "3", *tls)
    assert status == 0, errors
    assert set(_known(file)) == {"a"}
    scenario, results = tmp_path / "scenario.yaml", tmp_path / "results.json"
    scenario.write_text(SCENARIO)
    written = ["-o", str(results)]

    def all_answered(*command: str) -> bool:
        done = invoke(command[0], scenario, *command[1:], *written, *tls)
        assert done.exit_code == 0, done.output
        return '"failed": 0' in results.read_text()

    assert all_answered("loadtest", "--target", at)
    assert all_answered("compare", "--targets", f"one={at}", "--targets", f"other={at}", "--rounds", "1")
    plain = invoke("compare", scenario, "--targets", f"one={at}", f"other=grpc://{at}", "--rounds", "1", *tls)
    assert plain.exit_code == 1
    assert "other: " in plain.output, "one that is written with grpc:// is asked without TLS"
    shares = ["--triton", f"40={at}", "--gpu", "G", "--solo", str(tmp_path / "s"), "--co-runs", str(tmp_path / "c")]
    alone = invoke("profile-shares", "nobody", *shares, *tls)
    assert "no Triton and no Tidegate answers" not in alone.output, "it was asked"
    assert "nobody" in alone.output
    secure.stop()


@pytest.mark.parametrize("command", ["loadtest", "compare"])
def test_emulated_clusters_speak_no_tls(command: str, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO)
    done = invoke(command, scenario, "--tls")
    assert done.exit_code == 1
    assert "--tls is for" in done.output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tls-ca", "absent.pem"), "absent.pem: No such file"),
        (("--tls-ca", __file__), "there are no certificates in PEM form in it"),
        (("--tls-cert", __file__), "go together: give both or neither"),
        (("--tls-cert", __file__, "--tls-key", __file__), "are no certificate and its key in PEM form"),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_named(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    status, _, errors = run("--triton", "127.0.0.1:1", "-o", str(tmp_path / "profiles.json"), *flags)
    assert status == 1
    assert says in errors


@pytest.mark.parametrize(("target", "here"), [("localhost:1", True), ("[::1]:1", True), ("gpu-1:8001", False)])
def test_hardware_is_that_of_the_server_only_where_it_is_here(target: str, here: bool) -> None:
    assert is_here(target) is here


def test_models_on_gpus_that_nothing_names_are_told_with_the_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def config(kind: str) -> model_config_pb2.ModelConfig:
        return text_format.Parse(f"instance_group {{ kind: {kind} }}", model_config_pb2.ModelConfig())

    assert runs_on_gpu(config("KIND_GPU"))
    assert not runs_on_gpu(config("KIND_CPU"))
    monkeypatch.setattr("tidegate_loadtest.profiling_run.find_spec", lambda _: None)
    said = why_gpus_are_unknown(["bert", "resnet"])
    assert "which GPU bert, resnet ran on is not recorded" in said
    assert 'pip install "tidegate-loadtest[nvml]"' in said
    assert why_gpus_are_unknown([]) == ""
    monkeypatch.setattr("tidegate_loadtest.profiling_run.find_spec", lambda name: name)
    assert why_gpus_are_unknown(["bert"]) == ""
