"""`tidegate doctor` before a real Triton with a model of every sort, and before what is none."""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import typer
import yaml
from typer.testing import CliRunner

from tests.conftest import unused_port
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.app.doctor import triton_queries
from tidegate_proxy.commands.doctor import doctor
from tidegate_proxy.tritons import restrictions
from tidegate_proxy.tritons.embedded import EmbeddedTriton

APP = typer.Typer()
APP.command()(doctor)


def _run(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was printed."""
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def _write(folder: Path, triton: EmbeddedTriton, **fields: Any) -> Path:
    addresses = {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
    path = folder / "tidegate.yaml"
    path.write_text(yaml.safe_dump({"tritons": [addresses], **fields}))
    return path


def _findings(*arguments: object) -> dict[str, tuple[str, str]]:
    """Severity and sentence, by the place and the rule."""
    status, out = _run(*arguments, "--json")
    document = json.loads(out)
    assert status == (0 if document["ok"] else 1)
    return {
        f"{finding['where']} {finding['rule']}": (finding["severity"], finding["what"])
        for finding in document["findings"]
    }


def test_every_model_has_a_line_however_long(triton: EmbeddedTriton, tmp_path: Path) -> None:
    status, out = _run(_write(tmp_path, triton, models={"echo": {"slo_ms": 500, "on_deadline_miss": "serve"}}))
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert status == 0
    assert lines["echo"].split()[1:6] == ["batched", "4", "500", "ms", "answered"]
    assert lines["echo"].endswith("tidegate_scheduling of its config says so")
    assert lines["flat"].split()[1] == "bypassed"
    assert lines["chain"].endswith("ensemble: its steps are scheduled by Triton")
    assert "sequence_batching: requests of one sequence belong to one instance, in order" in lines["counter"]
    assert all(line == line.rstrip() for line in out.splitlines())


def test_an_slo_that_no_request_can_keep_is_found_by_a_profile(triton: EmbeddedTriton, tmp_path: Path) -> None:
    point = {"rows": 1, "median_ms": 30, "p95_ms": 40, "samples": 9}
    profile = {"model": "echo", "alpha_ms": 0, "beta_ms": 1, "points": [point]}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": [profile]}))
    path = _write(tmp_path, triton, models={"echo": {"slo_ms": 5}}, profiles="profiles.json")
    severity, what = _findings(path)["models.echo.slo_ms slo-too-short"]
    assert severity == "error"
    assert what.startswith("5 ms are less than the 30 ms that one row takes")


def test_strict_minds_warnings(triton: EmbeddedTriton, tmp_path: Path) -> None:
    path = _write(tmp_path, triton, models={"echo": {"slo_ms": 500}})
    assert _findings(path)["models echo, patient no-profile"][0] == "warning"
    assert _run(path)[0] == 0
    assert _run(path, "--strict")[0] == 1


def test_a_misspelt_model_has_a_neighbor(triton: EmbeddedTriton, tmp_path: Path) -> None:
    status, out = _run(_write(tmp_path, triton, models={"ecoh": {"slo_ms": 5}}))
    assert status == 1
    assert "error: models.ecoh: no Triton has a model of this name, so that `serve` does not start; did you mean" in out
    assert "'echo'?" in out


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ("http", "that is its HTTP port"),
        ("metrics", "that is its metrics port"),
        ("nobody", "does it run, and is this its gRPC port?"),
    ],
)
def test_another_port_than_that_of_grpc(triton: EmbeddedTriton, service: str, says: str) -> None:
    nobody = f"127.0.0.1:{unused_port()}"
    address = {"http": triton.http_address, "metrics": triton.metrics_address, "nobody": nobody}[service]
    status, out = _run("--triton", address)
    assert status == 1
    assert f"tritons.0.grpc: no Triton is ready at {address}: {says}" in out


def test_a_user_who_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_proxy.tritons.backend.ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr("tidegate_proxy.app.doctor.triton_queries.REACHED_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        document = {"tritons": [address], "limits": {"health_timeout_s": 0.1}}
        (tmp_path / "tidegate.yaml").write_text(yaml.safe_dump(document))
        status, out = _run(tmp_path / "tidegate.yaml")
    assert status == 1
    assert "the server there does not speak gRPC as a Triton does" in out


def test_a_host_that_there_is_not() -> None:
    assert "there is no host 'nobody.invalid'" in _run("--triton", "nobody.invalid:1")[1]


def test_a_configuration_that_is_none_and_one_that_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("tritons: [a:1]\noops: 1\n")
    status, out = _run(tmp_path / "wrong.yaml", "--json")
    assert status == 1
    assert [finding["where"] for finding in json.loads(out)["findings"]] == ["oops"]
    assert _run()[0] == 2


def test_tls_where_one_of_both_does_not_speak_it(
    tmp_path: Path, start_triton: Callable[..., EmbeddedTriton], triton: EmbeddedTriton
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "other").write_bytes(stranger.cert_pem.bytes())
    (tmp_path / "models").mkdir()
    options = ["--model-control-mode=explicit", "--grpc-use-ssl=1"]
    options += [f"--grpc-server-cert={tmp_path / 'cert'}", f"--grpc-server-key={tmp_path / 'key'}"]
    secure = start_triton([tmp_path / "models"], options=options)

    def said(grpc: str, tls: dict[str, str] | None) -> str:
        (tmp_path / "t.yaml").write_text(
            yaml.safe_dump({"tritons": [{"grpc": grpc, "tls": tls}], "listen": "127.0.0.1:0"})
        )
        return _run(tmp_path / "t.yaml")[1]

    assert "TLS is spoken there: say so in tritons.N.tls" in said(secure.grpc_address, None)
    assert "its certificate is not trusted" in said(secure.grpc_address, {"ca": "other"})
    assert "TLS is not spoken there" in said(triton.grpc_address, {"ca": "ca"})
    assert "nothing needs attention" in said(secure.grpc_address, {"ca": "ca"})
    secure.stop()


def test_two_tritons_a_model_that_does_not_load_and_a_start_that_says_so(
    tmp_path: Path, start_triton: Callable[..., EmbeddedTriton], start_tidegate: Callable[..., Any]
) -> None:
    tritons = []
    for number, config in enumerate(("max_batch_size: 4", "max_batch_size: 8")):
        repository = tmp_path / f"models{number}"
        add_model(repository, "shared", config)
        add_model(repository, "sad", config).joinpath("model.py").write_text("raise ImportError('no torch')")
        lenient = ["--exit-on-error=false", "--strict-readiness=false"]
        tritons.append(start_triton([repository], options=lenient))
    path = tmp_path / "tidegate.yaml"
    path.write_text(yaml.safe_dump({"tritons": [each.grpc_address for each in tritons], "listen": "127.0.0.1:0"}))
    found = _findings(path)
    severity, what = found["model shared disagreement"]
    assert severity == "warning"
    assert "batches are no larger than all of them take" in what
    severity, what = found["model sad not-loaded"]
    assert severity == "error"
    assert "no torch" in what
    tidegate = start_tidegate(tritons)
    assert "WARNING configuration finding: model sad: Triton at" in tidegate.log
    for each in tritons:
        each.stop()


DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.mark.parametrize(
    ("words", "fields", "found"),
    [
        (DISABLED, {}, True),
        (DISABLED, {"share_memory": False}, False),
        ("", {}, False),
        ("Method not found!", {}, False),
    ],
)
def test_a_triton_that_shares_no_memory_is_found(
    words: str, fields: dict[str, Any], found: bool, start_fake: Callable[..., Any], tmp_path: Path
) -> None:
    fake = start_fake(lambda _request, _context: b"")
    if words:
        fake.refusals["SystemSharedMemoryUnregister"] = (grpc.StatusCode.UNIMPLEMENTED, words)
    path = tmp_path / "tidegate.yaml"
    path.write_text(yaml.safe_dump({"tritons": [{"grpc": fake.address, **fields}], "listen": {"grpc": "127.0.0.1:0"}}))
    findings = _findings(path)
    assert ("tritons.0 shared-memory-refused" in findings) is found
    if found:
        severity, what = findings["tritons.0 shared-memory-refused"]
        assert severity == "warning"
        assert DISABLED in what
        assert "throughput" in what


def test_a_triton_that_shares_memory_is_not_found(triton: EmbeddedTriton, tmp_path: Path) -> None:
    assert not [name for name in _findings(_write(tmp_path, triton)) if "shared-memory" in name]


def test_a_source_that_lists_nothing_is_an_error_unless_other_tritons_are_named(
    triton: EmbeddedTriton, tmp_path: Path
) -> None:
    (tmp_path / "list.yaml").write_text("[]")
    path = tmp_path / "tidegate.yaml"
    for tritons, expected in ([], "error"), ([triton.grpc_address], "warning"):
        path.write_text(
            yaml.safe_dump({"tritons": tritons, "discovery": [{"file": "list.yaml"}], "listen": "127.0.0.1:0"})
        )
        severity, what = _findings(path)["discovery source-unreadable"]
        assert (severity, what.rpartition(": ")[2]) == (expected, "it lists no Triton; is one ready?")


def test_a_tidegate_is_told_from_a_triton(triton: EmbeddedTriton, start_tidegate: Callable[..., Any]) -> None:
    tidegate = start_tidegate([triton])
    severity, what = _findings("--triton", tidegate.address)["tritons.0.grpc not-a-triton"]
    assert (severity, what.split(" at ")[0]) == ("warning", "a Tidegate answers")
    assert "tritons.0.grpc not-a-triton" not in _findings("--triton", triton.grpc_address)


def test_profiles_may_be_named_without_a_configuration(triton: EmbeddedTriton, tmp_path: Path) -> None:
    point = {"rows": 1, "median_ms": 30, "p95_ms": 40, "samples": 9}
    profile = {"model": "patient", "alpha_ms": 0, "beta_ms": 1, "points": [point]}
    (tmp_path / "p.json").write_text(json.dumps({"profiles": [profile]}))
    without, given = (
        {place for place in _findings("--triton", triton.grpc_address, *profiles) if "patient" in place}
        for profiles in ((), ("--profiles", tmp_path / "p.json"))
    )
    assert without - given == {"model patient no-profile"}


def test_a_grpc_port_in_place_of_the_http_port(triton: EmbeddedTriton) -> None:
    status, out = _run("--triton", f"{triton.grpc_address},http={triton.grpc_address}")
    assert status == 1
    assert f"error: tritons.0.http: no HTTP is spoken at {triton.grpc_address}: give its HTTP port" in out
    assert "restricts" not in out


def test_a_server_that_hangs_or_speaks_tls_is_no_other_port(
    triton: EmbeddedTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        return None

    async def listens(*_: object) -> bool:
        return True

    monkeypatch.setattr(restrictions, "_asked", silent)
    monkeypatch.setattr(restrictions, "_listens", listens)
    with socket.create_server(("127.0.0.1", 0)) as hanging, monkeypatch.context() as patch:
        patch.setattr(triton_queries, "REACHED_WITHIN_S", 0.2)
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        out = _run("--triton", f"{triton.grpc_address},http={address}")[1]
        assert f"error: tritons.0.http: the server at {address} did not answer over HTTP within 0.2 s" in out
        assert "no HTTP is spoken" not in out

    async def why_with_tls() -> tuple[str, str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("localhost").configure_cert(context)
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return address, await triton_queries.why_no_http(address)

    address, why = asyncio.run(why_with_tls())
    assert why.startswith(f"TLS is spoken at {address}: ")
