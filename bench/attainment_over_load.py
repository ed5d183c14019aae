"""The picture of the README: attainment and latency over load, Tidegate against Triton's dynamic batcher, simulated.

    python -m bench.attainment_over_load --output docs/pictures/attainment_over_load.svg

ResNet50 on eight GPUs (scenarios/resnet50.yaml, Table 2 of the Symphony paper), at rates of our choice. Triton's
batcher is drawn as it comes, and with the delay that carries most there (of 0 to 5 ms; a timeout makes it no better).
The same command gives the same bytes; some two minutes of one core.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tidegate.commands.common import with_progress
from tidegate.report import Colours, picture
from tidegate.report.words import rate, share
from tidegate.sim.over_load import LoadCurve, Tried, latency_plot, load_legend, load_plot
from tidegate.sim.parallel import run_parallel
from tidegate.sim.run import Run, simulate
from tidegate.workload import PolicyChoice, Scenario, mean_rate_rps, read_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "resnet50.yaml"
RATES_RPS = tuple(range(1000, 6501, 500))
SEEDS = (1, 2, 3)
SECONDS = 5.0
LIMIT = 0.01
WIDTH = 560
"""So narrow that its words can be read on a telephone."""
CONTENDERS = (
    PolicyChoice(name="symphony", label="Tidegate"),
    PolicyChoice(name="triton", label="Triton, best delay (2 ms)", options={"max_queue_delay_ms": 2}),
    PolicyChoice(name="triton", label="Triton, as it comes"),
)


def curves(scenario: Scenario, rates_rps: Sequence[float], seeds: Sequence[int], console: Console) -> list[LoadCurve]:
    """Simulate every contender at every rate with every seed."""
    base_rps = mean_rate_rps(scenario)
    runs = [
        Run(scenario, choice, seed, load=rate_rps / base_rps)
        for choice in CONTENDERS
        for rate_rps in rates_rps
        for seed in seeds
    ]
    results = with_progress(console, "simulating", run_parallel(simulate, runs), len(runs))
    found = []
    for choice in CONTENDERS:
        tried = [
            Tried(row.rate_rps, 1 - row.worst_bad_rate, row.seed, row.p99_ms)
            for row in (result.total for result in results)
            if row.policy == choice.title
        ]
        found.append(LoadCurve(choice.title, tried, None))
    return found


def drawn(found: Sequence[LoadCurve], scenario: Scenario) -> str:
    """The picture."""
    colours = Colours((), (curve.name for curve in found))
    (slo_ms,) = {model.slo_ms for model in scenario.models}
    return picture(
        "How much load is in time? ResNet50 on eight GPUs",
        [
            load_plot(found, LIMIT, colours, height=230),
            latency_plot(found, colours, slo_ms=slo_ms, height=150),
        ],
        load_legend(found, colours),
        width=WIDTH,
        note="Simulated: Poisson arrivals, SLO 25 ms. Dots: runs of single seeds.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, draw, and say what the picture shows."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attainment_over_load",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_RPS, metavar="RPS", help="requests/s")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the arrivals")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the measured window; default 5")
    options = parser.parse_args(arguments)
    scenario = read_scenario(SCENARIO, {"duration_s": options.seconds, "warmup_s": 1})
    console = Console(highlight=False)
    found = curves(scenario, options.rates, options.seeds, console)
    options.output.write_text(drawn(found, scenario), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps([asdict(curve) for curve in found], indent=1) + "\n", encoding="utf-8")
    for curve in found:
        means: dict[float, list[float]] = {each.rate_rps: [] for each in curve.tried}
        for each in curve.tried:
            means[each.rate_rps].append(each.attainment)
        said = ", ".join(f"{rate(at)}/s {share(sum(values) / len(values))}" for at, values in means.items())
        console.print(f"{curve.name}: {said}")


if __name__ == "__main__":
    main()
