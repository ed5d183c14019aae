"""Processes of an emulated run: starts the commands and stops them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate_loadtest.connection import LoadTestError

STOP_WITHIN_S = 20.0
"""Seconds after which a process that does not stop is killed."""


@contextmanager
def serving_command(*arguments: str, log: Path) -> Iterator[str]:
    """Run `tidegate triton` or `tidegate serve` until the block is left; yield the gRPC address that it prints.

    Its errors go to `log`. Raises LoadTestError with its message if it exits before it listens.
    """
    with _running(*arguments, log=log) as process:
        yield _address(process, arguments[0], log)


@contextmanager
def deployment_up(folder: Path, log: Path) -> Iterator[dict[str, Any]]:
    """Run `tidegate up` for a folder, on free ports, until the block is left; yield its status document.

    Its errors go to `log`. Raises LoadTestError with its message if it does not become ready.
    """
    with _running("up", str(folder), "--foreground", "--json", "--free-ports", log=log) as process:
        yield _state(process, log)


@contextmanager
def _running(*arguments: str, log: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", *arguments]
    with log.open("w", encoding="utf-8") as errors:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order, once each.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: "subprocess.Popen[str]", name: str, log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(r"gRPC\s+(\S+)", line):
            return found[1]
    raise _not_started(process, name, log)


def _state(process: "subprocess.Popen[str]", log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "serving":
            state: dict[str, Any] = event["state"]
            return state
        if event["event"] == "failed":
            raise LoadTestError(f"the emulated cluster did not start: {event['error']}")
    raise _not_started(process, "up", log)


def _not_started(process: "subprocess.Popen[str]", name: str, log: Path) -> LoadTestError:
    process.wait()
    log_text = " ".join(log.read_text(encoding="utf-8").split()).removeprefix("error: ")
    return LoadTestError(f"`tidegate {name}` did not start: {log_text or f'it ended with status {process.returncode}'}")
