"""Proxies in C that relay gRPC unread, from Debian's packages: the least that a proxy in front of Triton costs.

Each runs one worker, as Tidegate does. Source of the comparison: the same load on the same Triton, one after the other.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.proxy_process import cpu_spent

START_TIMEOUT_S: Final = 20.0

_NGINX = """\
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/relay.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 0; client_body_buffer_size 2m; keepalive_requests 1000000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream triton {{ server {triton}; keepalive 128; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass grpc://triton; grpc_buffer_size 64k; }} }}
}}
"""
_HAPROXY = """\
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind 127.0.0.1:{port} proto h2
  default_backend triton
backend triton
  server triton {triton} proto h2
"""


class Relay:
    """A relay that runs."""

    def __init__(self, pid: int, address: str) -> None:
        """Describe the process `pid`, which serves gRPC at `address`, HOST:PORT."""
        self.grpc = address
        self._pid = pid

    def spent(self) -> tuple[float, int]:
        """Return CPU time in seconds and context switches of all living threads since the start."""
        return cpu_spent(self._pid)


def _nginx(program: str, folder: Path, triton: str, port: int) -> list[str]:
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, triton=triton, port=port))
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "relay.log")]


def _haproxy(program: str, folder: Path, triton: str, port: int) -> list[str]:
    (folder / "haproxy.cfg").write_text(_HAPROXY.format(triton=triton, port=port))
    return [program, "-db", "-f", str(folder / "haproxy.cfg")]


def _nghttpx(program: str, folder: Path, triton: str, port: int) -> list[str]:
    host, _, triton_port = triton.rpartition(":")
    logs = [f"--errorlog-file={folder / 'relay.log'}", "--accesslog-file=/dev/null", "--conf=/dev/null"]
    ends = [f"--frontend=127.0.0.1,{port};no-tls", f"--backend={host},{triton_port};;proto=h2"]
    return [program, "--single-process", "--workers=1", *logs, *ends]


RELAYS: Final[dict[str, tuple[str, Callable[[str, Path, str, int], list[str]]]]] = {
    "nginx": ("nginx", _nginx),
    "haproxy": ("haproxy", _haproxy),
    "nghttpx": ("nghttp2-proxy", _nghttpx),
}
"""Debian package of each relay, and its command for a program, a folder, Triton's address and a port."""


@contextmanager
def relays_before(triton: str, work: Path, console: Console) -> Iterator[dict[str, Relay]]:
    """Start the relays that are installed, and yield them by name until the block ends; name those that are not.

    `triton`: HOST:PORT of Triton's gRPC service; `work`: for their folders.
    """
    with ExitStack() as stack:
        found = {}
        for name, (package, _) in RELAYS.items():
            program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
            if program is None:
                console.print(f"{name} is not installed and not measured (apt-get install {package})")
                continue
            (work / name).mkdir()
            found[name] = stack.enter_context(_started(name, program, work / name, triton))
        yield found


@contextmanager
def _started(name: str, program: str, folder: Path, triton: str) -> Iterator[Relay]:
    """Start one; exits with its output if it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "relay.out"
    with log.open("w") as out:
        process = subprocess.Popen(RELAYS[name][1](program, folder, triton, port), stdout=out, stderr=out)
    try:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{program} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield Relay(process.pid, f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
