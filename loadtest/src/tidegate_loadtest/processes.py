"""The commands that an emulated run needs, each a process of its own, and their end."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate_loadtest.connection import LoadTestError

STOP_WITHIN_S = 20.0
"""Longer than any of them takes in order; then it is killed."""


@contextmanager
def serving_command(*arguments: str, log: Path) -> Iterator[str]:
    """Run `tidegate triton` or `tidegate serve` until the block is left; gives the gRPC address that it prints.

    Its errors go to `log`. Raises LoadTestError, with its own words, where it ends before it listens.
    """
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", *arguments]
    with log.open("w", encoding="utf-8") as errors:
        # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order, once each.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    try:
        yield _address(process, arguments[0], log)
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
    process.wait()
    said = " ".join(log.read_text(encoding="utf-8").split()).removeprefix("error: ")
    raise LoadTestError(f"`tidegate {name}` did not start: {said or f'it ended with status {process.returncode}'}")
