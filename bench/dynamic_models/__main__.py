"""Dynamic models under Triton's dynamic batcher and under Tidegate.

Prints a table for each load, and the difference between Tidegate and the best setting of Triton at that load. Keep the
machine otherwise idle.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from bench.common import console_of, parser_of, write_json
from bench.dynamic_models import MODULES, ON_REQUEST, NotInstalledError, find_case
from bench.dynamic_models.baselines import Contender, compared, contenders, running
from bench.dynamic_models.case import Case
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.findings import (
    ATTAINMENT_FIGURE,
    COMPARED_FIGURES,
    TargetContrast,
    contrast_of,
    interval_of,
)
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.input_files import FileRequests
from tidegate_loadtest.live import SendingOptions
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

LOADS = (0.3, 0.5, 0.8, 1.1)
"""Rates as fractions of the capacity of one instance that serves requests one by one."""
ALONE_S, ALONE_SAMPLES = 5.0, 12
"""Minimum length in seconds and minimum number of requests of the measurement without load."""
LATE_FRACTION = 0.05
"""Maximum generator delay (99th percentile) as a fraction of the SLO; above it the generator fell behind."""
TIMEOUT_S = 10.0
"""Seconds that the generator waits for a response."""
BESIDE = ("attainment", "p50_ms", "p99_ms")
"""Figures by which Tidegate is compared with the best of Triton's settings."""


def bench_model(console: Console, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one model: its latency alone, and every load; return the figures as a JSON object."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as servers:
        work = Path(folder)
        onnx, inputs, generated = work / "model.onnx", work / "inputs", work / "models"
        inputs.mkdir()
        with console.status(f"{case.model}: writing the model and its inputs"):
            case.write_model(onnx)
            case.write_inputs(inputs)
            generate_model(onnx, generated, name=case.model, max_batch=case.max_batch, slo_ms=case.slo_ms)
        with EmbeddedTriton([generated], log=work / "alone.log") as triton:
            alone_ms = asyncio.run(measure_alone(triton.grpc_address, case, inputs))
        console.print(f"{case.model}: {case.inputs}; alone {alone_ms:.1f} ms in the mean")
        chosen = contenders(case, dict(arguments.tidegate))
        with console.status(f"{case.model}: starting servers") as status:
            targets = servers.enter_context(
                running(
                    work, generated, case.model, chosen, lambda name: status.update(f"{case.model}: starting {name}")
                )
            )
        loads = [_load(console, case, chosen, targets, inputs, alone_ms, share, arguments) for share in arguments.loads]
    return {"inputs": case.inputs, "slo_ms": case.slo_ms, "rows": case.rows, "alone_ms": alone_ms, "loads": loads}


async def measure_alone(address: str, case: Case, folder: Path) -> float:
    """Return the mean latency in ms of random inputs, one after the other, at an otherwise idle Triton.

    `address`: HOST:PORT of its gRPC; `case`: the model; `folder`: its inputs.
    """
    async with Connection(address) as connection:
        request_of = await FileRequests.for_model(connection, case.model, folder, rows=case.rows, seed=0)
        taken_s: list[float] = []
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < ALONE_S or len(taken_s) <= ALONE_SAMPLES:
            sent_s = time.perf_counter()
            await connection.stubs[0].ModelInfer(request_of(len(taken_s)))
            taken_s.append(time.perf_counter() - sent_s)
        return 1e3 * fmean(taken_s[1:])


def _load(
    console: Console,
    case: Case,
    chosen: Sequence[Contender],
    targets: Sequence[Target],
    inputs: Path,
    alone_ms: float,
    share: float,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Run one load, all contenders alternating, and print it; return it as a JSON object."""
    rate_rps = share * 1e3 / alone_ms
    model = {"name": case.model, "slo_ms": case.slo_ms, "max_batch": case.max_batch, "rows": case.rows}
    scenario = Scenario.model_validate(
        {
            "name": case.model,
            "warmup_s": arguments.warmup,
            "duration_s": arguments.seconds,
            "workers": [{"count": 1}],
            "models": [model | {"profile": {"points_ms": {case.rows: round(alone_ms, 3)}}}],
            "arrivals": {"rate_rps": round(rate_rps, 2)},
        }
    )
    late_ms = LATE_FRACTION * case.slo_ms
    sending = SendingOptions({}, timeout_s=TIMEOUT_S, lateness_limit_ms=late_ms, inputs={case.model: inputs})
    title = f"{case.model}, {share:.0%} of one instance one by one: {rate_rps:.1f} requests/s, SLO {case.slo_ms:g} ms"
    found = compared(console, scenario, targets, sending, arguments.rounds, title)
    tritons = [target for target, contender in zip(targets, chosen, strict=True) if contender.batcher]
    best = max(tritons, key=lambda target: _merit(found, target))
    contrasts: list[TargetContrast] = []
    for target in targets:
        if target in tritons:
            continue
        figures = (figure for figure in COMPARED_FIGURES if figure.name in BESIDE)
        own = [contrast for each in figures if (contrast := contrast_of(found, target, best, each))]
        beside = "; ".join(f"{contrast.figure.heading.removesuffix(' ms')} {contrast}" for contrast in own)
        console.print(f"{target.name} beside the best of Triton's, {best.name}: {beside}", markup=False)
        contrasts += own
    against = [
        {"target": each.target.name, "figure": each.figure.name, **asdict(each.difference)} for each in contrasts
    ]
    own_figures = {"load": share, "rate_rps": rate_rps, "best_of_triton": best.name, "against_it": against}
    return {**own_figures, "comparison": comparison_document(found)}


def _merit(found: Comparison, target: Target) -> tuple[float, float]:
    """Attainment, then among equals the lower median latency."""
    by_name = {figure.name: figure for figure in COMPARED_FIGURES}
    attained, p50_ms = interval_of(found, target, ATTAINMENT_FIGURE), interval_of(found, target, by_name["p50_ms"])
    return attained.mean if attained else 0.0, -p50_ms.mean if p50_ms else float("-inf")


def _named_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and Path(path).is_file()):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=FILE, a configuration file of `tidegate serve`")
    return name, Path(path)


def main() -> None:
    """Run the benchmark for every requested model; print a line for each that is not installed."""
    parser = parser_of("bench.dynamic_models", __doc__)
    parser.add_argument("--model", nargs="+", choices=[*MODULES, *ON_REQUEST], default=list(MODULES), help="only these")
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS, metavar="SHARE", help="of what one makes")
    parser.add_argument(
        "--tidegate", nargs="+", type=_named_file, default=[], metavar="NAME=FILE", help="more Tidegates, configured"
    )
    parser.add_argument("--rounds", type=int, default=4, help="runs of each contender at each load")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured window of every run")
    parser.add_argument("--warmup", type=float, default=2.0, metavar="SECONDS", help="before it")
    arguments = parser.parse_args()
    console = console_of(160)
    load_before = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load {load_before:.2f} before")
    models: dict[str, Any] = {}
    for name in arguments.model:
        try:
            case = find_case(name)
        except NotInstalledError as error:
            console.print(f"skipped: {error}", style="bold yellow", markup=False)
            continue
        models[name] = bench_model(console, case, arguments)
        write_json(arguments.json, {"cores": os.cpu_count(), "load_before": load_before, "models": models})


if __name__ == "__main__":
    main()
