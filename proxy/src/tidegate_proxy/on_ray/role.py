"""Process that runs `tidegate serve` in a role, started by an actor."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.on_ray.role_configs import SECRET_FILE, Document

CHILD_PROGRAM: Final = (
    "from tidegate_proxy.on_ray.role import end_with; end_with(); from tidegate.cli import main; main()"
)
"""Program text for Python; the actor's process id and the arguments of `tidegate` follow."""
_PR_SET_PDEATHSIG: Final = 1


def end_with() -> None:
    """Let the kernel send this process SIGTERM when the one named by the first argument exits; remove that argument."""
    actor = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != actor:
        sys.exit(1)


_CONFIG: Final = "tidegate.yaml"
_LAST_LINES: Final = 8
_ANNOUNCED: Final = re.compile(r"^(shard 0|gRPC|HTTP|metrics) +(\S+)")
_SERVES: Final = {"shard": "shard 0", "frontend": "gRPC"}
"""The last of what each says when it serves, as `tidegate_proxy.commands.running` has it."""
_KILL_AFTER_S: Final = 10.0
"""How much longer than its own limit it may take to end."""


class RoleNotStarted(Exception):
    """Error: the process did not begin to serve; the message has its last lines."""


class RoleProcess:
    """Process of a role, from `start` to `stop`. Its output goes to this process's output, which Ray stores."""

    def __init__(self, role: str, folder: Path) -> None:
        """Create the role process.

        `role`: `shard` or `frontend`; `folder`: contains its configuration and the files named there.
        """
        self._role = role
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._changed = threading.Condition()
        self._has_ended = False
        self.announced: dict[str, str] = {}
        """Addresses that the process announced at start."""

    def start(self, document: Document, secret: str) -> None:
        """Start the process, and wait until it serves. Raises RoleNotStarted, with nothing left, and OSError."""
        with open(self._folder / SECRET_FILE, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secret)
        self._write(document)
        # A thread of its own, which lives as long as the process: the process ends with it.
        threading.Thread(target=self._run, daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or _SERVES[self._role] in self.announced)
            if self._has_ended:
                raise RoleNotStarted("\n".join(["it ended:", *(f"  {line}" for line in self._lines)]))

    def follow(self, document: Document) -> None:
        """Apply another configuration. Raises OSError."""
        self._write(document)
        if self._process:
            self._process.send_signal(signal.SIGHUP)

    def wait(self) -> str:
        """Wait until the process exits; return its last line."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended)
            return self._lines[-1] if self._lines else "it ended"

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def stop(self, within_s: float) -> None:
        """Let the process shut down, and kill it after `within_s` seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s + _KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, document: Document) -> None:
        new = self._folder / f"{_CONFIG}.new"
        new.write_text(yaml.safe_dump(_plain(document)), encoding="utf-8")
        new.replace(self._folder / _CONFIG)

    def _run(self) -> None:
        arguments = ["serve", str(self._folder / _CONFIG), "--role", self._role]
        arguments += ["--shard", "0"] if self._role == "shard" else []
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD_PROGRAM, str(os.getpid()), *arguments],
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},  # as `tidegate serve` has it, before it imports gRPC
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._process = process
            assert process.stdout is not None
            for line in process.stdout:
                sys.stderr.write(line)
                self._said(line.rstrip())
            process.wait()
        except OSError as error:
            self._said(str(error))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _said(self, line: str) -> None:
        with self._changed:
            if line:
                self._lines.append(line)
            if found := _ANNOUNCED.match(line):
                self.announced[found[1]] = found[2]
                self._changed.notify_all()


def free_port(host: str) -> int:
    """Return a free port of this host."""
    with socket.create_server((host, 0)) as port:
        return int(port.getsockname()[1])


def seen_from_elsewhere(address: str, host: str) -> str:
    """Return the address of a listening process with the host that others can reach."""
    return f"{host}:{port_of(address)}" if host_of(address) in ("0.0.0.0", "[::]") else address


def _plain(value: object) -> Any:  # noqa: ANN401 - what YAML can say
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
