"""`tidegate init`: what it writes is checked, served, and not written over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import trustme
import typer
import yaml
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from tests.proxy.fixtures.clients import tensors
from tidegate_proxy.commands.check import check
from tidegate_proxy.commands.doctor import doctor
from tidegate_proxy.commands.init import init
from tidegate_proxy.commands.serve import serve
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

APP = typer.Typer()
APP.command()(init)
APP.command()(check)
APP.command()(doctor)


def _run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def _flag(triton: EmbeddedTriton) -> str:
    return f"{triton.grpc_address},http={triton.http_address},metrics={triton.metrics_address}"


def test_what_it_writes_is_right_and_says_something_of_every_model(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    status, out = _run("init", "--triton", _flag(triton), "-o", path)
    assert status == 0, out
    assert f"tidegate serve {path}" in out
    text = path.read_text()
    assert set(yaml.safe_load(text)) == {"version", "tritons"}, "all else is the default, as comments"
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("#   ")}
    assert lines["echo:"].split("#")[1].split() == ["echo:", "{slo_ms:", "100}"]
    assert lines["echo:"].endswith("batched up to 4 rows: tidegate_scheduling of its config says so")
    assert lines["patient:"].endswith("; SLO of 600000 ms in its config.pbtxt")
    (own_slo,) = [line for line in text.splitlines() if " in their config.pbtxt: " in line]
    assert "patient" in own_slo
    assert "echo" not in own_slo
    assert lines["chain:"].endswith("bypassed: ensemble: its steps are scheduled by Triton")
    status, out = _run("check", path, "--online")
    assert status == 0, out


def test_its_comments_are_configuration_once_they_are_none_any_more(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    assert _run("init", "--triton", _flag(triton), "-o", path)[0] == 0
    text = path.read_text()
    head, models = text.split("# models:\n")
    path.write_text(head + "models:\n" + models.replace("#   ", "  "))
    config = read_config(path)
    assert config.models["echo"].slo_ms == 100
    assert config.models["chain"].slo_ms is None
    assert _run("check", path, "--online")[0] == 0
    fields = ("listen", "policy")
    path.write_text("\n".join(line.removeprefix("# ") for line in text.splitlines() if _is_field(line, fields)))
    assert yaml.safe_load(path.read_text()) == {
        "listen": {"grpc": "0.0.0.0:8101", "http": "0.0.0.0:8100", "metrics": "127.0.0.1:8102"},
        "policy": "symphony",
    }


def _is_field(line: str, fields: tuple[str, ...]) -> bool:
    return any(line.startswith(f"# {field}:") for field in fields)


def test_a_file_that_is_there_stays_unless_it_is_to_go(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("mine")
    status, out = _run("init", "--triton", _flag(triton), "-o", path)
    assert status == 1
    assert "is there already: replace it with --force" in out
    assert path.read_text() == "mine"
    assert _run("init", "--triton", _flag(triton), "-o", path, "--force")[0] == 0
    assert path.read_text() != "mine"


def test_it_is_printed_if_asked_for(triton: EmbeddedTriton) -> None:
    status, out = _run("init", "--triton", _flag(triton), "-o", "-")
    assert status == 0
    assert yaml.safe_load(out)["tritons"][0]["grpc"] == triton.grpc_address


def test_a_triton_that_cannot_be_asked(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    status, out = _run("init", "--triton", triton.http_address, "-o", path)
    assert status == 1
    assert "that is its HTTP port" in out
    assert not path.exists()
    assert "is not HOST:PORT" in _run("init", "--triton", "nowhere", "-o", path)[1]
    assert _run("init", "-o", path)[0] == 2
    assert "there is no folder" in _run("init", "--triton", _flag(triton), "-o", tmp_path / "absent" / "new.yaml")[1]


def test_a_triton_that_speaks_tls_and_asks_for_a_certificate_of_ours(
    tmp_path: Path, start_triton: Callable[..., EmbeddedTriton]
) -> None:
    authority = trustme.CA()
    ca, pem, key = (tmp_path / name for name in ("ca.pem", "me.pem", "me.key"))
    authority.cert_pem.write_to_path(ca)
    issued = authority.issue_cert("triton.example")
    issued.cert_chain_pems[0].write_to_path(pem)
    issued.private_key_pem.write_to_path(key)
    (tmp_path / "models").mkdir()
    files = [f"--grpc-server-cert={pem}", f"--grpc-server-key={key}", f"--grpc-root-cert={ca}"]
    options = ["--model-control-mode=explicit", "--grpc-use-ssl-mutual=1", *files]
    secure = start_triton([tmp_path / "models"], options=options)
    path = tmp_path / "new.yaml"
    asked = ["init", "--triton", _flag(secure), "-o", path]
    assert "TLS is spoken there: say so in tritons.N.tls, e.g. {ca: ca.pem}, or with --tls-ca" in _run(*asked)[1]
    trusting = [*asked, "--tls-ca", ca, "--tls-server-name", "triton.example"]
    status, out = _run(*trusting)
    assert status == 1
    assert "it asks for a certificate of ours" in out
    assert not path.exists()
    other = trustme.CA().issue_cert("somebody")
    other.private_key_and_cert_chain_pem.write_to_path(tmp_path / "other.pem")
    stranger = ("--tls-cert", tmp_path / "other.pem", "--tls-key", tmp_path / "other.pem")
    assert "it does not take our certificate" in _run(*trusting, *stranger)[1]
    status, out = _run(*trusting, "--tls-cert", pem, "--tls-key", key)
    assert status == 0, out
    (written,) = yaml.safe_load(path.read_text())["tritons"]
    assert written["tls"] == {"ca": "ca.pem", "cert": "me.pem", "key": "me.key", "server_name": "triton.example"}
    assert "tidegate profile --triton " + secure.grpc_address + " --tls-ca ... -o" in path.read_text()
    assert _run("check", path, "--online")[0] == 0
    tls = ("--tls-ca", ca, "--tls-server-name", "triton.example", "--tls-cert", pem, "--tls-key", key)
    assert _run("doctor", "--triton", _flag(secure), *tls)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    elsewhere = tmp_path / "elsewhere" / "new.yaml"
    assert _run("init", "--triton", _flag(secure), "-o", elsewhere, *tls)[0] == 0
    assert yaml.safe_load(elsewhere.read_text())["tritons"][0]["tls"]["ca"] == str(ca)
    secure.stop()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls-ca", "absent.pem"], "--tls-ca: there is no file"),
        (["--tls-key", __file__], "--tls: cert and key go together: give both or neither"),
        (["--tls-ca", __file__], "there are no certificates in PEM form in it"),
    ],
)
def test_what_is_wrong_with_tls_names_the_flag_or_the_file(flags: list[str], says: str, tmp_path: Path) -> None:
    status, out = _run("init", "--triton", "127.0.0.1:1", "-o", tmp_path / "new.yaml", *flags)
    assert status == 1
    assert says in out


def test_tls_of_no_triton_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("tritons: [127.0.0.1:1]\n")
    status, out = _run("doctor", tmp_path / "a.yaml", "--tls")
    assert status == 2
    assert "a configuration has it in tritons[].tls" in out


def test_a_service_at_which_no_server_listens_is_left_out(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    assert _run("init", "--triton", f"{triton.grpc_address},http=127.0.0.1:1", "-o", path)[0] == 0
    assert read_config(path).tritons[0].http is None


def test_it_is_served_as_it_is(
    triton: EmbeddedTriton, tmp_path: Path, start_tidegate: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    path = tmp_path / "new.yaml"
    assert _run("init", "--triton", _flag(triton), "-o", path)[0] == 0
    tidegate = start_tidegate([], config=path)
    row = np.ones((1, 3), np.float32)
    answer = connect(tidegate).infer("echo", tensors({"X": row}))
    np.testing.assert_array_equal(answer.as_numpy("Y"), row)


def test_a_configuration_is_an_argument_of_serve_or_an_option_of_it_and_not_both(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(serve)
    (tmp_path / "a.yaml").write_text("tritons: [a:1]\noops: 1\n")
    runner, path = CliRunner(), str(tmp_path / "a.yaml")
    outputs = {runner.invoke(app, arguments).output for arguments in ([path], ["--config", path])}
    assert len(outputs) == 1
    assert "oops: there is no such field" in outputs.pop()
    both = runner.invoke(app, [path, "--config", path])
    assert both.exit_code == 2


def test_models_of_a_repository_that_mix_rows_run_alone(
    tmp_path: Path, start_triton: Callable[..., EmbeddedTriton]
) -> None:
    """A repository that others wrote, whose models consent to be merged."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    nodes = {
        "rows": helper.make_node("Softmax", ["x"], ["y"], axis=1),
        "steps": helper.make_node("Softmax", ["x"], ["y"], axis=0),
        "blind": helper.make_node("Clip", ["x", "much"], ["y"]),
    }
    much = numpy_helper.from_array(np.array(1e9, np.float32), "much")
    for name, node in nodes.items():
        graph = helper.make_graph([node], name, values[:1], values[1:], [much] if name == "blind" else [])
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(model, tmp_path / "whole.onnx")
        generate_model(tmp_path / "whole.onnx", tmp_path / "models", name=name, max_batch=0)
        config = (tmp_path / "models" / name / "config.pbtxt").read_text().replace("dims: [-1, 4]", "dims: [4]")
        consent = 'max_batch_size: 4\nparameters { key: "tidegate_scheduling" value { string_value: "batched" } }\n'
        (tmp_path / "models" / name / "config.pbtxt").write_text(config + consent)
    triton = start_triton([tmp_path / "models"])
    asked = ["--triton", _flag(triton), "--repository", tmp_path / "models"]
    path = tmp_path / "new.yaml"
    status, out = _run("init", *asked, "-o", path)
    assert status == 0, out
    alone = {name: each.scheduling for name, each in read_config(path).models.items()}
    assert alone == {"blind": "unbatched", "steps": "unbatched"}
    assert "merged, its requests change each other's answers: node 'y' (Softmax) mixes rows" in path.read_text()
    assert "merged, its requests may change each other's answers: output 'y' was the same for all" in path.read_text()
    status, out = _run("doctor", *asked)
    assert status == 1
    assert (
        "models.steps.scheduling: its requests are merged, and change each other's answers: node 'y' (Softmax)" in out
    )
    assert "models.blind.scheduling: its requests are merged, and it is not shown that its rows are independent" in out
    assert "models.rows.scheduling" not in out
    status, out = _run("doctor", path, "--repository", tmp_path / "models")
    assert status == 0, out
    assert _run("doctor", *asked[:2], "--repository", tmp_path / "absent")[0] == 2
