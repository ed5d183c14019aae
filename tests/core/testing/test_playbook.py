"""Transcripts: what passes, and what a mismatch shows."""

import pytest
from msgspec.structs import replace

from tests.arrivals import Arrivals
from tidegate.api import (
    Batch,
    Dispatch,
    Drop,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Stage,
    Worker,
    WorkerReady,
)
from tidegate.testing import Playbook, TranscriptMismatch
from tidegate.testing import arrived as of_requests
from tidegate.toolkit import FirstComeFirstServed

SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (Profile("m", "default", (10, 20, 30, 40)),))
RUN_0 = Dispatch(Batch(0, "m", (0,), (Stage(0, "m", 0, 10),)))
RUN_1 = Dispatch(Batch(1, "m", (1,), (Stage(0, "m", 10, 10),)))


def playbook() -> Playbook:
    return Playbook(FirstComeFirstServed(SETUP, PolicyOptions()))


arrived = Arrivals()


def test_a_transcript_that_holds_is_true() -> None:
    assert playbook() >> arrived(0) << RUN_0 >> arrived(1, 5) >> WorkerReady(10, 0, 10) << RUN_1


def test_commands_can_be_looked_at_instead() -> None:
    book = playbook() >> arrived(0)
    assert book.commands() == [RUN_0]
    assert book.commands() == []
    assert book


def test_another_command_is_shown_beside_the_expected_one_after_the_timeline_so_far() -> None:
    with pytest.raises(TranscriptMismatch) as mismatch:
        _ = playbook() >> arrived(0) << RUN_0 >> arrived(1, 5) >> WorkerReady(10, 0, 10) << RUN_0
    lines = [line.strip() for line in str(mismatch.value).strip().splitlines()]
    assert lines == [
        f">> {arrived(0)}",
        f"<< {RUN_0}",
        f">> {arrived(1, 5)}",
        f">> {WorkerReady(10, 0, 10)}",
        f"expected << {RUN_0}",
        f"actual   << {RUN_1}",
    ]


def test_a_missing_command_is_a_mismatch() -> None:
    with pytest.raises(TranscriptMismatch, match="actual   << nothing"):
        _ = playbook() >> arrived(0) << RUN_0 << Drop(1, "deadline_unreachable")


def test_a_command_too_many_is_a_mismatch_at_the_next_event_and_at_the_end() -> None:
    with pytest.raises(TranscriptMismatch, match=r"expected << nothing more\nactual   << Dispatch"):
        _ = playbook() >> arrived(0) >> arrived(1)
    with pytest.raises(TranscriptMismatch, match="expected << nothing more"):
        assert playbook() >> arrived(0)


def test_requests_of_a_transcript_may_have_a_shape_and_an_application() -> None:
    event = of_requests(1, 7, model="m", rows=2, due_ns=99, merge_key="wide", app="ocr", shape="x:3,48,320")
    assert event == RequestArrived(7, Request(1, "m", 2, 7, 99, "wide", app="ocr", shape="x:3,48,320"))
    wide = Profile("m", "default", (15, 25, 35, 45), shape="x:3,48,320")
    policy = FirstComeFirstServed(replace(SETUP, profiles=(*SETUP.profiles, wide)), PolicyOptions())
    planned = Dispatch(Batch(0, "m", (0,), (Stage(0, "m", 0, 15),)))
    assert Playbook(policy) >> of_requests(0, model="m", shape="x:3,48,320") << planned
