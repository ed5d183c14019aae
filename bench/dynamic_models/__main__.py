"""Dynamic models under Triton's dynamic batcher and under Tidegate.

Prints a table for each load, the difference between Tidegate and the best setting of Triton at that load, and the
latency of a single caller. Keep the machine otherwise idle.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.dynamic_models import MODULES, ON_REQUEST, NotInstalledError, find_case
from bench.dynamic_models.baselines import DELAYS, contenders, generate_repository, running
from bench.dynamic_models.case import Case
from bench.dynamic_models.loads import Load, run_load
from bench.dynamic_models.measuring import SIZES, Alone, SingleCaller, ask_in_turn, measure_alone
from tidegate.commands.common import origin
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.page import comparison_page
from tidegate_loadtest.comparison.table import print_comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_proxy.tritons.embedded import EmbeddedTriton

LOADS = (0.3, 0.5, 0.8, 1.1)


def bench_model(console: Console, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one model: its latency alone, a single caller, and every load; return the figures as a JSON object."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as servers:
        work = Path(folder)
        onnx, inputs, generated = work / "model.onnx", work / "inputs", work / "models"
        inputs.mkdir()
        with console.status(f"{case.model}: writing the model and its inputs"):
            case.write_model(onnx)
            case.write_inputs(inputs)
            generate_repository(generated, onnx, case)
        alone = _alone(console, case, work, generated, inputs)
        _show_alone(console, case, alone)
        chosen = contenders(case, arguments.delays, arguments.policy, dict(arguments.tidegate))
        with console.status(f"{case.model}: starting servers") as status:
            targets = servers.enter_context(
                running(work, generated, case, chosen, lambda name: status.update(f"{case.model}: starting {name}"))
            )
        with_tidegate = [target for target, contender in zip(targets, chosen, strict=True) if not contender.batcher]
        singles = [_single_caller(console, case, (targets[0], target), inputs, arguments) for target in with_tidegate]
        loads = []
        for share in arguments.loads:
            load = run_load(
                console,
                case,
                chosen,
                targets,
                inputs,
                alone,
                share,
                rounds=arguments.rounds,
                duration_s=arguments.seconds,
                warmup_s=arguments.warmup,
            )
            _show_load(console, case, load, arguments)
            loads.append(load.document())
    return {
        "inputs": case.inputs,
        "slo_ms": case.slo_ms,
        "rows": case.rows,
        "alone": asdict(alone),
        "single_caller": [asdict(single) for single in singles],
        "loads": loads,
    }


def _alone(console: Console, case: Case, work: Path, generated: Path, inputs: Path) -> Alone:
    with EmbeddedTriton([generated], log=work / "alone.log") as triton, progress_bar(console, 1.0) as show:
        return asyncio.run(measure_alone(triton.grpc_address, case, inputs, progress=show))


def _show_alone(console: Console, case: Case, alone: Alone) -> None:
    sizes = sorted({size for _, medians in alone.by_shape.values() for size in medians})
    title = f"{case.model}: {case.inputs}; alone {alone.mean_ms:.1f} ms in the mean, p99 {alone.p99_ms:.1f} ms"
    table = Table("shape", "files", *(f"ms, {size} at a time" for size in sizes), title=title)
    for shape, (files, medians) in alone.by_shape.items():
        table.add_row(shape or "all", str(files), *(f"{medians[size]:.1f}" for size in sizes))
    console.print(table)


def _single_caller(
    console: Console, case: Case, pair: tuple[Target, Target], inputs: Path, arguments: argparse.Namespace
) -> SingleCaller:
    rounds, requests = arguments.rounds, arguments.requests
    with progress_bar(console, rounds * requests) as show:
        asking = ask_in_turn(*pair, case, inputs, rounds=rounds, requests=requests, progress=show)
        single = asyncio.run(asking)
    waited = ", ".join(
        f"{name} p50 {p50_ms.mean:.2f}, p99 {single.p99_ms[name].mean:.2f}" for name, p50_ms in single.p50_ms.items()
    )
    apart = single.difference_ms
    within = "" if apart.low is None else f" ({apart.low:+.2f} .. {apart.high:+.2f})"
    console.print(f"One caller at a time, ms: {waited}; medians apart {apart.mean:+.2f}{within}", highlight=False)
    return single


def _show_load(console: Console, case: Case, load: Load, arguments: argparse.Namespace) -> None:
    title = (
        f"{case.model}, {load.share:.0%} of one instance one by one: {load.rate_rps:.1f} requests/s, "
        f"{arguments.rounds} rounds of {arguments.seconds:g} s, SLO {case.slo_ms:g} ms"
    )
    print_comparison(console, load.comparison, title)
    for target in dict.fromkeys(contrast.target for contrast in load.contrasts):
        beside = "; ".join(
            f"{contrast.figure.heading.removesuffix(' ms')} {contrast}"
            for contrast in load.contrasts
            if contrast.target == target
        )
        console.print(f"{target.name} beside the best of Triton's, {load.best.name}: {beside}", markup=False)
    if arguments.pages:
        arguments.pages.mkdir(parents=True, exist_ok=True)
        page = arguments.pages / f"{case.model}_{round(100 * load.share)}.html"
        page.write_text(comparison_page(title, load.comparison, comparison_document(load.comparison), origin()))


def _named_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and Path(path).is_file()):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=FILE, a configuration file of `tidegate serve`")
    return name, Path(path)


def main() -> None:
    """Run the benchmark for every requested model; print a line for each that is not installed."""
    parser = argparse.ArgumentParser(prog="python -m bench.dynamic_models", description=__doc__)
    parser.add_argument("--model", nargs="+", choices=[*MODULES, *ON_REQUEST], default=list(MODULES), help="only these")
    parser.add_argument(
        "--loads",
        nargs="*",
        type=float,
        default=LOADS,
        metavar="SHARE",
        help="of what one makes; none: a single caller",
    )
    parser.add_argument("--delays", nargs="*", type=float, default=DELAYS, metavar="SHARE", help="Triton's, of the SLO")
    parser.add_argument("--policy", nargs="+", default=[], help="a Tidegate for each, beside that with the default")
    parser.add_argument(
        "--tidegate", nargs="+", type=_named_file, default=[], metavar="NAME=FILE", help="more Tidegates, configured"
    )
    parser.add_argument("--rounds", type=int, default=4, help="runs of each contender at each load")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured window of every run")
    parser.add_argument("--warmup", type=float, default=2.0, metavar="SECONDS", help="before it")
    parser.add_argument("--requests", type=int, default=100, help="of the single caller, in every round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="write a page for every load")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 160)
    load_before = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, load {load_before:.2f} before")
    models: dict[str, Any] = {}
    for name in arguments.model:
        try:
            case = find_case(name)
        except NotInstalledError as error:
            console.print(f"skipped: {error}", style="bold yellow", markup=False)
            continue
        models[name] = bench_model(console, case, arguments)
        if arguments.json:
            report = {"cores": os.cpu_count(), "load_before": load_before, "sizes": SIZES, "models": models}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
