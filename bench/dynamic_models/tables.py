"""Markdown tables of the figures for docs/results: `python -m bench.dynamic_models.tables FILE`; FILE is from
`--json`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidegate_loadtest.comparison.intervals import difference_of

Report = Mapping[str, Any]
"""An object of that file."""
DEFAULT = "Tidegate"
COLUMNS = (
    ("attainment", 100, "{:.1f}"),
    ("goodput_rps", 1, "{:.1f}"),
    ("p50_ms", 1, "{:.1f}"),
    ("p99_ms", 1, "{:.0f}"),
    ("mean_batch_rows", 1, "{:.2f}"),
)
"""Figures, their factors and their formats."""


def tables(report: Report) -> str:
    """Return a section for every model: latency of its inputs, a single caller, and every load."""
    return "\n".join(line for name, model in report["models"].items() for line in _section(name, model))


def _section(name: str, model: Report) -> Iterator[str]:
    yield f"## {name}: {model['inputs']}\n"
    alone, singles = model["alone"], model["single_caller"]
    waits = f"{alone['mean_ms']:.1f} ms in the mean, p99 {alone['p99_ms']:.1f} ms"
    yield f"SLO {model['slo_ms']:g} ms; a request alone {waits}.\n"
    sizes = sorted({int(size) for _, medians in alone["by_shape"].values() for size in medians})
    yield _row("shape", "inputs", *(f"ms, {size} at a time" for size in sizes))
    yield _row(*["---"] * (2 + len(sizes)))
    for shape, (files, medians) in alone["by_shape"].items():
        yield _row(shape or "all", files, *(f"{medians[str(size)]:.1f}" for size in sizes))
    yield ""
    for single in singles:
        base, target = single["base"], single["target"]
        waited = " and ".join(
            f"{each} {single['p50_ms'][each]['mean']:.2f} ms (p99 {single['p99_ms'][each]['mean']:.1f})"
            for each in (base, target)
        )
        yield f"One caller at a time, p50: {waited}; apart {_interval(single['difference_ms'], '{:+.2f}')} ms.\n"
    if not model["loads"]:
        return
    yield _row(
        "load", "", "attainment %", "goodput /s", "p50 ms", "p99 ms", "mean batch", f"{DEFAULT} against it, points"
    )
    yield _row(*["---"] * 8)
    for load in model["loads"]:
        yield from _load(load)
    yield ""


def _load(load: Report) -> Iterator[str]:
    """A line for each contender; the best of Triton's is bold."""
    comparison = load["comparison"]
    figures = {(each["target"], each["figure"]): each for each in comparison["figures"]}
    attained: dict[str, dict[int, float]] = {}
    for row in comparison["rows"]:
        if row["model"] == "*" and row["round"] in comparison["complete_rounds"]:
            attained.setdefault(row["target"], {})[row["round"]] = 100 * row["attainment"]
    first = f"{load['load']:.0%}, {load['rate_rps']:.1f}/s"
    for target in (each["name"] for each in comparison["targets"]):
        pairs = [(own, attained[target][number]) for number, own in attained.get(DEFAULT, {}).items()]
        apart = difference_of(pairs)
        against = "" if target == DEFAULT or apart is None else _interval(vars(apart), "{:+.1f}")
        cells = [_spread(figures[target, figure], scale, form) for figure, scale, form in COLUMNS]
        yield _row(first, f"**{target}**" if target == load["best_of_triton"] else target, *cells, against)
        first = ""


def _spread(interval: Report, scale: float, form: str) -> str:
    """`98.3 ± 0.4`."""
    if interval["mean"] is None:
        return "-"
    mean = form.format(scale * interval["mean"])
    if interval["low"] is None:
        return mean
    return f"{mean} ± {form.format(scale * (interval['high'] - interval['low']) / 2)}"


def _interval(interval: Report, form: str) -> str:
    """`+1.2 (-0.1 .. +2.5)`."""
    if interval["low"] is None:
        return form.format(interval["mean"])
    return f"{form.format(interval['mean'])} ({form.format(interval['low'])} .. {form.format(interval['high'])})"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
