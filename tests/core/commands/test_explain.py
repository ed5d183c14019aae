"""`tidegate explain` over a recording."""

import json
from pathlib import Path

import pytest

from tests.command_line import invoke


def timeline(path: Path, *options: str) -> tuple[int, str]:
    result = invoke("explain", path, *options)
    return result.exit_code, result.output


def test_a_timeline_is_told_line_by_line(log: Path) -> None:
    code, output = timeline(log, "0")
    assert code == 0, output
    title, first, *_, last = output.splitlines()
    assert title.startswith("request 0: ")
    assert title.endswith("(policy symphony)")
    assert first.split()[:3] == ["0.000", "ms", "arrived"]
    assert last.split()[2] in {"answered", "dropped", "failed", "cancelled"}


def test_a_timeline_for_machines(log: Path) -> None:
    code, output = timeline(log, "0", "--json")
    assert code == 0
    document = json.loads(output)
    assert (document["policy"], document["request"]["id"]) == ("symphony", 0)
    assert document["outcome"] in {"on time", "late", "dropped", "failed", "cancelled"}
    assert document["steps"][0]["at_ms"] == 0
    assert document["steps"][0]["what"] == "arrived"
    assert all(step["text"] for step in document["steps"])


def test_an_unknown_request_is_answered_with_those_there_are(log: Path) -> None:
    code, output = timeline(log, "100000")
    assert code == 1
    words = " ".join(output.split())
    assert "there is no request 100000: they are numbered up to " in words
    assert "dropped: " in words or "late: " in words


def test_a_recording_that_another_policy_made_is_refused(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    changed = next(number for number, line in enumerate(lines) if b'"command":"Dispatch"' in line)
    lines[changed] = lines[changed].replace(
        b'"command":"Dispatch","batch":{"id":', b'"command":"Dispatch","batch":{"id":7'
    )
    log.write_bytes(b"".join(lines))
    code, output = timeline(log, "40")
    assert code == 1
    assert f"event {changed} is answered otherwise than when it was recorded" in " ".join(output.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "line 1 is no header of an event log"), ('{"version": 2}', "version 2, this Tidegate reads")],
)
def test_what_is_no_log_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    code, output = timeline(path, "0")
    assert code == 1
    assert says in " ".join(output.split())


def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert timeline(tmp_path / "none", "0")[0] == 1
