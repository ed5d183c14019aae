"""Traces: both formats, and errors that name file, line and remedy."""

from pathlib import Path

import pytest

from tidegate.workload import Trace, TraceError, TraceFormat, read_trace


def read(tmp_path: Path, text: str, form: TraceFormat = TraceFormat.lines) -> Trace:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    read_trace.cache_clear()
    return read_trace(path, form)


def test_lines_are_seconds_in_any_order(tmp_path: Path) -> None:
    trace = read(tmp_path, "# recorded in May\n12.5\n10\n\n11  # a comment\n")
    assert trace == Trace((0.0, 1.0, 2.5), None, 3.75)
    assert trace.rate_rps == pytest.approx(0.8)


def test_lines_may_name_models(tmp_path: Path) -> None:
    trace = read(tmp_path, "0 bert\n1, resnet\n2 bert\n")
    assert trace.source == ("bert", "resnet", "bert")
    assert trace.sources_by_popularity() == ["bert", "resnet"]


def test_azure_functions_arrive_when_their_invocation_starts(tmp_path: Path) -> None:
    text = "app,func,end_timestamp,duration\na,f,10.0,4.0\nb,g,7.0,0.5\na,f,9.0,0.0\n"
    trace = read(tmp_path, text, TraceFormat.azure_functions_2021)
    assert trace.at_s == (0.0, 0.5, 3.0)
    assert trace.source == ("a/f", "b/g", "a/f")


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("1\nsoon\n", "lines", r"trace.txt:2: 'soon' is no number of seconds"),
        ("1\nnan\n", "lines", r"trace.txt:2: 'nan'"),
        ("seconds\n1\n", "lines", r"trace.txt:1: 'seconds' is no number of seconds; a heading begins with #$"),
        ("1.5s\n2\n", "lines", r"trace.txt:1: '1.5s' is no number of seconds$"),
        ("1 a b\n2\n", "lines", r"trace.txt:1: '1 a b' is not `SECONDS \[MODEL\]`"),
        ("1\n2 bert\n", "lines", "name it on all of them or on none"),
        ("1\n", "lines", "at least two arrivals"),
        ("1\n1\n", "lines", "at different instants"),
        ("app,func,duration\n", "azure-functions-2021", "no column 'end_timestamp'; has app, func, duration"),
        ("", "azure-functions-2021", "no column 'app'; has none"),
        ("app,func,end_timestamp,duration\na,f,1\n", "azure-functions-2021", r":2: 3 fields where the header has 4"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, form: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, text, TraceFormat(form))


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.txt: No such file"):
        read_trace(tmp_path / "absent.txt", TraceFormat.lines)
