"""Part (b): four emulated GPUs under a load that is hard for eager batching; the same load, the same Triton."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from demo.emulated import Fleet, write_emulated
from demo.processes import run_load, tidegate, tidegate_serve
from tidegate_proxy.embedded import EmbeddedTriton

FLEET = Fleet(gpus=4, alpha_ms=5.09, beta_ms=18.368, slo_ms=70, max_batch=16)
"""InceptionResNetV2 on 1080Ti: Table 2 of the Symphony paper."""
RATE_RPS = 400
DURATION_S, WARMUP_S = 10.0, 2.0
QUEUE_DELAYS_MS = (0, 5, 10, 15, 20)


@dataclass(frozen=True)
class Contender:
    """One way to serve the load."""

    label: str
    model: str
    policy: str | None
    """None: the clients speak to Triton itself."""


def contenders() -> list[Contender]:
    """Triton's own batcher with several queue delays, then Tidegate's policies."""
    return [
        *(
            Contender(f"Triton dynamic batcher, delay {delay} ms", f"delay_{delay}ms", None)
            for delay in QUEUE_DELAYS_MS
        ),
        Contender("Tidegate fifs", "plain", "fifs"),
        Contender("Tidegate symphony", "plain", "symphony"),
    ]


def run_why(console: Console, work: Path, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Run every contender; prints the table, returns its figures by label."""
    repository, profiles = work / "emulated", work / "emulated_profiles.json"
    write_emulated(repository, "plain", FLEET)
    for delay in QUEUE_DELAYS_MS:
        write_emulated(repository, f"delay_{delay}ms", FLEET, queue_delay_ms=delay)
    figures = {}
    with (
        Progress(console=console, transient=True) as progress,
        EmbeddedTriton([repository], log=work / "emulated_triton.log") as triton,
    ):
        task = progress.add_task("profiling", total=len(contenders()) + 1)
        tidegate("profile", "plain", "--triton", triton.grpc_address, "-o", str(profiles), "--samples", "10")
        for contender in contenders():
            progress.update(task, advance=1, description=contender.label)
            with _target(contender, triton.grpc_address, profiles, work) as address:
                figures[contender.label] = run_load(
                    address,
                    contender.model,
                    rate=RATE_RPS,
                    process="poisson",
                    duration_s=DURATION_S,
                    warmup_s=WARMUP_S,
                    slo_ms=FLEET.slo_ms,
                    timeout_s=5,
                    seed=seed,
                )
    _show(console, figures)
    return figures


@contextmanager
def _target(contender: Contender, triton: str, profiles: Path, work: Path) -> Iterator[str]:
    if contender.policy is None:
        yield triton
        return
    arguments = ("--triton", triton, "--policy", contender.policy, "--profiles", str(profiles))
    with tidegate_serve(*arguments, log=work / f"{contender.policy}.log") as address:
        yield address


def _show(console: Console, figures: dict[str, dict[str, Any]]) -> None:
    title = (
        f"{FLEET.gpus} emulated GPUs, l(b) = {FLEET.alpha_ms} b + {FLEET.beta_ms} ms, SLO {FLEET.slo_ms:g} ms, "
        f"Poisson {RATE_RPS} requests/s for {DURATION_S:g} s (no scheduler can pass {FLEET.staggered_rps():.0f})"
    )
    table = Table("", "attainment", "goodput /s", "p50 ms", "p99 ms", "mean batch", "GPU busy", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, report in figures.items():
        summary, server = report["summary"], report["server"]
        table.add_row(
            label,
            f"{summary['attainment']:.1%}",
            f"{summary['goodput_rps']:.0f}",
            *(f"{summary[key]:.1f}" if summary[key] is not None else "-" for key in ("p50_ms", "p99_ms")),
            f"{server['mean_rows']:.1f}" if server and server["mean_rows"] else "-",
            f"{server['busy_share']:.0%}" if server else "-",
        )
    console.print(table)
    for label, report in figures.items():
        if report["summary"]["fell_behind"]:
            console.print(
                f"[yellow]{label}: the load generator fell behind; the figures flatter nobody, but distrust them[/]"
            )
