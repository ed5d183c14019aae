"""The policy is tuned while serving: what the child process answers becomes a switch, and its end harms nobody."""

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.fake_answers import echo
from tests.proxy.fixtures.here import ProxyHere
from tidegate.api import NS_PER_MS, Model, Profile, Request, Setup, Worker
from tidegate.observation import EngineSettings, PolicyTuned
from tidegate.sim.tuning.candidates import PolicyCandidate
from tidegate.sim.tuning.policy_comparison import GAIN_BLOCKS, CandidateOutcome, Comparison, ComparisonJob
from tidegate.sim.what_if import WhatIfQuestion
from tidegate_proxy.app.dashboard.decisions import latest_decisions
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent, EventBuffer
from tidegate_proxy.app.dashboard.snapshot import cut
from tidegate_proxy.app.simulation_process import SimulationProcess
from tidegate_proxy.app.tuning import tuning_process
from tidegate_proxy.app.tuning.tuning_process import TuningAnswer
from tidegate_proxy.configuration.config import PolicyChoice

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
SETUP = Setup(
    (Model("m", 8, slo_ns=100 * NS_PER_MS),),
    (Worker(0, "w0", ("m",)),),
    (Profile.linear("m", alpha_ms=2, beta_ms=10, max_rows=8),),
)
EAGER = PolicyCandidate("eager")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the child process answers, one after the other; the last one again and again."""
    given: list[object] = []

    async def ask(process: object, head: ComparisonJob, requests: object, timeout_s: float) -> bytes:
        del process, timeout_s
        assert requests and not head.question.requests, "they are sent a few at a time"
        await asyncio.sleep(0)
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, Exception):
            raise answer
        outcomes = [
            CandidateOutcome(each, [90 if each.is_like(EAGER) else 10] * GAIN_BLOCKS, {"echo": 0.9})
            for each in head.candidates
        ]
        return msgspec.json.encode(TuningAnswer(Comparison([100] * GAIN_BLOCKS, [10] * GAIN_BLOCKS, outcomes, 1), 1.5))

    monkeypatch.setattr(SimulationProcess, "ask", ask)
    monkeypatch.setattr("tidegate_proxy.app.tuning.live_tuning.TUNING_POLL_S", 0.01)
    return given


@pytest.fixture
def tuned(serve_here: Make, start_fake: Make) -> ProxyHere:
    """A Tidegate that looks at windows of 50 ms, under an SLO that nothing meets."""
    fake = start_fake(echo)
    policy = {"name": "auto", "options": {"interval_s": 0.05}}
    proxy: ProxyHere = serve_here([fake], policy=policy, listen=LISTEN, models={"echo": {"slo_ms": 0.01}})
    return proxy


@pytest.fixture
def send_until(tuned: ProxyHere, call: Make) -> Make:
    """`send_until(condition)`: requests come until it holds."""
    request = request_of("echo", {"X": np.zeros((1, 1), np.float32)})

    def send(condition: Callable[[], bool]) -> None:
        for _ in range(20_000):
            call(tuned, "ModelInfer", request)
            if condition():
                return
        pytest.fail(tuned.serving.tuning.sentence)

    return send


def metrics(proxy: ProxyHere) -> str:
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/metrics") as answer:
        return str(answer.read().decode())


def verdict(proxy: ProxyHere) -> str:
    return proxy.serving.tuning.sentence


def test_the_better_policy_decides_and_every_shard_is_told(
    answers: list[object], tuned: ProxyHere, send_until: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    buffer = EventBuffer(most=100_000, longest_ns=10**12)
    tuned.in_loop(lambda: tuned.engine.attach(buffer))
    answers.append("a comparison")
    send_until(lambda: tuned.engine.name == "eager")
    reason = "eager: +80.0 points (+80.0 to +80.0), as 90.0 % of 1000 requests are on time when simulated, and 10.0 % "
    reason += "with symphony, in two windows"
    assert reason in [getattr(record, "detail", "") for record in caplog.records]
    (event,) = [each.event for each in buffer.latest if isinstance(each.event, PolicyTuned) and each.event.gain]
    assert (event.verdict, event.policy, event.reason) == ("replaced", "eager", reason)
    rows, _ = latest_decisions([BufferedEvent(event)], 0, float, {})
    assert (rows[0].what, rows[0].text) == ("policy replaced", cut(reason))
    told = metrics(tuned)
    assert 'tidegate_tuning_gain{bound="low"}' in told
    assert float(re.findall(r"^tidegate_tuning_cpu_seconds_total (\S+)", told, re.MULTILINE)[0]) >= 3.0
    assert tuned.stop().failed == 0


def test_a_process_that_ends_changes_nothing(answers: list[object], tuned: ProxyHere, send_until: Make) -> None:
    answers.append(ValueError("the simulation ended with -9: no reason was given"))
    send_until(lambda: "ended with -9" in verdict(tuned))
    assert tuned.engine.name == "auto"
    assert verdict(tuned).startswith("Policy kept: the comparison has no result")


def test_another_policy_by_a_reload_ends_it(answers: list[object], tuned: ProxyHere, send_until: Make) -> None:
    answers.append("a comparison")
    send_until(lambda: tuned.engine.name == "eager")
    config = tuned.serving.config
    tuned.run(tuned.serving.reconfigure(config.model_copy(update={"policy": PolicyChoice(name="fifs")})))
    assert (tuned.engine.name, verdict(tuned)) == ("fifs", "")
    assert "tidegate_tuning" not in metrics(tuned)
    tuned.run(tuned.serving.reconfigure(config))
    assert tuned.engine.name == "auto"
    send_until(lambda: tuned.engine.name == "eager")


def test_what_is_off_is_not_imported() -> None:
    said = "import sys; import tidegate_proxy.app.serve; print([each for each in sys.modules if 'tuning' in each])"
    out = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout
    assert "live_tuning" not in out and "sim.tuning" not in out


def test_the_process_compares_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(n, "m", 1, n * 4 * NS_PER_MS, (n * 4 + 100) * NS_PER_MS) for n in range(300)]
    question = WhatIfQuestion(SETUP, "", {}, EngineSettings(learn=True, max_tries=2), ())
    job = ComparisonJob(question, [True] * 300, [PolicyCandidate("symphony"), EAGER], 1, 0.9)
    encode = msgspec.json.encode
    asked = b"\n".join((encode(job), encode(requests[:200]), encode(requests[200:]), b"", b""))
    out = io.BytesIO()
    stdin, stdout = io.TextIOWrapper(io.BytesIO(asked + asked)), io.TextIOWrapper(out)
    monkeypatch.setattr(tuning_process, "step_aside", lambda: None)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", stdout)
    tuning_process.main()
    first, second = (msgspec.json.decode(line, type=TuningAnswer) for line in out.getvalue().splitlines())
    assert first.comparison == second.comparison
    assert first.comparison.simulated_requests == 600
    assert first.comparison.outcomes[1].on_time == sum(first.comparison.requests)
    assert first.cpu_s > second.cpu_s > 0


CHILD = r"""
import os, sys
for line in sys.stdin:
    if line == "\n":
        print(f'"{os.getpid()}"', flush=True)
    if "die" in line:
        sys.exit("I was told to")
    if "wait" in line:
        sys.stdin.read()
"""


async def test_a_process_that_ends_says_why_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child_of_tests.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = SimulationProcess("child_of_tests")
    requests = [Request(0, "m", 1, 0, 1)]
    first = await process.ask("x", requests, 120)
    assert await process.ask("x", requests, 120) == first, "it goes on"
    with pytest.raises(ValueError, match="ended with 1: I was told to"):
        await process.ask("die", requests, 120)
    second = await process.ask("x", requests, 120)
    assert second != first
    assert process.process_id is not None
    os.kill(process.process_id, signal.SIGKILL)
    with contextlib.suppress(ValueError):  # it may be seen before or after the question
        await process.ask("x", requests, 120)
    assert await process.ask("x", requests, 120) != second
    with pytest.raises(ValueError, match="did not end within"):
        await process.ask("wait", requests, 0.1)
    assert process.process_id is None
