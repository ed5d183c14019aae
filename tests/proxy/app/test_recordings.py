"""Recordings on the disk: for their owner alone, and kept when Tidegate starts again."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_restart_keeps_the_recording_of_the_run_before(
    start_fake: Callable[..., Any], serve_here: Callable[..., Any], tmp_path: Path
) -> None:
    fake, path = start_fake(lambda _request, _context: b""), tmp_path / "run.jsonl"
    first = b""
    for number in range(3):
        serve_here([fake], event_log=str(path)).stop()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if number == 0:
            first = path.read_bytes()
            path.write_bytes(first + b"the crash")
    assert first
    assert (tmp_path / "run.jsonl.1").read_bytes() == first + b"the crash"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.jsonl", "run.jsonl.1", "run.jsonl.2"]


def test_an_empty_file_is_taken_as_it_is(
    start_fake: Callable[..., Any], serve_here: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.touch()
    serve_here([start_fake(lambda _request, _context: b"")], event_log=str(path)).stop()
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]
