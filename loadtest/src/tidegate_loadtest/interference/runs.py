"""Measured runs of models on shares of a GPU, alone and together, in CSV files.

A solo run is a line `model,batch,share_pct,latency_ms`. The optional `l2_util_pct` and `dram_util_pct` come from Nsight
Compute, `gpu_latency_ms` is the latency without bus transfers. Co-runs are lines of the same columns, where those with
one number in the column `run` ran together; or, for two in a line, `model1,model2,batch1,...`. A column `gpu` names the
GPU.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import isfinite
from pathlib import Path

from tidegate.schemas import Tenant

SOLO_COLUMNS = ("model", "batch", "share_pct", "latency_ms")
CO_RUNS = ("run", *SOLO_COLUMNS)
PAIR_COLUMNS = ("model1", "model2", "batch1", "batch2", "share1_pct", "share2_pct", "latency1_ms", "latency2_ms")


class RunsError(Exception):
    """Error: a file of runs is invalid; the message names file, line and remedy."""


@dataclass(frozen=True)
class SoloRun:
    """Measured run of one batch size of a model, alone on a share of the GPU."""

    model: str
    rows: int
    percent: float
    taken_ms: float
    gpu_ms: float | None = None
    """Compute time in ms; None if not measured."""
    cache_percent: float | None = None
    dram_percent: float | None = None


@dataclass(frozen=True)
class CoRun:
    """Measured run of several models that were all busy all the time."""

    tenants: tuple[Tenant, ...]
    taken_ms: tuple[float, ...]
    """Mean latency of a batch of each, in ms."""

    def sides(self) -> Iterator[tuple[Tenant, tuple[Tenant, ...], float]]:
        """Yield each tenant, its neighbors and its latency in ms."""
        for at, (tenant, taken_ms) in enumerate(zip(self.tenants, self.taken_ms, strict=True)):
            yield tenant, self.tenants[:at] + self.tenants[at + 1 :], taken_ms


def read_solo(path: Path, gpu: str) -> list[SoloRun]:
    """Read the solo runs of a file. Raises RunsError if it is invalid or was measured on another GPU."""
    runs = []
    for line in _lines(path, gpu, SOLO_COLUMNS):
        taken_ms, gpu_ms = line.positive("latency_ms"), line.optional("gpu_latency_ms")
        if gpu_ms is not None and not 0 < gpu_ms <= taken_ms:
            raise line.wrong("gpu_latency_ms", "more than nothing, and no more than latency_ms, of which it is a part")
        percents = (line.optional("l2_util_pct"), line.optional("dram_util_pct"))
        runs.append(SoloRun(*line.tenant(), taken_ms, gpu_ms, *percents))
    return runs


def read_co_runs(path: Path, gpu: str) -> list[CoRun]:
    """Read the co-runs of a file. Raises RunsError if it is invalid or was measured on another GPU."""
    together: dict[str, list[tuple[Tenant, float]]] = {}
    numbers = count()
    for line in _lines(path, gpu, CO_RUNS, PAIR_COLUMNS):
        sides = ("1", "2") if "model1" in line.fields else ("",)
        number = str(next(numbers)) if len(sides) > 1 else line.text("run")
        together.setdefault(number, []).extend(
            (Tenant(*line.tenant(side)), line.positive(f"latency{side}_ms")) for side in sides
        )
    if lonely := [number for number, mine in together.items() if len(mine) < 2]:
        raise RunsError(f"{path}: nothing ran beside the only line of run {lonely[0]!r}: such a line is a solo run")
    return [CoRun(*zip(*mine, strict=True)) for mine in together.values()]


def read_compute(path: Path, gpu: str) -> dict[tuple[str, int, float], float]:
    """Read the compute time in ms of solo runs, by (model, rows, percent). Raises RunsError."""
    columns = ("model", "batch", "share_pct", "gpu_latency_ms")
    return {line.tenant(): line.positive("gpu_latency_ms") for line in _lines(path, gpu, columns)}


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int
    fields: dict[str, str]

    def wrong(self, column: str, needed: str) -> RunsError:
        return RunsError(f"{self.path}:{self.number}: {column} is {self.fields[column]!r}: it must be {needed}")

    def text(self, column: str) -> str:
        if not self.fields[column]:
            raise self.wrong(column, "given")
        return self.fields[column]

    def number_in(self, column: str) -> float:
        try:
            value = float(self.fields[column])
        except ValueError as error:
            raise self.wrong(column, "a number") from error
        if not isfinite(value):
            raise self.wrong(column, "a number")
        return value

    def positive(self, column: str) -> float:
        value = self.number_in(column)
        if value <= 0:
            raise self.wrong(column, "milliseconds, more than none")
        return value

    def optional(self, column: str) -> float | None:
        """Return a non-negative number, or None if it was not measured."""
        if not self.fields.get(column):
            return None
        value = self.number_in(column)
        if value < 0:
            raise self.wrong(column, "0 or more")
        return value

    def tenant(self, side: str = "") -> tuple[str, int, float]:
        """Model, rows, percent."""
        rows, percent = self.number_in(f"batch{side}"), self.number_in(f"share{side}_pct")
        if rows < 1 or rows != int(rows):
            raise self.wrong(f"batch{side}", "a whole number of rows, from 1 on")
        if not 0 < percent <= 100:
            raise self.wrong(f"share{side}_pct", "percent of the GPU, above 0 and up to 100")
        return self.text(f"model{side}"), int(rows), percent


def _lines(path: Path, gpu: str, *headers: Sequence[str]) -> Iterator[_Line]:
    """The lines of a file that has the columns of one of these headers."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            given = reader.fieldnames or ()
            if not any(set(header) <= set(given) for header in headers):
                ways = ", or ".join(",".join(header) for header in headers)
                raise RunsError(f"{path}: its columns are {','.join(given) or 'none'}; it needs {ways}")
            entries = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RunsError(f"{path}: {why}; give a CSV file of runs") from error
    if not entries:
        raise RunsError(f"{path}: it has a header and nothing else")
    for number, fields in enumerate(entries, 2):
        line = _Line(path, number, fields)
        if fields.get("gpu", gpu) != gpu:
            raise line.wrong("gpu", f"{gpu!r}, as --gpu says: runs of one GPU say nothing of another")
        yield line


def write_solo(path: Path, gpu: str, runs: Sequence[SoloRun]) -> None:
    """Write solo runs, as `read_solo` reads them. Raises OSError, also if the file exists.

    `gpu`: product that was measured.
    """
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gpu", *SOLO_COLUMNS])
        writer.writerows([gpu, run.model, run.rows, f"{run.percent:g}", f"{run.taken_ms:.6f}"] for run in runs)


def write_co_runs(path: Path, gpu: str, runs: Sequence[CoRun]) -> None:
    """Write co-runs, as `read_co_runs` reads them. Raises OSError, also if the file exists.

    `gpu`: product that was measured.
    """
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gpu", *CO_RUNS])
        for number, run in enumerate(runs, 1):
            for tenant, _, taken_ms in run.sides():
                writer.writerow([gpu, number, tenant.partition, tenant.rows, f"{tenant.percent:g}", f"{taken_ms:.6f}"])
