"""Part (b): four emulated GPUs under a load that is hard for eager batching: Triton's own batcher beside Tidegate."""

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from demo.emulated import Fleet
from tidegate.schemas import tuned_settings
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.comparison.findings import ATTAINMENT_FIGURE, contrast_of, interval_of
from tidegate_loadtest.comparison.runs import Comparison, compare
from tidegate_loadtest.comparison.table import print_figures
from tidegate_loadtest.comparison.targets import Target, emulated_targets
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.open_loop import Progress as RunProgress

FLEET = Fleet(gpus=4, alpha_ms=5.09, beta_ms=18.368, slo_ms=70, max_batch=16)
"""InceptionResNetV2 on 1080Ti: Table 2 of the Symphony paper."""
RATE_RPS = 400
ROUNDS, DURATION_S, WARMUP_S = 3, 4.0, 1.0
TRITON, SYMPHONY = "Triton", "Tidegate symphony"
TUNED = 3
"""How many settings of Triton's batcher run live: the best of the sixteen that its experts try, by simulation."""
SHOWN = ("goodput_rps", "attainment", "p50_ms", "p99_ms", "mean_batch_rows")


def contenders(scenario: Scenario, seed: int) -> list[PolicyChoice]:
    """Triton's batcher unmodified and with its best queue delays and queue timeouts, then Tidegate's policies."""
    unmodified, *tuned = (
        PolicyChoice(name="triton", options=options, label=f"{TRITON}, {label}")
        for label, options in tuned_settings({model.name: model.slo_ms or 0.0 for model in scenario.models}).items()
    )
    tuned.sort(key=lambda choice: simulate(RunSpec(scenario, choice, seed)).total.attainment, reverse=True)
    return [
        unmodified,
        *tuned[:TUNED],
        PolicyChoice(name="fifs", label="Tidegate fifs"),
        PolicyChoice(name="symphony", label=SYMPHONY),
    ]


def run_why(console: Console, work: Path, *, seed: int = 1) -> Comparison:
    """Run all contenders in interleaved rounds; print the results."""
    scenario = FLEET.scenario("inceptionresnetv2", RATE_RPS, WARMUP_S, DURATION_S)
    work.mkdir()
    choices = contenders(scenario, seed)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=len(choices) * (1 + ROUNDS))

        def starting(name: str) -> None:
            bar.update(task, advance=1, description=f"starting: {name}")

        def shown(done: int, name: str, _progress: RunProgress) -> None:
            bar.update(task, completed=len(choices) + done, description=name)

        with emulated_targets(scenario, choices, seed=seed, work=work, starting=starting) as targets:
            compared = compare(
                scenario, targets, SendingOptions({}, timeout_s=5), rounds=ROUNDS, seed=seed, shown=shown
            )
    title = (
        f"{FLEET.gpus} emulated GPUs, l(b) = {FLEET.alpha_ms} b + {FLEET.beta_ms} ms, SLO {FLEET.slo_ms:g} ms, "
        f"Poisson {RATE_RPS} requests/s, {ROUNDS} rounds of {DURATION_S:g} s\n"
        f"(no scheduler can pass {FLEET.staggered_rps():.0f} requests/s)"
    )
    print_figures(console, compared, title, SHOWN)
    console.print(_closing(compared))
    return compared


def _closing(compared: Comparison) -> str:
    """Symphony against the best of Triton's own batcher, tuned; no verdict where the machine could not send on time."""
    late = sum(live.fell_behind for live in compared.lives)
    if late:
        return (
            f"No verdict: this machine could not send on schedule in {late} of {len(compared.lives)} runs. Try again "
            "with nothing else running; docs/start.md has what a quiet one measures."
        )
    symphony = next(target for target in compared.targets if target.name == SYMPHONY)
    own = [target for target in compared.targets if target.name.startswith(TRITON)]

    def attainment(target: Target) -> float:
        interval = interval_of(compared, target, ATTAINMENT_FIGURE)
        return interval.mean if interval else 0.0

    best = max(own, key=attainment)
    return (
        f"symphony answers {attainment(symphony):.1%} on time, the best of Triton's own ({best.name}) "
        f"{attainment(best):.1%}: {contrast_of(compared, symphony, best, ATTAINMENT_FIGURE)}"
    )
