"""A recording in the page: any instant of it, its requests, what would have been otherwise."""

import asyncio
import math
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.proxy.app.dashboard.event_buffers import MS
from tests.proxy.app.dashboard.log_of import write_log
from tidegate.observation import read_log
from tidegate_proxy.app.dashboard.history import History
from tidegate_proxy.app.dashboard.log_file import LogFile
from tidegate_proxy.app.dashboard.recording import RecordedRun
from tidegate_proxy.app.dashboard.what_if import WhatIf
from tidegate_proxy.commands.view import view

SECONDS, RATE = 13, 200


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "<b>run.jsonl"
    assert write_log(path, seconds=SECONDS, rate=RATE) == SECONDS * RATE
    return path


@pytest.fixture
def recording(log: Path) -> Iterator[RecordedRun]:
    recording = RecordedRun(log)
    yield recording
    recording.close()


def whole(recording: RecordedRun) -> History:
    recording._scan.join(60)
    history = recording.history(0)
    assert history.done
    return history


def test_instants_and_requests_are_found_as_if_the_log_were_read(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    with log.open("rb") as file:
        entries = list(read_log(file)[1])
    offsets, at = [], len(lines[0])
    for line in lines[1:]:
        offsets.append(at)
        at += len(line)
    file_ = LogFile(log)
    instants = [entry.event.now_ns for entry in entries]
    assert (file_.first_ns, file_.last_ns) == (instants[0], instants[-1])
    for wanted in [0, *instants[::37], *(ns + 1 for ns in instants[::53]), instants[-1] + 1]:
        first = next((offset for offset, ns in zip(offsets, instants, strict=True) if ns >= wanted), at)
        assert file_.offset_at(wanted) == first
    for request_id in (0, 1, 2, 700, SECONDS * RATE - 1):
        offset = file_.offset_of(request_id)
        assert offset is not None
        entry, _ = next(file_.entries(offset))
        assert entry.event.request.id == request_id  # type: ignore[union-attr]
    assert file_.offset_of(SECONDS * RATE) is None
    file_.close()


def test_any_instant_of_it(recording: RecordedRun) -> None:
    hello = recording.hello()
    assert (hello.kind, hello.policy) == ("recording", "symphony")
    assert hello.length_ms == pytest.approx(1000 * SECONDS, rel=0.01)
    snapshot = recording.at(12_000)
    m, n = snapshot.models
    assert m.rate_rps + n.rate_rps == pytest.approx(RATE, rel=0.05)
    assert (m.slo_ms, n.slo_ms) == (60.0, 40.0)
    assert [worker.name for worker in snapshot.workers] == ["w0", "w1"]
    assert 0 < snapshot.workers[0].busy <= 1
    assert all(stage.start_us + stage.took_us >= 2e6 and stage.start_us <= 12e6 for stage in snapshot.stages)
    assert {snapshot.names[stage.model] for stage in snapshot.stages} == {"m", "n"}
    assert snapshot.decisions
    assert recording.at(0).models[0].rate_rps == 0
    assert recording.at(10**9).workers  # after its end


def test_the_whole_of_it(recording: RecordedRun) -> None:
    history = whole(recording)
    assert history.error == ""
    step_s = history.at_s[-1] / len(history.at_s)
    assert SECONDS <= len(history.at_s) <= SECONDS + 1
    assert history.at_s == pytest.approx([step_s * (number + 1) for number in range(len(history.at_s))], abs=0.002)
    ended = sum(map(sum, (history.total.on_time, history.total.late, history.total.dropped, history.total.failed)))
    assert ended * step_s == pytest.approx(SECONDS * RATE), "points are rates over even intervals"
    assert {name: its.slo_ms for name, its in history.models.items()} == {"m": 60.0, "n": 40.0}
    m, n = history.models["m"], history.models["n"]
    assert [a + b for a, b in zip(m.on_time, n.on_time, strict=True)] == pytest.approx(
        history.total.on_time, abs=0.002
    ), "each is rounded"
    answered = [p99_ms for p99_ms in m.p99_ms if not math.isnan(p99_ms)]
    assert answered
    assert all(p99_ms >= 12 for p99_ms in answered), "its fastest batch takes 12 ms"
    assert set(history.busiest_worker) <= {"w0", "w1"}
    assert 0 < max(history.busy) <= max(history.busiest) <= 1


def test_timelines_and_what_if(recording: RecordedRun) -> None:
    timeline = asyncio.run(recording.timeline(700))
    assert timeline is not None
    assert [timeline.steps[0].what, timeline.steps[-1].what, timeline.outcome] == ["arrived", "answered", "on time"]
    assert sum(part.ms for part in timeline.parts) == pytest.approx(timeline.latency_ms)
    assert asyncio.run(recording.timeline(10**6)) is None
    told = asyncio.run(recording.what_if(2_500))
    assert isinstance(told, WhatIf)
    simulated = {each.name: each.share for each in told.answers}
    assert told.actual == pytest.approx(simulated["unchanged"], abs=0.03)
    less = simulated["without worker w1"]
    assert less is not None
    assert told.actual is not None
    assert less < told.actual


def test_one_that_is_cut_off_or_broken(log: Path, tmp_path: Path) -> None:
    text = log.read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(text[: len(text) // 2])  # in the middle of a line
    recording = RecordedRun(cut)
    assert whole(recording).error == ""
    assert recording.at(3000).models
    recording.close()
    broken = tmp_path / "broken.jsonl"
    lines = text.splitlines(keepends=True)
    broken.write_bytes(b"".join([*lines[:500], b"{}\n", *lines[501:]]))
    recording = RecordedRun(broken)
    assert "begins no entry" in whole(recording).error
    recording.close()


def _page(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "view", "--no-browser", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_serves_it_to_whom_it_tells(log: Path) -> None:
    process = _page(str(log))
    try:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#token=")
        request = urllib.request.Request(f"{address}/hello", headers={"x-tidegate-page": "1"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=480)
        request.add_header("authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=480) as answer:
            assert b'"kind":"recording"' in answer.read()
        unknown = urllib.request.Request(f"{address}/timeline?request=999999999", headers=dict(request.header_items()))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(unknown, timeout=120)
        assert b"is not in this recording" in refused.value.read()
    finally:
        process.send_signal(2)
        assert process.wait(120) == 0
        process.communicate()


def test_a_port_that_is_taken_is_no_fault_of_the_recording(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(typer.Exit):
        view(log, taken.getsockname()[1], browser=False)
    assert capsys.readouterr().err.startswith("error: cannot listen on 127.0.0.1:")


@pytest.mark.parametrize(
    ("text", "why"), [("", "no header"), ('{"version": 1}\n', "record it again"), (None, "No such")]
)
def test_what_is_no_recording(tmp_path: Path, text: str | None, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(typer.Exit):
        view(path, 0, browser=False)
    assert why in capsys.readouterr().err


def test_the_times_of_the_log_are_those_of_the_page(recording: RecordedRun) -> None:
    timeline = asyncio.run(recording.timeline(0))
    assert timeline is not None
    assert timeline.arrived_ms == 0.0
    assert recording._log.first_ns == 5_000 * MS
