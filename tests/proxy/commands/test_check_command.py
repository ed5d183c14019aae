"""`tidegate check`: what it prints, what it finds wrong, and what the Tritons add to that."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trustme
import typer
import yaml
from typer.testing import CliRunner

from tests.conftest import unused_port
from tidegate_proxy.commands.check import check
from tidegate_proxy.tritons.embedded import EmbeddedTriton

APP = typer.Typer()
APP.command()(check)


def _run(*arguments: object) -> tuple[int, str, str]:
    """Exit status, what was printed, and what was said as an error, in one line."""
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


def _write(folder: Path, **fields: Any) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(yaml.safe_dump({"tritons": ["127.0.0.1:9"], **fields}))
    return path


def _json(*arguments: object) -> Any:
    status, out, errors = _run(*arguments, "--json")
    document = json.loads(out)
    assert (status, errors) == (0 if document["ok"] else 1, "")
    return document


def test_http_that_is_to_be_served_needs_the_http_port_of_every_triton(tmp_path: Path) -> None:
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    status, _, errors = _run(_write(tmp_path, tritons=["a:8001", "b:18001"], listen=listen))
    assert status == 1
    assert "tritons.1.http" in errors
    assert "tritons.0" not in errors
    assert _run(_write(tmp_path, tritons=["b:18001"], listen={"grpc": "127.0.0.1:0"}))[0] == 0
    assert _run(_write(tmp_path, tritons=["b:18001"]))[0] == 0, "then it is not served, which is logged"


def test_it_ends_in_one_line(tmp_path: Path) -> None:
    path = _write(tmp_path, policy={"name": "fifs"}, tritons=["a:8001", "b:8001"])
    assert _run(path) == (0, f"{path}: valid (2 Tritons, policy fifs)\n", "")


def test_a_policy_that_is_not_installed_is_named_beside_other_errors(tmp_path: Path) -> None:
    for policy in ({"name": "symphonie"}, "symphonie"):
        status, out, errors = _run(_write(tmp_path, policy=policy, limits={"max_queue_size": "many"}))
        assert (status, out) == (1, "")
        assert "limits.max_queue_size" in errors
        assert "policy.name" in errors


def test_it_prints_the_configuration_with_every_default(tmp_path: Path) -> None:
    path = _write(tmp_path, policy={"name": "fifs"}, tritons=["[::1]:8001"])
    status, out, errors = _run(path, "--print-config")
    assert (status, errors) == (0, "")
    resolved = yaml.safe_load(out)
    assert resolved["policy"] == {"name": "fifs", "options": {}}
    assert resolved["tritons"] == [
        {
            "grpc": "[::1]:8001",
            "http": "[::1]:8000",
            "metrics": "[::1]:8002",
            "tls": None,
            "worker": None,
            "device_class": None,
            "serialize_models": None,
            "model_memory": None,
            "share_memory": None,
            "headers": {},
            "http_header_forward_pattern": None,
            "grpc_header_forward_pattern": None,
        }
    ]
    assert resolved["drain_timeout_s"] == 20


def test_what_it_prints_is_a_configuration(tmp_path: Path) -> None:
    _, out, _ = _run(_write(tmp_path, tritons=["a:8001"], limits={"max_queue_bytes": "1GiB"}), "--print-config")
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert _run(again, "--print-config") == (0, out, "")


def test_everything_that_it_names_is_tried(tmp_path: Path) -> None:
    for name in ("nonsense", "cert", "key"):
        (tmp_path / name).write_text("nonsense\n")
    (tmp_path / "empty").touch()
    path = _write(
        tmp_path,
        tritons=[{"grpc": "a:1", "tls": {"ca": "nonsense"}}],
        policy={"name": "symphony", "options": {"nope": 1, "deadline_margin_ms": -5}},
        observers=["nope"],
        profiles="nonsense",
        event_log="nowhere/log",
        tls={"cert": "cert", "key": "key"},
        authentication={"tokens_file": "empty"},
        restricted=[{"apis": ["trace"], "header": {"name": "x", "value_file": "empty"}}],
    )
    document = _json(path)
    said = {error["where"]: error["what"] for error in document["errors"]}
    assert set(said) == {
        *(
            "tritons.0.tls",
            "policy.options.nope",
            "policy.options.deadline_margin_ms",
            "observers.0.name",
            "profiles",
            "event_log",
        ),
        *("tls", "authentication", "restricted.0"),
    }
    assert said["policy.options.nope"].startswith("there is no such field; there are: ")
    assert said["event_log"] == f"there is no folder {tmp_path / 'nowhere'}"
    status, _, errors = _run(path)
    assert status == 1
    assert errors.startswith(f"error: {path}: policy.options.")
    assert all(f"{where}: {' '.join(what.split())}" in errors for where, what in said.items())


def test_a_package_that_serving_would_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = {"endpoint": "http://collector:4317"}
    assert _json(_write(tmp_path, tracing=tracing))["ok"]
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    (error,) = _json(_write(tmp_path, tracing=tracing))["errors"]
    assert error["where"] == "tracing"
    assert "pip install 'tidegate-proxy[tracing]'" in error["what"]


def test_a_policy_that_is_not_installed(tmp_path: Path) -> None:
    (error,) = _json(_write(tmp_path, policy="[/nope]"))["errors"]
    assert error["where"] == "policy.name"
    assert "no policy named '[/nope]' is installed; installed: " in error["what"]


def test_what_is_no_configuration(tmp_path: Path) -> None:
    document = _json(_write(tmp_path, seed=-1, oops=1))
    assert [error["where"] for error in document["errors"]] == ["seed", "oops"]
    assert document["config"] is None
    status, out, errors = _run(_write(tmp_path, seed=-1, oops=1))
    assert (status, out) == (1, "")
    assert "seed: must be at least 0, not -1 oops: there is no such field" in errors
    assert _run(tmp_path / "nope")[0] == 1
    assert _run()[0] == 2


def test_what_works_and_is_likely_not_meant(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("tok\n")
    document = _json(_write(tmp_path, limits={"keepalive_s": 60}, authentication={"tokens_file": "tokens"}))
    assert document["ok"]
    assert [warning["where"] for warning in document["warnings"]] == ["limits.keepalive_s", "tls"]
    status, _, errors = _run(_write(tmp_path, limits={"keepalive_s": 60}))
    assert status == 0
    assert errors.startswith("warning: limits.keepalive_s: a Triton ends connections that are pinged more often")


def test_the_schema_is_one(tmp_path: Path) -> None:
    status, out, _ = _run("--schema")
    assert status == 0
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(_write(tmp_path, policy="fifs").read_text()), schema)


def test_online_a_profile_that_fits_no_request_is_a_warning(tmp_path: Path, triton: EmbeddedTriton) -> None:
    point = {"rows": 1, "median_ms": 1, "p95_ms": 1, "samples": 9}
    profiles = [
        {"model": "echo", "shape": shape, "alpha_ms": 0, "beta_ms": 1, "points": [point]} for shape in ("X:3", "Z:3")
    ]
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": profiles}))
    addresses = {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
    document = _json(_write(tmp_path, tritons=[addresses], profiles="profiles.json"), "--online")
    assert document["ok"], document["errors"]
    (what,) = [warning["what"] for warning in document["warnings"] if warning["where"] == "profiles"]
    assert "no request of 'echo' has the shape 'Z:3', which was measured: what varies in them is X:-1" in what


def test_online_the_tritons_say_what_they_serve(tmp_path: Path, triton: EmbeddedTriton) -> None:
    addresses = {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
    path = _write(
        tmp_path,
        tritons=[addresses],
        models={"echo": {"slo_ms": 5, "scheduling": "unbatched"}, "repeater": {"scheduling": "batched"}},
    )
    document = _json(path, "--online")
    assert document["ok"], document["errors"]
    (report,) = document["tritons"]
    said = {name: model["scheduling"] for name, model in report["models"].items()}
    assert said.items() >= {"echo": "unbatched", "mixer": "batched", "flat": "bypass", "counter": "bypass"}.items()
    assert report["models"]["echo"]["why"] == "the configuration says so"
    warned = {warning["where"]: warning["what"] for warning in document["warnings"]}
    assert "cannot be scheduled (scheduling: batched): decoupled" in warned["models.repeater"]
    status, out, _ = _run(path, "--online")
    assert status == 0
    assert "unbatched: echo (the configuration says so)" in out
    assert "batched: gated, mixer, patient, picky, watchful (tidegate_scheduling of its config says so)" in out
    assert "bypassed: flat (max_batch_size is 0: the model has no batch dimension)" in out


def test_online_all_that_cannot_be_reached_is_named(tmp_path: Path, triton: EmbeddedTriton) -> None:
    nobody = f"127.0.0.1:{unused_port()}"
    reached = {"grpc": triton.grpc_address, "http": nobody}
    document = _json(_write(tmp_path, tritons=[nobody, reached]), "--online")
    assert [(error["where"], error["what"]) for error in document["errors"]] == [
        ("tritons.0.grpc", f"no Triton is ready at {nobody}: does it run, and is this its gRPC port?"),
        ("tritons.1.http", f"no server listens at {nobody}; null stands for a Triton without it"),
    ]
    assert [report["answers"] for report in document["tritons"]] == [False, True]


def test_online_an_slo_of_a_model_that_tidegate_does_not_schedule(tmp_path: Path, triton: EmbeddedTriton) -> None:
    path = _write(tmp_path, tritons=[triton.grpc_address], models={"flat": {"slo_ms": 5}})
    (error,) = _json(path, "--online")["errors"]
    assert error["where"] == "models.flat.slo_ms"
    assert "its requests are not scheduled (max_batch_size is 0" in error["what"]


def test_online_a_triton_that_speaks_tls(tmp_path: Path, start_triton: Callable[..., EmbeddedTriton]) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "models").mkdir()
    options = ["--model-control-mode=explicit", "--grpc-use-ssl=1"]
    options += [f"--grpc-server-cert={tmp_path / 'cert'}", f"--grpc-server-key={tmp_path / 'key'}"]
    triton = start_triton([tmp_path / "models"], options=options)
    with_tls = {"grpc": triton.grpc_address, "tls": {"ca": "ca"}}
    assert _json(_write(tmp_path, tritons=[with_tls]), "--online")["ok"]
    assert not _json(_write(tmp_path, tritons=[triton.grpc_address]), "--online")["ok"]
    triton.stop()


@pytest.mark.parametrize("option", ["--online", "--json", "--schema"])
def test_help_names_every_option(option: str) -> None:
    assert option in _run("--help")[1]
