"""Records as lines: for people, for machines, and not too many of them."""

import io
import json
import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.observability.logs import JsonFormatter, RateLimit, TextFormatter, configure_logs, fields_of


def _record(message: str, *arguments: object, at_s: float = 0.0, **fields: Any) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "tidegate", "levelno": 40, "levelname": "ERROR", **fields})
    record.msg, record.args, record.created = message, arguments, at_s
    return record


def test_a_json_line_holds_message_and_fields() -> None:
    line = json.loads(JsonFormatter().format(_record("lost %s", "it", at_s=1.5, triton="a:1", workers=2)))
    assert line == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "error",
        "logger": "tidegate",
        "message": "lost it",
        "triton": "a:1",
        "workers": 2,
    }


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("too deep")
    except ValueError as error:
        record = _record("broken", exc_info=(ValueError, error, error.__traceback__))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: too deep" in json.loads(line)["exception"]


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "message", "time"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    )
)
def test_whatever_the_fields_a_line_is_one_json_object(fields: dict[str, Any]) -> None:
    line = JsonFormatter().format(_record("plain", **{key: value for key, value in fields.items() if key != "message"}))
    assert "\n" not in line

    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(line, parse_constant=fail)["message"] == "plain"


def test_tensors_are_never_logged() -> None:
    tensor = np.full(100, 7, np.float32)
    fields = fields_of(
        _record("x", array=tensor, view=memoryview(tensor.tobytes()), raw=tensor.tobytes(), text="y" * 999)
    )
    assert fields == {
        "array": "<ndarray, 400 bytes>",
        "view": "<memoryview, 400 bytes>",
        "raw": "<bytes, 400 bytes>",
        "text": "y" * 500 + "... (999 characters)",
    }


def test_a_line_for_people_ends_with_the_fields() -> None:
    def line(**fields: Any) -> str:
        return TextFormatter("%(message)s").format(_record("triton lost", **fields))

    assert line() == "triton lost"
    assert line(triton="a:1", workers=2) == "triton lost (triton=a:1, workers=2)"
    assert line(triton="a:1", error="reset") == "triton lost: reset (triton=a:1)"
    assert line(detail="it failed", error="reset") == "triton lost: reset: it failed"


def test_a_message_that_repeats_is_cut_and_counted() -> None:
    limit = RateLimit(burst=2, window_s=10)
    records = [_record("fault of %d", number, at_s=number * 0.1) for number in range(20)]
    assert [limit.filter(record) for record in records] == [True, True] + [False] * 18
    assert limit.filter(_record("another fault", at_s=2.0))
    later = _record("fault of %d", 20, at_s=10.0)
    assert limit.filter(later)
    assert fields_of(later) == {"suppressed": 18}
    calm = _record("fault of %d", 21, at_s=30.0)
    assert limit.filter(calm)
    assert fields_of(calm) == {}


def test_messages_made_anew_do_not_fill_the_memory() -> None:
    limit = RateLimit()
    for number in range(3000):
        limit.filter(_record(f"fault of {number}"))
    assert len(limit._seen) == 1000


@pytest.fixture
def restored_root() -> object:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.usefixtures("restored_root")
def test_configured_logs_reach_stderr(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(log_format)  # type: ignore[arg-type]  # parametrized
    logging.getLogger("tidegate_proxy.test").warning("a [bold] word", extra={"triton": "h:1"})
    logging.getLogger("tidegate_proxy.test").debug("not this")
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    if log_format == "json":
        assert json.loads(errors) | {"time": ""} == {
            "time": "",
            "level": "warning",
            "logger": "tidegate_proxy.test",
            "message": "a [bold] word",
            "triton": "h:1",
        }
    else:
        assert errors.rstrip().endswith("WARNING  a [bold] word (triton=h:1)")


@pytest.mark.usefixtures("restored_root")
def test_lines_in_files_are_as_long_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    words = " ".join(str(number) for number in range(200))
    logging.getLogger("tidegate_proxy.test").warning(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(words)


@pytest.mark.usefixtures("restored_root")
def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure_logs("json", "LOUD")


def test_a_handler_writes_what_the_limit_lets_through() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimit(burst=1))
    for _ in range(5):
        handler.handle(_record("again"))
    assert out.getvalue().count("\n") == 1
