"""The chart of the README: attainment and latency over load, Tidegate against Triton's dynamic batcher, simulated.

    python -m bench.attainment_over_load --output docs/pictures/attainment_over_load.svg

ResNet50 on eight GPUs (scenarios/resnet50.yaml, Table 2 of the Symphony paper), at our own rates. Tidegate has a
network latency of 0.5 ms to its Tritons, plus a random 0.25 ms on average; Triton's batcher has none. Triton is drawn
with `dynamic_batching {}`, and tuned: at each rate with the best of sixteen queue delays and timeouts for that rate.
The same command gives the same bytes, in about five minutes of one core.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from rich.console import Console

from bench.common import parser_of, write_json
from tidegate.commands.common import with_progress
from tidegate.report import Colors, picture
from tidegate.report.number_format import rate, share
from tidegate.schemas import tuned_settings
from tidegate.sim.charts import LoadCurve, LoadPoint, latency_plot, load_legend, load_plot
from tidegate.sim.parallel import run_parallel
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, mean_rate_rps, read_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "resnet50.yaml"
RATES_RPS = tuple(range(1000, 6501, 500))
SEEDS = (1, 2)
SECONDS = 3.0
LIMIT = 0.01
WIDTH = 560
"""Width in pixels, narrow enough to be legible on a telephone."""
NETWORK = {"control_ms": 0.5, "jitter_ms": 0.25}
"""Network latency between Tidegate and its Tritons for each batch, round trip, in ms."""
TIDEGATE, TUNED, UNMODIFIED = "Tidegate", "Triton, tuned at each rate", "Triton, unmodified"


def curves(scenario: Scenario, rates_rps: Sequence[float], seeds: Sequence[int], console: Console) -> list[LoadCurve]:
    """Simulate every contender at every rate (requests per second) with every seed; return a curve for each contender.

    `console`: where progress is shown.
    """
    base_rps = mean_rate_rps(scenario)
    away = Scenario.model_validate(
        {
            **scenario.model_dump(exclude_unset=True),
            "workers": [{**pool.model_dump(exclude_unset=True), "network": NETWORK} for pool in scenario.workers],
        }
    )
    settings = tuned_settings({model.name: model.slo_ms or 0.0 for model in scenario.models})
    contenders = [
        (away, PolicyChoice(name="symphony", label=TIDEGATE)),
        *((scenario, PolicyChoice(name="triton", label=label, options=told)) for label, told in settings.items()),
    ]
    runs = [
        RunSpec(where, choice, seed, load=rate_rps / base_rps)
        for where, choice in contenders
        for rate_rps in rates_rps
        for seed in seeds
    ]
    results = with_progress(console, "simulating", run_parallel(simulate, runs), len(runs))
    tried: dict[str, list[LoadPoint]] = {}
    for row in (result.total for result in results):
        tried.setdefault(row.policy, []).append(LoadPoint(row.rate_rps, 1 - row.worst_bad_rate, row.seed, row.p99_ms))
    return [
        LoadCurve(TIDEGATE, tried[TIDEGATE], None),
        LoadCurve(TUNED, best_at_each_rate([tried[label] for label in settings]), None),
        LoadCurve(UNMODIFIED, tried[next(iter(settings))], None),
    ]


def best_at_each_rate(settings: Sequence[Sequence[LoadPoint]]) -> list[LoadPoint]:
    """Return, for each rate, the runs of the setting with the highest mean attainment at that rate.

    `settings`: for each setting, its runs at all rates.
    """
    found = []
    for rate_rps in sorted({each.rate_rps for runs in settings for each in runs}):
        here = [[each for each in runs if each.rate_rps == rate_rps] for runs in settings]
        found += max(here, key=lambda runs: fmean(each.attainment for each in runs))
    return found


def drawn(found: Sequence[LoadCurve], scenario: Scenario) -> str:
    """Return the chart as SVG."""
    colors = Colors((), (curve.name for curve in found))
    (slo_ms,) = {model.slo_ms for model in scenario.models}
    return picture(
        "Attainment over load: ResNet50 on eight GPUs",
        [
            load_plot(found, LIMIT, colors, height=230),
            latency_plot(found, colors, slo_ms=slo_ms, height=150),
        ],
        load_legend(found, colors),
        width=WIDTH,
        note="Simulated, Poisson arrivals, SLO 25 ms; Tidegate 0.5 ms away. Dots: single runs.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulations, write the chart, and print the figures that it shows."""
    parser = parser_of("bench.attainment_over_load", __doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the SVG")
    options = parser.parse_args(arguments)
    scenario = read_scenario(SCENARIO, {"duration_s": SECONDS, "warmup_s": 1})
    console = Console(highlight=False)
    found = curves(scenario, RATES_RPS, SEEDS, console)
    options.output.write_text(drawn(found, scenario), encoding="utf-8")
    write_json(options.json, [asdict(curve) for curve in found])
    for curve in found:
        means: dict[float, list[float]] = {each.rate_rps: [] for each in curve.tried}
        for each in curve.tried:
            means[each.rate_rps].append(each.attainment)
        said = ", ".join(f"{rate(at)}/s {share(sum(values) / len(values))}" for at, values in means.items())
        console.print(f"{curve.name}: {said}")


if __name__ == "__main__":
    main()
