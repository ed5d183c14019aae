"""The event log: written by an observer, read back as what was written, refused with the line that is wrong."""

import io

import pytest

from tidegate.api import Model, PolicyOptions, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import Engine
from tidegate.observation import LogEntry, Recorder, read_log
from tidegate.toolkit import FirstComeFirstServed

SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (Profile("m", "default", (1, 2, 3, 4)),), seed=7)
ARRIVED = RequestArrived(5, Request(0, "m", 1, 5))


def recorded() -> list[bytes]:
    log = io.BytesIO()
    engine = Engine(FirstComeFirstServed(SETUP, PolicyOptions()), name="first", observers=[Recorder(log)])
    engine.handle(ARRIVED)
    return log.getvalue().splitlines()


def test_a_log_reads_back_as_it_was_written() -> None:
    header, entries = read_log(recorded())
    assert (header.policy, header.options, header.setup) == ("first", {}, SETUP)
    (entry,) = entries
    assert isinstance(entry, LogEntry)
    assert entry.event == ARRIVED
    assert [type(command).__name__ for command in entry.commands] == ["Dispatch"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1 is no header of an event log"),
        ([b"{}"], "line 1 is no header of an event log"),
        (
            [recorded()[0].replace(b'"version":3', b'"version":99')],
            "version 99, this Tidegate reads 3: record it again",
        ),
        ([recorded()[0], recorded()[1], b'{"event":'], "line 3 is no entry of an event log"),
        ([recorded()[0], recorded()[1].replace(b"RequestArrived", b"Invented")], "line 2 is no entry"),
    ],
    ids=["empty", "no header", "another version", "torn", "unknown event"],
)
def test_what_is_no_log_is_refused_with_its_line(lines: list[bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_log(lines)[1])
