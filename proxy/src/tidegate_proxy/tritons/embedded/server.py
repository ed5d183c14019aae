"""Embedded Triton: one tritonserver over model repositories, from start to clean end."""

import contextlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate_proxy.transport.ports import bind
from tidegate_proxy.tritons.embedded import guardian
from tidegate_proxy.tritons.embedded.install import TritonInstall
from tidegate_proxy.tritons.embedded.log import TritonStartError, failure_reasons, says_port_taken

_PORT_ATTEMPTS = 4
_FIRST_POLL_S = 0.01
_LAST_POLL_S = 0.1
# Options whose values the addresses, the log and the clean end depend on.
_OWN_OPTIONS = frozenset(
    {"--model-repository", "--model-store", "--backend-directory", "--log-file", "--exit-timeout-secs"}
    | {f"--{service}-{what}" for service in ("http", "grpc", "metrics") for what in ("address", "port")}
    | {f"--allow-{service}" for service in ("http", "grpc", "metrics")}
)


class EmbeddedTriton:
    """Embedded tritonserver 2.51 over `repositories`, from `start` (or `with`) to `stop`.

    Strict by default: a model that fails to load fails the start. The server dies with this process, even if that is
    killed, and leaves no process, folder or shared memory behind.
    """

    def __init__(
        self,
        repositories: Sequence[str | os.PathLike[str]],
        *,
        log: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        grpc_port: int = 0,
        http_port: int = 0,
        metrics_port: int = 0,
        host: str = "127.0.0.1",
        complete_config: bool = False,
        timeout_s: float = 120.0,
        grace_s: float = 2.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the server; nothing starts yet.

        `grpc_port`, `http_port`, `metrics_port`: ports to listen on, 0: any free one. `log`: file for the server's log,
        overwritten; None: no file, use `log_text`. `options`: further tritonserver flags, `--name=value` each; they
        override the defaults, except those that this class owns (ports, addresses, repositories, ...), which raise
        ValueError. Port 0 picks a free one. `host`: numeric address to listen on. `complete_config`: let Triton
        complete the models' config.pbtxt, which takes over a second per model, as Triton runs each model's
        `auto_complete_config` in a process of its own. `timeout_s`: longest wait until the models are ready. `grace_s`:
        time for requests in flight and the models' `finalize` before `stop` kills; 0 kills at once. `environment`:
        variables added to this process's.
        """
        if any(option.startswith("--allow-client-shm") for option in options):
            raise ValueError("--allow-client-shm: tritonserver 2.51 shares memory without it; leave it out")
        for option in options:
            if option.partition("=")[0] in _OWN_OPTIONS:
                raise ValueError(f"{option}: EmbeddedTriton sets this option itself; see its parameters")
        self._repositories = [Path(repository).absolute() for repository in repositories]
        self._log_path = None if log is None else Path(log).absolute()
        self._options = list(options)
        self._asked_ports: tuple[int, ...] = (grpc_port, http_port, metrics_port)
        self._host = host
        self._complete_config = complete_config
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._environment = dict(environment or {})
        self._log_fd: int | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._task: guardian.GuardianTask | None = None
        self._reservations: list[socket.socket] = []
        self._ports: tuple[int, ...] = ()
        self._pid: int | None = None
        self._keeps_log = False
        """Whether the log tells why an earlier server ended."""

    @property
    def grpc_address(self) -> str:
        """Address `host:port` of the gRPC service."""
        return self._address(0)

    @property
    def http_address(self) -> str:
        """Address `host:port` of the HTTP service."""
        return self._address(1)

    @property
    def metrics_address(self) -> str:
        """Address `host:port` of the Prometheus metrics, under `/metrics`."""
        return self._address(2)

    @property
    def pid(self) -> int:
        """Process id of tritonserver. Raises RuntimeError if it was never started."""
        if self._pid is None:
            raise RuntimeError("the embedded Triton is not started")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether tritonserver runs now."""
        return self._guardian is not None and self._guardian.poll() is None

    @property
    def log_text(self) -> str:
        """Log since the last `start`; available after `stop`, too."""
        if self._log_fd is None:
            return ""
        return os.pread(self._log_fd, os.fstat(self._log_fd).st_size, 0).decode(errors="replace")

    def start(self, launched: Callable[[], None] = lambda: None) -> Self:
        """Start the server and wait until every model is ready; `launched` is called once its process runs.

        Raises TritonStartError with the cause; nothing is left behind then.
        """
        if self.running:
            raise RuntimeError("the embedded Triton runs already")
        if "--model-control-mode" not in {option.partition("=")[0] for option in self._options}:
            _require_models(self._repositories)
        install = TritonInstall.find()
        self.stop()  # what is left of a server that ended by itself
        deadline_s = time.monotonic() + self._timeout_s
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._launch(install)
                launched()
                self._wait_ready(deadline_s)
            except TritonStartError:
                self.stop()
                # Another process may have taken a port between our choice and the server's bind.
                if 0 not in self._asked_ports or attempt == _PORT_ATTEMPTS or not says_port_taken(self.log_text):
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def restart(self) -> Self:
        """Restart a server that has exited, on the same ports; its log is appended.

        Raises TritonStartError.
        """
        self._asked_ports = self._ports or self._asked_ports
        self._keeps_log = True
        try:
            return self.start()
        finally:
            self._keeps_log = False

    def stop(self) -> None:
        """Stop the server and wait until nothing is left of it; on a stopped one, do nothing."""
        if self._guardian is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guardian.communicate(b"stop\n")
            if self._guardian.returncode < 0 and self._pid is not None:
                # The guardian itself was killed: the kernel has ended the server, and the models' processes are left.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)
            self._guardian = None
        if self._task is not None:
            # Gone already, unless the guardian was killed or never ran.
            guardian.remove_traces(self._task)
            self._task = None
        while self._reservations:
            self._reservations.pop().close()

    def wait(self) -> int:
        """Block until the server ends by itself and return its exit status (128 + number for a signal).

        Raises RuntimeError if the server was not started.
        """
        if self._guardian is None:
            raise RuntimeError("the embedded Triton is not started")
        return self._guardian.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _address(self, index: int) -> str:
        if not self._ports:
            raise RuntimeError("the embedded Triton is not started")
        return f"{self._host}:{self._ports[index]}"

    def _open_log(self) -> int:
        if self._log_fd is None:
            try:
                self._log_fd = _open_log(self._log_path)
            except OSError as error:
                raise TritonStartError(f"cannot write the log of the embedded Triton: {error}") from error
            # Open for as long as this object lives, so that `log_text` outlives the server.
            weakref.finalize(self, os.close, self._log_fd)
        if not self._keeps_log:
            os.truncate(self._log_fd, 0)
        return self._log_fd

    def _launch(self, install: TritonInstall) -> None:
        log = self._open_log()
        self._pid = None
        for port in self._asked_ports:
            _require_free(self._host, port)
        self._ports = tuple(port or self._free_port() for port in self._asked_ports)
        folder = Path(tempfile.mkdtemp(prefix="tidegate-triton-"))
        install.link_backends(folder)
        self._task = guardian.GuardianTask(
            command=[],
            parent=os.getpid(),
            grace_s=self._grace_s,
            folder=str(folder),
            shm_prefix=f"tidegate_{uuid.uuid4().hex}_",
            since_s=time.time(),
        )
        self._task["command"] = self._command(install, folder, self._task["shm_prefix"])
        # -I and -S: the guardian needs the standard library only, and starts in some 20 ms.
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, json.dumps(self._task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=install.environment | self._environment,
            start_new_session=True,
        )
        assert self._guardian.stdout is not None
        line = self._guardian.stdout.readline()
        self._pid = int(line) if line else None

    def _command(self, install: TritonInstall, backends: Path, shm_prefix: str) -> list[str]:
        command = [str(install.server), f"--backend-directory={backends}"]
        command += [f"--model-repository={repository}" for repository in self._repositories]
        for service, port in zip(("grpc", "http", "metrics"), self._ports, strict=True):
            command += [f"--{service}-address={self._host}", f"--{service}-port={port}"]
        command += [
            "--exit-on-error=true",
            f"--exit-timeout-secs={math.ceil(self._grace_s)}",
            f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        ]
        if not self._complete_config:
            command.append("--disable-auto-complete-config")
        return command + self._options

    def _free_port(self) -> int:
        """Choose a free port that no other embedded Triton, of this or another process, chooses at the same time.

        The reservation is a socket in Linux's abstract namespace, one per port number: it ends with its process.
        """
        while True:
            reservation = socket.socket(socket.AF_UNIX)
            with socket.socket() as probe:
                probe.bind((self._host, 0))
                port: int = probe.getsockname()[1]
                try:
                    reservation.bind(f"\0tidegate-port-{port}")
                except OSError:
                    reservation.close()
                    continue
            self._reservations.append(reservation)
            return port

    def _wait_ready(self, deadline_s: float) -> None:
        pause_s = _FIRST_POLL_S
        # Triton starts gRPC, then HTTP, then the metrics, once its models are loaded.
        while not (self._answers(1, "/v2/health/ready") and self._answers(2, "/metrics") and self.running):
            assert self._guardian is not None
            if time.monotonic() > deadline_s:
                raise TritonStartError(self._failure(f"it was not ready after {self._timeout_s:g} s"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Sleeps, and notices at once when the server ends.
                code = self._guardian.wait(pause_s)
                raise TritonStartError(self._failure(f"tritonserver ended with status {code}"))
            pause_s = min(pause_s * 1.5, _LAST_POLL_S)

    def _answers(self, service: int, path: str) -> bool:
        host = "127.0.0.1" if self._host == "0.0.0.0" else self._host
        connection = http.client.HTTPConnection(host, self._ports[service], timeout=2)
        try:
            connection.request("GET", path)
            # Forbidden: health is restricted, and the service is there, which it is once the models are loaded.
            return connection.getresponse().status in (http.HTTPStatus.OK, http.HTTPStatus.FORBIDDEN)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _failure(self, what: str) -> str:
        reasons = "".join(f"\n  {reason}" for reason in failure_reasons(self.log_text))
        whole = f"\n(the whole log: {self._log_path})" if self._log_path is not None else ""
        return f"the embedded Triton did not start: {what}{reasons}{whole}"


def _require_models(repositories: list[Path]) -> None:
    if not repositories:
        raise TritonStartError("the embedded Triton needs at least one model repository")
    for repository in repositories:
        if not repository.is_dir():
            raise TritonStartError(
                f"the model repository {repository} does not exist or is no folder: `tidegate generate MODEL.onnx -o "
                "FOLDER` makes one"
            )
        if _is_model(repository):
            raise TritonStartError(f"{repository} is a model, not a repository: give the folder around it")
        if not any(path.is_dir() for path in repository.iterdir()):
            raise TritonStartError(
                f"the model repository {repository} holds no models: each is a folder of its own, "
                "<model>/config.pbtxt and <model>/<version>/..."
            )


def _is_model(folder: Path) -> bool:
    """Return whether a folder has a config and versions, and none of its folders is a model."""
    has_versions = any(path.name.isdecimal() and path.is_dir() for path in folder.iterdir())
    has_models = any(any(folder.glob(pattern)) for pattern in ("*/config.pbtxt", "*/[0-9]*/model.*"))
    return (folder / "config.pbtxt").is_file() and has_versions and not has_models


def _open_log(path: Path | None) -> int:
    if path is None:
        # Has no name, so nothing to remove, whatever happens.
        with tempfile.TemporaryFile(mode="a+b") as file:
            return os.dup(file.fileno())
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _require_free(host: str, port: int) -> None:
    try:
        bind(f"{host}:{port}").close()
    except OSError as error:
        raise TritonStartError(f"the embedded Triton {error}") from error
