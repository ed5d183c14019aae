"""Orloj against Clipper, Nexus, Clockwork and Symphony on the workloads of its paper (Tables 2 to 5), simulated.

    python -m bench.papers.orloj --json orloj.json

Prints finish rates beside the published ones; the cost of learning latency distributions; one queue against one for
each application; and the time of an insertion with thousands of pending requests (figure 10). Takes about 15 minutes on
two cores.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from rich.console import Console

from bench.common import console_of, parser_of, print_table, run_all, write_json
from bench.papers.orloj_paper import SYSTEMS, published
from bench.papers.orloj_workloads import CASES, LOAD, SLOS, Workload
from tidegate.api import (
    LatencyDistribution,
    Model,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    WorkerReady,
    ms_to_ns,
)
from tidegate.host import Plugins
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice

SEED: Final = 1
EARLIEST: Final = PolicyChoice(name="orloj", options={"batch_selection": "earliest"}, label="earliest")
"""Algorithm 1 as printed."""
COMPARED: Final = (*(PolicyChoice(name=name) for name in SYSTEMS), EARLIEST, PolicyChoice(name="symphony"))
KNOWN: Final = PolicyChoice(name="orloj", label="informed")
LEARNED: Final = PolicyChoice(name="orloj", label="learned")
SOME_CASES: Final = ("two-modal", "eight-modal", "bart-cnn", "rdinet-cifar")
BY_SHAPE: Final = tuple(
    PolicyChoice(name=name, label=f"{name}{way}") for name in ("symphony", "orloj") for way in ("", " by shape")
)
"""Policies with all requests in one queue, and with a queue for each application, whose latency is its own."""
PENDING: Final = (100, 1000, 5000, 10_000)
PARTS: Final = ("tables", "learning", "shapes", "insertion")


@dataclass(frozen=True)
class Cell:
    """A workload and a policy."""

    workload: Workload
    policy: PolicyChoice


@dataclass(frozen=True)
class Finished:
    """Result of a cell."""

    cell: Cell
    finish_rate: float
    mean_batch_rows: float
    row: dict[str, Any] = field(default_factory=dict)


def run_cell(cell: Cell) -> Finished:
    """Simulate a cell."""
    scenario = cell.workload.scenario(cell.policy)
    requests = cell.workload.requests_of(scenario, SEED)
    total = simulate(RunSpec(scenario, cell.policy, SEED), requests=requests).total
    row = {
        **asdict(cell.workload),
        "policy": cell.policy.title,
        "finish_rate": total.attainment,
        "mean_batch_rows": total.mean_batch_rows,
        "p50_ms": total.p50_ms,
        "accepted": total.accepted,
    }
    return Finished(cell, total.attainment, total.mean_batch_rows or 0.0, row)


def bench_insertion(pending: int, insertions: int = 500) -> dict[str, float]:
    """Measure, with `pending` queued requests, the time of an insertion and of a choice of a batch, in ms.

    `insertions`: number of repetitions.
    """
    times = [
        LatencyDistribution("m", f"mode {mode}", "default", tuple(ms_to_ns(10 + 20 * mode + at) for at in range(64)))
        for mode in range(3)
    ]
    setup = Setup(
        models=(Model("m", 16, slo_ns=ms_to_ns(1e6)),),
        workers=(Worker(0, "w0", ("m",)),),
        profiles=(Profile.linear("m", alpha_ms=40, beta_ms=10, max_rows=16),),
        latency_distributions=tuple(times),
    )
    policy = Plugins.installed().make_policy("orloj", setup, {})

    def arrive(number: int) -> float:
        now_ns = ms_to_ns(number / 100)
        due_ns = now_ns + ms_to_ns(1e5 + number % 977)
        event = RequestArrived(now_ns, Request(number, "m", 1, now_ns, due_ns, app=f"mode {number % 3}"))
        started_ns = perf_counter_ns()
        policy.handle(event)
        return (perf_counter_ns() - started_ns) / 1e6

    for number in range(pending + 1):  # the first one occupies the worker
        arrive(number)
    inserted_ms = [arrive(pending + 1 + number) for number in range(insertions)]
    chosen_ms = []
    for number in range(insertions // 10):
        now_ns = ms_to_ns((pending + insertions) / 100 + number)
        started_ns = perf_counter_ns()
        policy.handle(WorkerReady(now_ns, 0, now_ns))
        chosen_ms.append((perf_counter_ns() - started_ns) / 1e6)
    return {
        "pending": pending,
        "insertion_p50_ms": float(np.quantile(inserted_ms, 0.5)),
        "insertion_p99_ms": float(np.quantile(inserted_ms, 0.99)),
        "choice_p50_ms": float(np.quantile(chosen_ms, 0.5)),
        "choice_p99_ms": float(np.quantile(chosen_ms, 0.99)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulations, print tables and write figures."""
    parser = parser_of("bench.papers.orloj", __doc__, jobs=True)
    parser.add_argument("--only", choices=PARTS, help="one of the parts")
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", help="of the tables; default: all")
    parser.add_argument("--requests", type=int, default=5000, help="in each cell; default 5000")
    parser.add_argument("--load", type=float, default=LOAD, help=f"requests in the mean time; default {LOAD:g}")
    options = parser.parse_args(arguments)
    console = console_of(140)
    parts = [options.only] if options.only else list(PARTS)
    found: dict[str, Any] = {"load": options.load, "requests": options.requests}

    def run(cases: Sequence[str], policies: Sequence[PolicyChoice]) -> list[Finished]:
        cells = [
            Cell(
                Workload(
                    case,
                    slo,
                    options.load,
                    requests=options.requests,
                    known=policy.title != LEARNED.title,
                    by_shape=policy.title.endswith("by shape"),
                ),
                policy,
            )
            for case in cases
            for slo in SLOS
            for policy in policies
        ]
        return run_all(console, "cells", run_cell, cells, options.jobs)

    cases = options.cases or CASES
    show: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "tables": lambda: _tables(console, run(cases, COMPARED)),
        "learning": lambda: _rates(console, "Distributions", run(SOME_CASES, [KNOWN, LEARNED])),
        "shapes": lambda: _rates(console, "One queue, or one for each application", run(SOME_CASES, BY_SHAPE)),
        "insertion": lambda: _insertions(console),
    }
    for part in parts:
        found[part] = show[part]()
        write_json(options.json, found)


