"""A request that nobody waits for any more is not run, or not to its end; its worker is free when it was to be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate.api import BatchFailed, Dispatch, StageFinished
from tidegate.observation import read_log
from tidegate.schemas import ModelProfile, ProfilePoint, write_profile
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK = grpc.StatusCode.OK
UPPER_MS = 600.0


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """One by which a batch of `watchful` takes UPPER_MS, whatever its size."""
    points = [ProfilePoint(rows=rows, median_ms=UPPER_MS, p95_ms=UPPER_MS, samples=1) for rows in (1, 4)]
    profile = ModelProfile(model="watchful", alpha_ms=0.0, beta_ms=UPPER_MS, points=points)
    write_profile(tmp_path / "profiles.json", profile)
    return tmp_path / "profiles.json"


@pytest.mark.parametrize("policy_name", ["fifs", "symphony"])
def test_queued_requests_leave_the_engine(
    policy_name: str, gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, start_overdue: Make
) -> None:
    proxy = serve_here([triton], policy=policy_name)
    running = start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    eventually(gate.somebody_waits, "the model to run")
    cancelled = [start_call(proxy, "ModelInfer", request_of("gated", {"X": ROW})) for _ in range(5)]
    eventually(lambda: proxy.engine.tally.accepted == 6, "all of them to arrive")
    overdue = start_overdue(proxy, "ModelInfer", request_of("gated", {"X": ROW}))
    for one in cancelled:
        one.cancel()
    # A policy may drop them before their clients give up.
    assert {outcome(one)[0] for one in overdue} <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    eventually(lambda: proxy.engine.queued == 0, "them to leave")
    gate.open()
    assert outcome(running)[0] is OK
    tally = proxy.stop()
    assert tally.accepted > 6
    assert tally.cancelled + tally.dropped.total() == tally.accepted - 1
    assert tally.cancelled >= 5
    assert tally.answered == 1


def test_a_batch_without_clients_is_cancelled_and_keeps_its_worker_as_planned(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make, profiles: Path, tmp_path: Path
) -> None:
    record = tmp_path / "events.jsonl"
    proxy = serve_here([triton], profiles=profiles, event_log=record)
    alone = start_call(proxy, "ModelInfer", request_of("watchful", {"X": ROW}))
    eventually(gate.somebody_waits, "the model to run")
    # These form the next batch.
    leaves = start_call(proxy, "ModelInfer", request_of("watchful", {"X": ROW}))
    stays = start_call(proxy, "ModelInfer", request_of("watchful", {"X": 2 * ROW}))
    eventually(lambda: proxy.engine.queued == 2, "both to queue")
    alone.cancel()
    eventually(gate.somebody_was_cancelled, "Triton to be told")
    gate.shut()
    eventually(gate.somebody_waits, "the next batch to run")
    assert (proxy.engine.queued, proxy.engine.in_flight) == (0, 1)
    leaves.cancel()
    eventually(lambda: proxy.engine.tally.cancelled == 2, "it to leave")
    gate.open()
    assert outcome(stays)[0] is OK
    assert not gate.somebody_was_cancelled()
    tally = proxy.stop()
    assert (tally.accepted, tally.answered, tally.cancelled) == (3, 1, 2)

    with record.open("rb") as file:
        entries = list(read_log(file)[1])
    planned = [
        command.batch.stages[0] for entry in entries for command in entry.commands if isinstance(command, Dispatch)
    ]
    (cut_short,) = [entry.event for entry in entries if isinstance(entry.event, BatchFailed)]
    (whole,) = [entry.event for entry in entries if isinstance(entry.event, StageFinished)]
    assert planned[0].duration_ns >= UPPER_MS * 1e6
    early_ns = 1e6  # the event loop's timers know milliseconds
    assert cut_short.now_ns >= planned[0].start_ns + planned[0].duration_ns - early_ns
    assert whole.started_ns >= cut_short.now_ns


def test_a_stream_that_leaves_cancels_what_runs_for_it(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, open_stream: Make
) -> None:
    proxy = serve_here([triton])
    stream = open_stream(proxy, [request_of("watchful", {"X": ROW})])
    eventually(gate.somebody_waits, "the model to run")
    stream.cancel()
    eventually(gate.somebody_was_cancelled, "Triton to be told")
    assert proxy.stop().cancelled == 1


def test_what_cannot_be_scheduled_is_cancelled_too(
    gate: Any, triton: EmbeddedTriton, serve_here: Make, start_call: Make
) -> None:
    proxy = serve_here([triton])
    typed = request_of("watchful", {})
    typed.inputs.add(name="X", datatype="FP32", shape=(1, 2)).contents.fp32_contents.extend([1, 2])
    typed.outputs.add(name="Y").parameters["classification"].int64_param = 1  # so it is not scheduled
    forwarded = start_call(proxy, "ModelInfer", typed)
    eventually(gate.somebody_waits, "the model to run")
    forwarded.cancel()
    eventually(gate.somebody_was_cancelled, "Triton to be told")
    assert proxy.stop().accepted == 0
