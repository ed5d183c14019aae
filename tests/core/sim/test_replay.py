"""Recorded runs, replayed: the same, or the first difference is shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.command_line import invoke
from tidegate.api import Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker, WorkerJoined, WorkerLost
from tidegate.engine import Engine, OutcomeCounts, RetryLimitChanged, StartStage
from tidegate.host import Plugins
from tidegate.observation import EngineSettings, Recorder, read_log

PLUGINS = Plugins.installed()
HEADER = (
    '{"version": 3, "policy": "x", "options": {}, "setup": {"models": [], "workers": [], "profiles": []}, '
    '"settings": {"learn": true, "max_tries": 2}}'
)


def replay(path: Path, *options: str) -> tuple[int, str]:
    result = invoke("replay", path, *options)
    return result.exit_code, " ".join(result.output.split())


def test_a_recording_is_what_its_replay_does(log: Path) -> None:
    events = len(log.read_bytes().splitlines()) - 1
    assert events > 10
    code, output = replay(log)
    assert code == 0, output
    assert output.startswith(f"symphony: {events} events,")
    assert output.endswith("all the same")


def run_with_lost_workers(out: BinaryIO, max_tries: int, *, learn: bool) -> OutcomeCounts:
    """One request that loses its worker twice, then one of which more is learned, and a change of tries between."""
    hosts = [Worker(number, f"w{number}", ("m",)) for number in range(4)]
    setup = Setup((Model("m", 1),), tuple(hosts), (Profile("m", "default", (10,)),))
    engine = Engine(
        PLUGINS.make_policy("fifs", setup, {}), name="fifs", learn=learn, max_tries=max_tries, observers=[Recorder(out)]
    )

    def ends(effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, StartStage):
                worker = effect.batch.stages[0].worker_id
                now_ns = engine.now_ns + 30
                ends(engine.handle(StageFinished(now_ns, effect.batch.id, 0, worker, engine.now_ns, now_ns)))

    for number in range(3):
        effects = engine.handle(RequestArrived(engine.now_ns, Request(number, "m", 1, engine.now_ns)))
        for _ in range(2):
            lost = [effect.batch.stages[0].worker_id for effect in effects if isinstance(effect, StartStage)]
            effects = [effect for worker_id in lost for effect in engine.handle(WorkerLost(engine.now_ns, worker_id))]
        ends(effects)
        for worker in hosts:
            ends(engine.handle(WorkerJoined(engine.now_ns, worker)))
        if number == 1:
            engine.handle(RetryLimitChanged(engine.now_ns, 3))
    for number in range(3, 30):
        ends(engine.handle(RequestArrived(engine.now_ns, Request(number, "m", 1, engine.now_ns))))
    return engine.tally


@pytest.mark.parametrize(("max_tries", "failed"), [(1, 2), (2, 2), (3, 0)])
@pytest.mark.parametrize("learn", [True, False])
def test_lost_workers_are_replayed_with_the_settings_of_the_recording(
    max_tries: int, failed: int, learn: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("wb") as out:
        tally = run_with_lost_workers(out, max_tries, learn=learn)
    assert tally.failed == failed
    code, output = replay(path)
    assert code == 0, output
    header, _ = read_log(path.read_bytes().splitlines())
    assert header.settings == EngineSettings(learn=learn, max_tries=max_tries)


def test_the_first_difference_is_shown(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    changed = next(number for number, line in enumerate(lines) if b'"command":"Dispatch"' in line)
    lines[changed] = lines[changed].replace(
        b'"command":"Dispatch","batch":{"id":', b'"command":"Dispatch","batch":{"id":7'
    )
    log.write_bytes(b"".join(lines))
    code, output = replay(log)
    assert code == 1
    assert f"event {changed} was answered differently" in output
    assert output.count("Dispatch(") == 2
    assert replay(log, "--json")[0] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1 is no header"),
        ('{"version": 1, "policy": "x", "options": {}, "setup": {}}', "version 1"),
        (HEADER, "'x'"),
    ],
)
def test_what_is_no_log_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    code, output = replay(path)
    assert code == 1
    assert says in output


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    assert "absent" in replay(tmp_path / "absent")[1]