def _tables(console: Console, results: Sequence[Finished]) -> list[dict[str, Any]]:
    """Ours beside the paper's, in the order of its tables; a cell of Orloj that is below the paper's is marked."""
    paper = published()
    ours = {(each.cell.workload.case, each.cell.workload.slo, each.cell.policy.title): each for each in results}
    titles = [choice.title for choice in COMPARED]
    lines = []
    rows, below = [], 0
    for case, slo in dict.fromkeys((each.cell.workload.case, each.cell.workload.slo) for each in results):
        theirs = paper[case][SLOS.index(slo)]
        rates = [ours[case, slo, name].finish_rate for name in titles]
        short = theirs["orloj"] - round(ours[case, slo, "orloj"].finish_rate, 2)
        below += short > 0
        mark = f"-{short:.2f}" if short > 0 else ""
        lines.append(
            (
                case if slo == SLOS[0] else "",
                f"{slo:g}",
                *(f"{rate:.2f}" for rate in rates),
                *(f"{theirs[name]:.2f}" for name in SYSTEMS),
                mark,
            )
        )
        rows += [{**ours[case, slo, name].row, "published": theirs.get(name)} for name in titles]
    columns = ("case", "SLO", *titles, *(f"paper's {name}" for name in SYSTEMS), "")
    print_table(console, "Finish rate", columns, lines)
    console.print(f"{below} of {len(rows) // len(titles)} cells in which Orloj is below the paper's")
    for name in titles:
        mean = np.mean([each.finish_rate for each in results if each.cell.policy.title == name])
        console.print(f"  {name}: {mean:.3f} on average")
    return rows


def _rates(console: Console, title: str, results: Sequence[Finished]) -> list[dict[str, Any]]:
    policies = list(dict.fromkeys(each.cell.policy.title for each in results))
    by_cell: dict[tuple[str, float], list[Finished]] = {}
    for each in results:
        by_cell.setdefault((each.cell.workload.case, each.cell.workload.slo), []).append(each)
    rows = [
        [case, f"{slo:g}", *(f"{each.finish_rate:.3f}" for each in members)] for (case, slo), members in by_cell.items()
    ]
    means = [np.mean([each.finish_rate for each in results if each.cell.policy.title == name]) for name in policies]
    rows.append(["mean", "", *(f"{mean:.3f}" for mean in means)])
    print_table(console, title, ["case", "SLO", *policies], rows)
    return [each.row for each in results]


def _insertions(console: Console) -> list[dict[str, Any]]:
    rows = [bench_insertion(pending) for pending in PENDING]
    columns = [name.replace("_", " ") for name in rows[0]]
    cells = ([f"{value:g}" if name == "pending" else f"{value:.3f}" for name, value in row.items()] for row in rows)
    print_table(console, "Milliseconds", columns, cells)
    return rows


if __name__ == "__main__":
    main()
