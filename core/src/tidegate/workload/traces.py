"""Traces: recorded arrivals, one in each line or in the format of the Azure Functions trace of 2021."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from pathlib import Path


class TraceError(Exception):
    """Error: a trace cannot be used; the message names file, line and remedy."""


class TraceFormat(StrEnum):
    """Format of a trace file."""

    lines = "lines"
    """One arrival in each line: seconds, and after a blank or a comma the model's name, if known.

    `#` starts a comment.
    """
    azure_functions_2021 = "azure-functions-2021"
    """CSV with the columns app, func, end_timestamp, duration (s); an arrival is the start of an invocation."""


@dataclass(frozen=True)
class Trace:
    """Recorded arrivals in the order of time."""

    at_s: tuple[float, ...]
    """Seconds since the first arrival."""
    source: tuple[str, ...] | None
    """Source of each arrival: a model (lines) or a function (Azure); None: not recorded."""
    period_s: float
    """Length of the trace in seconds, including the mean gap after its last arrival; then it repeats."""

    @property
    def rate_rps(self) -> float:
        """Mean arrivals per second."""
        return len(self.at_s) / self.period_s

    def sources_by_popularity(self) -> list[str]:
        """Return the sources of the arrivals, most frequent first, equal ones by name."""
        counts = Counter(self.source or ())
        return sorted(counts, key=lambda name: (-counts[name], name))


@lru_cache(maxsize=4)
def read_trace(path: Path, form: TraceFormat) -> Trace:
    """Read a trace file of the given format. Raises TraceError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            arrivals = _from_azure(path, csv.reader(file)) if form is TraceFormat.azure_functions_2021 else None
            if arrivals is None:
                arrivals = [_from_line(path, number, line) for number, line in enumerate(file, 1) if _says(line)]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise TraceError(f"{path}: {why}; a trace has one arrival per line, or is an Azure Functions CSV") from error
    arrivals.sort(key=lambda arrival: arrival[0])
    if len(arrivals) < 2 or not arrivals[-1][0] > arrivals[0][0]:
        raise TraceError(f"{path}: a trace needs at least two arrivals at different instants")
    if len({source is None for _, source in arrivals}) > 1:
        raise TraceError(f"{path}: some lines name a model and some do not; name it on all of them or on none")
    first_s = arrivals[0][0]
    at_s = tuple(at - first_s for at, _ in arrivals)
    sources = tuple(source for _, source in arrivals if source is not None)
    return Trace(at_s, sources or None, at_s[-1] * len(at_s) / (len(at_s) - 1))


def _says(line: str) -> bool:
    return bool(line.partition("#")[0].strip())


def _from_line(path: Path, number: int, line: str) -> tuple[float, str | None]:
    at, *names = line.partition("#")[0].replace(",", " ").split()
    if len(names) > 1:
        raise TraceError(f"{path}:{number}: {line.strip()!r} is not `SECONDS [MODEL]`")
    return _seconds(path, number, at), names[0] if names else None


def _from_azure(path: Path, rows: Iterator[list[str]]) -> list[tuple[float, str | None]]:
    header: list[str] = next(rows, [])
    columns = {name.strip(): index for index, name in enumerate(header)}
    missing = [name for name in ("app", "func", "end_timestamp", "duration") if name not in columns]
    if missing:
        raise TraceError(
            f"{path}:1: no column {missing[0]!r}; has {', '.join(columns) or 'none'}: is it another format?"
        )
    app, func, end, duration = (columns[name] for name in ("app", "func", "end_timestamp", "duration"))
    arrivals: list[tuple[float, str | None]] = []
    for number, row in enumerate(rows, 2):
        if len(row) < len(header):
            raise TraceError(f"{path}:{number}: {len(row)} fields where the header has {len(header)}")
        start_s = _seconds(path, number, row[end]) - _seconds(path, number, row[duration])
        arrivals.append((start_s, f"{row[app]}/{row[func]}"))
    return arrivals


def _seconds(path: Path, number: int, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not isfinite(seconds):
        remedy = "; a heading begins with #" if number == 1 and not any(map(str.isdigit, text)) else ""
        raise TraceError(f"{path}:{number}: {text!r} is no number of seconds{remedy}")
    return seconds
