"""Frontends and shards started separately, as pods are: over TCP, with proof, and restarted one by one under load."""

import asyncio
import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import trustme
import yaml
from tritonclient.utils import InferenceServerException

from tests.conftest import eventually, unused_port
from tests.forked import Forked
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.frontends.address import FrontendHandshake, ShardHandshake
from tidegate_proxy.frontends.link import Link

Make = Callable[..., Any]
ROW = np.array([[1.0, 2.0]], np.float32)


class Process:
    """A part of a deployment."""

    def __init__(self, forked: Forked) -> None:
        self.forked = forked

    def said(self) -> str:
        return "".join((self.forked.folder / name).read_text() for name in ("out", "errors"))

    def end(self) -> None:
        """Whatever state it is in."""
        self.forked.kill()
        self.forked.wait(60)
        shutil.rmtree(self.forked.folder, ignore_errors=True)

    def stop(self) -> None:
        """As kubelet does."""
        self.forked.send_signal(15)
        assert self.forked.wait(60) == 0, self.said()


@pytest.fixture
def start(fork_tidegate: Make, at_the_end: Make, tmp_path: Path) -> Callable[..., Process]:
    """`start("--role", "frontend", says="gRPC")`: a `tidegate serve` in that role, once it has said so."""

    def begin(*arguments: str, says: str = "", config: str = "tidegate.yaml") -> Process:
        process = Process(fork_tidegate([str(tmp_path / config), *arguments]))
        at_the_end(process.end)
        eventually(lambda: says in process.said() or process.forked.poll() is not None, f"it to say {says!r}")
        assert process.forked.poll() is None, process.said()
        return process

    return begin


@pytest.fixture
def ports() -> list[int]:
    """Three that are free."""
    return [unused_port() for _ in range(3)]


