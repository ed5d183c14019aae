"""JSON documents of the commands: versioned, and byte-identical for the same scenario and seeds on any machine."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import Any

from tidegate.sim.goodput import Goodput
from tidegate.sim.result import ResultRow, RunResult
from tidegate.sim.run import RunSpec
from tidegate.workload import Scenario

DOCUMENT_VERSION = 1
"""Version of the JSON documents, increased when a field changes its meaning or is removed."""

Document = dict[str, Any]
NOT_SINGLE = {"dropped", "batch_rows", "busy_shares", "advice"}
"""Fields of a row that contain several numbers."""


def simulate_document(scenario: Scenario, results: Sequence[RunResult]) -> Document:
    """Return the results of `tidegate simulate`: one row per (policy, seed, model), recommendations, layout changes."""
    changes = [
        {"policy": result.total.policy, "seed": result.total.seed, **asdict(change)}
        for result in results
        for change in result.changes
    ]
    advice = [
        {"policy": result.total.policy, "seed": result.total.seed, **asdict(each)}
        for result in results
        for each in result.advice
    ]
    tenants = [
        {"policy": result.total.policy, "seed": result.total.seed, **asdict(tenant)}
        for result in results
        for tenant in result.tenants
    ]
    document = {**_head("simulate", scenario), "rows": _rows(results), "advice": advice, "changes": changes}
    return {**document, "tenants": tenants} if tenants else document


def goodput_document(scenario: Scenario, goodputs: Sequence[Goodput], *, limit: float, tolerance: float) -> Document:
    """Return the results of `tidegate goodput`: the rates found, every rate tried, and the rows at the rates found.

    `limit`: maximum miss rate of a model, 0 to 1. `tolerance`: relative tolerance of the rates.
    """
    found = [
        {
            "policy": goodput.policy,
            "median_rps": goodput.median_rps,
            "min_rps": goodput.min_rps,
            "max_rps": goodput.max_rps,
            "searches": [
                {
                    "seed": search.seed,
                    "rate_rps": search.rate_rps,
                    "bounded": search.bounded,
                    "probes": [asdict(probe) for probe in search.probes],
                }
                for search in goodput.searches
            ],
        }
        for goodput in goodputs
    ]
    best = [search.best for goodput in goodputs for search in goodput.searches if search.best]
    return {
        **_head("goodput", scenario),
        "limit": limit,
        "tolerance": tolerance,
        "goodput": found,
        "rows": _rows(best),
    }


def sweep_document(scenario: Scenario, runs: Sequence[RunSpec], results: Sequence[RunResult]) -> Document:
    """Return the results of `tidegate sweep`: rows with the changed fields in `set`, and the scenario."""
    rows = [{"set": run.changes, **_row(row)} for run, result in zip(runs, results, strict=True) for row in result.rows]
    return {**_head("sweep", scenario), "rows": rows}


def write_document(path: Path, document: Document) -> None:
    """Write a document as JSON. Raises OSError."""
    path.write_text(json_of(document), encoding="utf-8")


def json_of(document: Document) -> str:
    """Return a document as JSON text."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def rows_csv(rows: Sequence[ResultRow], labels: Sequence[Mapping[str, object]] = ()) -> str:
    """Return rows as CSV: single figures and words, and all drops together.

    `labels`: columns before each row, such as the changes of a sweep.
    """
    names = [each.name for each in fields(ResultRow) if each.name not in NOT_SINGLE]
    before = labels or [{}] * len(rows)
    lines = [
        [*label.values(), *(getattr(row, name) for name in names), sum(row.dropped.values())]
        for label, row in zip(before, rows, strict=True)
    ]
    return as_csv([*next(iter(before), {}), *names, "dropped"], lines)


def as_csv(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return lines as CSV under a header."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(lines)
    return text.getvalue()


def _head(command: str, scenario: Scenario) -> Document:
    return {
        "version": DOCUMENT_VERSION,
        "command": command,
        "scenario": scenario.model_dump(mode="json", exclude_defaults=True),
    }


def _rows(results: Sequence[RunResult]) -> list[Document]:
    return [_row(row) for result in results for row in result.rows]


def _row(row: ResultRow) -> Document:
    return asdict(row)
