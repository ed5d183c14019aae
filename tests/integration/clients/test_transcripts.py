"""curl, as documentation and shell scripts use it: transcripts of commands and of what a real Triton answers to them.

A transcript is a text file: a command after `$ `, below it the answer as it is shown; `$URL` stands for the server and
`...` for whatever stands there.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def steps(transcript: Path) -> list[tuple[str, str]]:
    """Commands, each with its expected answer."""
    parts = re.split(r"^\$ (.*)\n", transcript.read_text(), flags=re.MULTILINE)[1:]
    return [(command, answer.strip()) for command, answer in zip(parts[::2], parts[1::2], strict=True)]


def run(command: str, http_address: str) -> str:
    """What a shell shows; header names in lower case, since HTTP knows no difference."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    done = subprocess.run(
        ["bash", "-c", command], env={"URL": f"http://{http_address}", "PATH": "/usr/bin:/bin"}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    shown = (done.stdout + done.stderr).replace("\r", "").strip()
    return re.sub(r"^([A-Za-z-]+):", lambda name: name[0].lower(), shown, flags=re.MULTILINE)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript(transcript: Path, echo_triton: Any, start_frontend: Callable[..., Any]) -> None:
    frontend = start_frontend(echo_triton)
    for command, expected in steps(transcript):
        pattern = re.escape(expected).replace(re.escape("..."), ".*?")
        for server in (echo_triton, frontend):
            shown = run(command, server.http_address)
            assert re.fullmatch(pattern, shown, re.DOTALL), f"{command}\nshows:\n{shown}\nexpected:\n{expected}"


def test_there_are_transcripts() -> None:
    assert sum(len(steps(transcript)) for transcript in TRANSCRIPTS) >= 15
