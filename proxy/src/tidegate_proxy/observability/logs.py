"""Logs as text lines, or one JSON object per line; both with fields.

    log.warning("triton lost", extra={"triton": address, "error": "connection refused"})

prints `triton lost: connection refused (triton=gpu-1:8001)`. The message is constant and begins with the event; what
varies is a field. `error`, the cause, and `detail`, any other text, follow the message; the other fields are in
parentheses. Fields are numbers and short texts. A tensor, or any other object, is logged by its type and size.
"""

import json
import logging
import sys
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from math import isfinite
from typing import Literal

from rich.console import Console
from rich.logging import RichHandler

LogFormat = Literal["text", "json"]
BURST, WINDOW_S = 10, 10.0
"""Rate limit: records of one message per window, and its length in s; the next record has the number suppressed."""
MAX_TEXT_CHARACTERS = 500
"""Largest length of a field in characters."""
_MESSAGES = 1000
"""How many different messages are watched: one that is made again for every request must not fill the memory."""
TEXT_FIELDS = ("error", "detail")
"""Fields that follow the message in text lines: the cause, and any other text."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Attributes of every record; the last is uvicorn's, the message once more."""
_SUPPRESSED = "suppressed"


def configure_logs(log_format: LogFormat = "text", level: str | int = "INFO") -> None:
    """Log to stderr, replacing any earlier configuration. Raises ValueError for an unknown level."""
    handler: logging.Handler
    if log_format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty():
        handler = RichHandler(
            console=Console(stderr=True, soft_wrap=True, highlight=False), show_path=False, log_time_format="[%X]"
        )
        handler.setFormatter(TextFormatter("%(message)s"))
    else:  # rich would fold lines at 80 columns, in files and journals too
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-8s %(message)s"))
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def add_log_fields(**fields: int) -> None:
    """Add fields to every line of this process, e.g. shard=1, because several processes share the output."""

    def signed(record: logging.LogRecord) -> bool:
        vars(record).update(fields)
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(signed)


class JsonFormatter(logging.Formatter):
    """Formatter for one JSON object per line: `time`, `level`, `logger`, `message`, fields, and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in fields_of(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Formatter for text lines: `message: error (name=value, ...)`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the first line; exceptions follow it."""
        fields = fields_of(record)
        texts = [str(fields.pop(name)) for name in TEXT_FIELDS if fields.get(name)]
        listed = ", ".join(f"{name}={value}" for name, value in fields.items() if name not in TEXT_FIELDS)
        line = ": ".join([super().formatMessage(record), *texts])
        return f"{line} ({listed})" if listed else line


class RateLimit(logging.Filter):
    """Filter that passes a message `burst` times per window; arguments do not make it a different message."""

    def __init__(self, burst: int = BURST, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self._burst = burst
        self._window_s = window_s
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()
        """When the window of a message began, and how many came since, by message."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; the first one of a new window gets the field `suppressed`."""
        key = (record.name, record.levelno, str(record.msg))
        with self._lock:
            began_s, count = self._seen.pop(key, (record.created, 0))
            if record.created - began_s >= self._window_s:
                if count > self._burst:
                    setattr(record, _SUPPRESSED, count - self._burst)
                began_s, count = record.created, 0
            self._seen[key] = (began_s, count + 1)
            if len(self._seen) > _MESSAGES:
                self._seen.popitem(last=False)
        return count < self._burst


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields passed as `extra`, shortened for reading and without tensors."""
    return {name: _readable(value) for name, value in vars(record).items() if name not in _STANDARD}


def _readable(value: object) -> object:
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, float):
        return str(value)  # JSON has no word for it
    if isinstance(value, str):
        return (
            value
            if len(value) <= MAX_TEXT_CHARACTERS
            else f"{value[:MAX_TEXT_CHARACTERS]}... ({len(value)} characters)"
        )
    size = getattr(value, "nbytes", None) or (len(value) if isinstance(value, bytes | bytearray) else None)
    return f"<{type(value).__name__}>" if size is None else f"<{type(value).__name__}, {size} bytes>"