def write(folder: Path, tritons: list[Any], ports: list[int], secret: str = "0123456789abcdef", name: str = "") -> None:
    (folder / f"secret{name}").write_text(secret)
    document = {
        "shards": [
            {"tritons": [triton.grpc_address], "address": f"127.0.0.1:{port}", "listen": f"127.0.0.1:{port}"}
            for triton, port in zip(tritons, ports, strict=False)
        ],
        "frontends": 1,
        "shard_links": {"secret_file": f"secret{name}", "reconnect_timeout_s": 30},
        "policy": "fifs",
        "listen": {"grpc": f"127.0.0.1:{ports[2]}", "http": None, "metrics": None, "reuse_port": True},
    }
    (folder / f"tidegate{name}.yaml").write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def pair(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two Tritons with a model each."""
    tritons = []
    for name in ("ant", "cat"):
        repository = tmp_path_factory.mktemp("models")
        add_model(repository, name, "max_batch_size: 4")
        tritons.append(start_triton([repository]))
    return tritons


@pytest.mark.slow
def test_either_is_restarted_under_load_and_no_request_is_lost(
    start: Make, pair: list[Any], ports: list[int], tmp_path: Path
) -> None:
    write(tmp_path, pair, ports)
    parts = [start("--role", "shard", "--shard", str(number), says="shard") for number in range(2)]
    frontends = [start("--role", "frontend", says="gRPC") for _ in range(2)]
    answered: dict[str, int] = {"ant": 0, "cat": 0}
    failures, stop = [], threading.Event()

    def ask(name: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{ports[2]}", channel_args=options) as client:
            while not stop.is_set():
                try:
                    client.infer(name, tensors({"X": ROW}), client_timeout=60)
                    answered[name] += 1
                except InferenceServerException as error:
                    failures.append(f"{name}: {error}")

    def are_served() -> None:
        before = dict(answered)
        eventually(lambda: all(answered[name] > before[name] + 20 for name in answered), "both models to be answered")

    clients = [threading.Thread(target=ask, args=(name,)) for name in answered for _ in range(2)]
    for client in clients:
        client.start()
    try:
        are_served()
        for number in range(2):  # a StatefulSet: the old one ends before the new one begins
            parts[number].stop()
            parts[number] = start("--role", "shard", "--shard", str(number), says="shard")
            are_served()
        for number in range(2):  # a Deployment: the new one is ready before the old one ends
            newer = start("--role", "frontend", says="gRPC")
            frontends[number].stop()
            frontends[number] = newer
            are_served()
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert failures == []
    for part in (*frontends, *parts):
        part.stop()


def is_ready(client: triton_grpc.InferenceServerClient) -> bool:
    try:
        return bool(client.is_model_ready("ant"))
    except InferenceServerException:
        return False


def test_a_frontend_hears_where_a_shard_is_now(start: Make, pair: list[Any], ports: list[int], tmp_path: Path) -> None:
    there, elsewhere, clients = ports
    write(tmp_path, pair[:1], [there, elsewhere, clients])
    shard = start("--role", "shard", "--shard", "0", says="shard")
    frontend = start("--role", "frontend", says="gRPC")
    write(tmp_path, pair[:1], [elsewhere, there, clients])
    shard.forked.kill()  # as its machine does
    start("--role", "shard", "--shard", "0", says="shard")
    frontend.forked.send_signal(signal.SIGHUP)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{clients}") as client:
        eventually(
            lambda: f"shard moved (shard=0, address=127.0.0.1:{elsewhere}" in frontend.said(),
            "the frontend to have heard of it",
        )
        eventually(lambda: is_ready(client), "the frontend to have found it")
        assert client.infer("ant", tensors({"X": ROW})).as_numpy("Y").tolist() == ROW.tolist()


def test_who_does_not_know_the_secret_is_asked_nothing(
    start: Make, pair: list[Any], ports: list[int], tmp_path: Path
) -> None:
    write(tmp_path, pair, ports)
    write(tmp_path, pair, ports, secret="another secret, which is wrong", name="2")
    start("--role", "shard", "--shard", "0", says="shard")
    frontend = start("--role", "frontend", config="tidegate2.yaml")
    eventually(lambda: "shard refused the connection" in frontend.said(), "the frontend to be refused")
    with socket.create_connection(("127.0.0.1", ports[0])) as stranger:
        stranger.settimeout(60)
        assert len(stranger.recv(1000)) == 9 + 32, "a number to answer"
        stranger.sendall(b"\x02" + bytes(8))  # a call
        assert stranger.recv(1000) == b"", "it is sent away"


@pytest.mark.slow
def test_with_tls_both_show_certificates_of_one_authority(
    start: Make, pair: list[Any], ports: list[int], tmp_path: Path
) -> None:
    write(tmp_path, pair[:1], ports)
    document = yaml.safe_load((tmp_path / "tidegate.yaml").read_text())
    for name, authority in (("own", trustme.CA()), ("other", trustme.CA())):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.crt")
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        authority.cert_pem.write_to_path(tmp_path / f"{name}.ca")
        tls = {"cert": f"{name}.crt", "key": f"{name}.key", "ca": f"{name}.ca"}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**document, "shard_links": {"tls": tls}}))
    start("--role", "shard", "--shard", "0", says="shard", config="own.yaml")
    stranger = start("--role", "frontend", config="other.yaml")
    start("--role", "frontend", says="gRPC", config="own.yaml")
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{ports[2]}") as client:
        assert client.infer("ant", tensors({"X": ROW})).as_numpy("Y").tolist() == ROW.tolist()
    eventually(lambda: "shard unreachable" in stranger.said(), "the other to be refused")
    assert "gRPC" not in stranger.said()


def test_shards_for_other_machines_must_be_secured(fork_tidegate: Make, pair: list[Any], tmp_path: Path) -> None:
    document = {"shards": [{"tritons": [pair[0].grpc_address], "address": "127.0.0.1:9"}], "frontends": 1}
    (tmp_path / "open.yaml").write_text(json.dumps(document))
    process = Process(fork_tidegate([str(tmp_path / "open.yaml"), "--role", "shard", "--shard", "0"]))
    assert process.forked.wait(60) == 1
    assert "set shard_links.secret_file, shard_links.tls or both" in " ".join(process.said().split())
    process.end()


class _Pipe:
    """What one end of a link writes, until it is given to the other."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_cut = False

    def is_closing(self) -> bool:
        return self.is_cut

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_cut = True


@pytest.mark.parametrize(("secret", "is_let_in"), [(b"the same", True), (b"another", False)])
def test_a_secret_is_proven_by_both_and_never_sent(secret: bytes, is_let_in: bool) -> None:
    went_on: list[Link] = []

    async def shake_hands() -> list[bytes]:
        frontend = Link(lambda link: FrontendHandshake(link, secret, went_on.append, lambda: None))  # type: ignore[arg-type]
        shard = Link(lambda link: ShardHandshake(link, b"the same", went_on.append))  # type: ignore[arg-type]
        of_frontend, of_shard = _Pipe(), _Pipe()
        frontend.connection_made(of_frontend)  # type: ignore[arg-type]
        shard.connection_made(of_shard)  # type: ignore[arg-type]
        sent = []
        while of_frontend.written or of_shard.written:
            for pipe, other in ((of_shard, frontend), (of_frontend, shard)):
                for data in [pipe.written.pop(0) for _ in tuple(pipe.written)]:
                    sent.append(data)
                    other.data_received(data)
        assert of_shard.is_cut is not is_let_in
        return sent

    sent = asyncio.run(shake_hands())
    assert len(went_on) == 2 * is_let_in
    assert secret not in b"".join(sent)
