"""Promises of `tidegate recommend` against measurements on emulated GPUs behind tritonserver.

    python -m bench.recommend_live [--seconds S] [--only NAME ...] [--recording FILE] [--json FILE]

For each workload of `bench.recommend_workloads`, the models are profiled through an
emulated Triton, `recommend` reads these profiles and writes its files (`--apply`), and these are served: the proxy with
the recommended configuration before emulated Tritons, or the layout of a planner. Then the same requests go to one
Triton with the batcher that `recommend` tuned. Promised figures are those of its page, for other seeds; simulated
figures are for the requests actually sent. Keep the machine otherwise idle.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.common import console_of, parser_of, print_table, write_json
from bench.recommend_workloads import live_workloads, with_added
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.files import CONFIG, SCENARIO, host_of, write_files
from tidegate.recommend.hardware import on_gpus
from tidegate.recommend.held_out import HeldOutResult
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recommendation import Recommendation, recommend
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.recommend.triton_tuning import TRITON_POLICY
from tidegate.recommend.verdicts import verdicts
from tidegate.schemas import read_shape
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, mean_rate_rps, read_scenario
from tidegate.workload.scenario import ModelSpec
from tidegate.workload.workers import WorkerSpec
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.emulated import emulated_cluster, write_emulated_model
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.profiler import measure_profiles
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_loadtest.scenario_run import LiveResult, LiveRun, run_live

SIZES, SAMPLES = (1, 2, 4, 8, 16), 5
SEED, WARMUP_S = 5000, 3.0
"""Seed of the requests sent (`recommend` used others), and seconds before the measured window."""
AIM = 0.03


@dataclass(frozen=True)
class Side:
    """Promised and measured attainment of a server."""

    promised: float
    """Attainment that `recommend` reports."""
    simulated: float
    """Simulated attainment of the requests sent."""
    measured: float
    """Attainment measured by clients."""
    promised_worst: float
    measured_worst: float
    """Attainment of the worst model, measured by clients."""
    kept_up: bool
    """Whether the load generator kept up."""

    @property
    def off(self) -> float:
        """Measured minus promised attainment."""
        return self.measured - self.promised


@dataclass(frozen=True)
class Compared:
    """Results of one workload."""

    workload: str
    answer: str
    rate_rps: float
    ours: Side
    triton: Side | None
    """Result of Triton; None if the emulated GPUs cannot belong to one Triton here."""
    triton_settings: str
    asking_s: float
    load: float
    """Load average of the machine before the run."""


def compare(name: str, query: RecommendQuery, seconds: float, work: Path) -> Compared:
    """Profile a workload, run `recommend`, serve what it recommends, and send the requests.

    `name`: of the workload; `query`: the workload; `seconds`: measured window; `work`: folder for files.
    """
    load, truth = os.getloadavg()[0], query.scenario
    measured, added_ms = profiled(truth, work)
    blocks = {model: with_added(profile, added_ms) for model, profile in query.blocks.items()}
    begun = time.perf_counter()
    found = recommend(replace(query, scenario=measured, blocks=blocks), SimulationRuns())
    asking_s = time.perf_counter() - begun
    answer = work / "answer"
    write_files(found, answer, verdicts(found))
    window = {"warmup_s": WARMUP_S, "duration_s": seconds}
    chosen = found.chosen
    is_policy = found.candidate.choice.name != TRITON_POLICY
    if is_policy:
        scenario = read_scenario(answer / SCENARIO).model_copy(update=window)
        serving = _serve(found, truth, scenario, added_ms, work)
        ours = _side(scenario, found.candidate.choice, found.recommended.result, serving)
    triton = None
    if chosen.triton is not None and chosen.tritons is not None:
        whole = chosen.site.scenario("", found.count).model_copy(update=window)
        triton = _triton(whole, truth, chosen.triton, chosen.tritons, work)
    if not is_policy:
        assert triton is not None, "a Triton is recommended"
        ours = triton
    return Compared(
        name,
        f"{found.verdict}: {found.candidate.title} on {chosen.site.words(found.count)}{_cut(found.scenario)}",
        mean_rate_rps(truth),
        ours,
        triton,
        "" if chosen.triton is None else chosen.triton.title,
        asking_s,
        load,
    )


def _cut(scenario: Scenario) -> str:
    """Into how many partitions models are cut, if any is."""
    layout = scenario.layout
    parts = [len(pipeline.partitions) for model in (layout.models if layout else ()) for pipeline in model.pipelines]
    return f", in up to {max(parts)} partitions" if max(parts, default=1) > 1 else ""


def profiled(truth: Scenario, work: Path) -> tuple[Scenario, dict[str, float]]:
    """Return the scenario with profiles measured by `tidegate profile`, and the live overhead in ms by device class."""
    given = truth.model_dump(mode="json", exclude_defaults=True)
    added_ms: dict[str, list[float]] = {}
    kinds = list(dict.fromkeys(kind for model in truth.models for kind in model.profiles))
    for number, kind in enumerate(kinds or [truth.workers[0].gpu]):
        folder = work / f"profile{number}"
        folder.mkdir()
        alone = on_gpus(truth, [kind])
        with _triton_on(alone, alone.workers[0], folder) as address:
            tables = asyncio.run(_measure(address, alone))
        for model, own in zip(truth.models, given["models"], strict=True):
            max_rows = model.max_rows
            spec = model.profiles.get(kind) or model.profile
            assert spec is not None, "whole models"
            true = spec.build(model.name, kind, max_rows)
            own.pop("profile", None)
            for text, table in tables[model.name].items():
                shape = next((each for each in model.shapes if each.shape == text), None)
                expected = true if shape is None else shape.profile_from(true)
                added_ms.setdefault(kind, []).extend(
                    took_ms - expected.expected_ns(rows) / 1e6 for rows, took_ms in table.items()
                )
                target = own
                if shape is not None:
                    target = next(each for each in own["shapes"] if each["shape"] == text)
                    target.pop("times", None)
                    if text == model.shapes[0].shape:  # the narrowest; nothing was measured of no shape
                        own.setdefault("profiles", {})[kind] = {"points_ms": table}
                target.setdefault("profiles", {})[kind] = {"points_ms": table}
            own["max_batch"] = max_rows
    return Scenario.model_validate(given), {kind: median(values) for kind, values in added_ms.items()}


async def _measure(target: str, scenario: Scenario) -> dict[str, dict[str, dict[int, float]]]:
    """Milliseconds, by rows, by shape, by model: all models at once, each on an emulated GPU of its own."""

    async def of_model(model: ModelSpec) -> dict[str, dict[int, float]]:
        sizes = [rows for rows in SIZES if rows < model.max_rows] + [model.max_rows]
        shapes = [read_shape(each.shape) for each in model.shapes] or [{}]
        profiles = await measure_profiles(connection, model.name, sizes, shapes, samples=SAMPLES)
        return {each.shape: {point.rows: point.median_ms for point in each.points} for each in profiles}

    async with Connection(target) as connection:
        found = await asyncio.gather(*map(of_model, scenario.models))
    return {model.name: its for model, its in zip(scenario.models, found, strict=True)}


@contextmanager
def _triton_on(scenario: Scenario, pool: WorkerSpec, folder: Path) -> Iterator[str]:
    """A Triton that batches nothing, with an instance of each model for each worker; its address."""
    for model in scenario.models:
        write_emulated_model(folder / "models", scenario, model, [pool], seed=SEED, batching=None)
    ports = [word for each in ("grpc", "http", "metrics") for word in (f"--{each}-port", "0")]
    command = ("triton", *ports, "--log-file", str(folder / "triton.log"), str(folder / "models"))
    with serving_command(*command, log=folder / "triton.errors") as address:
        yield address


@contextmanager
def _serve(
    found: Recommendation, truth: Scenario, scenario: Scenario, added_ms: dict[str, float], work: Path
) -> Iterator[str]:
    """Serve what `recommend` wrote, before GPUs that take what is true, until the block is left."""
    folder = work / "served"
    folder.mkdir()
    if scenario.layout is not None:
        given = scenario.model_dump(mode="json", exclude_defaults=True) | {
            "simulation": {"service": _true_service(scenario, added_ms)}
        }
        with emulated_cluster(Scenario.model_validate(given), found.candidate.choice, SEED, folder) as cluster:
            yield cluster.address
        return
    with ExitStack() as running:
        config = (work / "answer" / CONFIG).read_text()
        live = _with_workers(truth, scenario)
        for number, pool in enumerate(scenario.workers):
            own = folder / str(number)
            own.mkdir()
            address = running.enter_context(_triton_on(live, pool, own))
            config = config.replace(f"{host_of(pool.device_class)}:8001", address)
        path = work / "answer" / "served.yaml"  # beside the profiles that it names
        path.write_text(config)
        command = ("serve", str(path), "--listen", "127.0.0.1:0", "--event-log", str(folder / "events.jsonl"))
        yield running.enter_context(serving_command(*command, log=folder / "tidegate.errors"))


def _true_service(scenario: Scenario, added_ms: dict[str, float]) -> dict[str, Any]:
    """What the partitions of a layout truly take: as measured, but for what live adds to each call of a Triton."""
    assert scenario.layout is not None, "asked by the caller"
    service = {}
    for part in scenario.layout.partitions:
        own = {}
        for kind, table in part.latency_ms.items():
            less_ms = added_ms.get(kind.partition("/mps")[0], 0.0)
            own[kind] = {"points_ms": {rows: max(0.01, took_ms - less_ms) for rows, took_ms in enumerate(table, 1)}}
        service[part.name] = {"profiles": own}
    return service


def _with_workers(truth: Scenario, scenario: Scenario) -> Scenario:
    return truth.model_copy(
        update={"workers": scenario.workers, "warmup_s": scenario.warmup_s, "duration_s": scenario.duration_s}
    )


def _triton(
    scenario: Scenario, truth: Scenario, candidate: Candidate, promised: HeldOutResult, work: Path
) -> Side | None:
    """The same requests to one Triton by itself, with its batcher tuned."""
    folder = work / "triton"
    folder.mkdir()

    @contextmanager
    def serving() -> Iterator[str]:
        with emulated_cluster(_with_workers(truth, scenario), candidate.choice, SEED, folder) as cluster:
            yield cluster.address

    try:
        return _side(scenario, candidate.choice, promised, serving())
    except LoadTestError as error:
        Console(stderr=True).print(f"Triton by itself: {error}", style="yellow")
        return None


def _side(
    scenario: Scenario, choice: PolicyChoice, promised: HeldOutResult, serving: AbstractContextManager[str]
) -> Side:
    """Send the requests, and simulate them."""
    with serving as address:
        live: LiveResult = run_live(LiveRun(scenario, choice, SEED, SendingOptions({}), target=address))
    simulated = simulate(RunSpec(scenario, choice, SEED))
    total = live.result.total
    return Side(
        promised.attainment.mean,
        simulated.total.attainment,
        total.attainment,
        promised.worst_mean,
        1 - total.worst_bad_rate,
        not live.fell_behind,
    )


def show(console: Console, rows: Sequence[Compared]) -> None:
    """Print the table."""
    lines = []
    for row in rows:
        ours, triton = row.ours, row.triton
        behind = not (ours.kept_up and (triton is None or triton.kept_up))
        lines.append(
            (
                f"{row.workload}, {row.rate_rps:.0f}/s" + (" (generator fell behind)" if behind else ""),
                row.answer,
                *_figures(ours),
                *(_figures(triton) if triton else ("-",) * 4),
                "met" if abs(ours.off) <= AIM else "missed",
                "-" if triton is None else "yes" if ours.measured >= triton.measured else "no",
            )
        )
    figures = ("promised", "simulated", "measured", "off")
    columns = ("workload", "answer", *figures, *(f"Triton: {name}" for name in figures), "aim", "never worse")
    print_table(console, None, columns, lines)


def _figures(side: Side) -> tuple[str, ...]:
    return (
        f"{side.promised:.1%}, worst {side.promised_worst:.1%}",
        f"{side.simulated:.1%}",
        f"{side.measured:.1%}, worst {side.measured_worst:.1%}",
        f"{100 * side.off:+.1f}",
    )


def main() -> None:
    """Run the workloads and write the figures."""
    parser = parser_of("bench.recommend_live", __doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="measured window of every live run; default 15")
    parser.add_argument("--requests", type=int, default=800, help="in each run of the search; default 800")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the workloads")
    parser.add_argument("--recording", type=Path, metavar="FILE", help="one more workload: what a server recorded")
    options = parser.parse_args()
    known = live_workloads(options.requests, options.recording)
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    console = console_of(240)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    names = [name for name in known if not options.only or name in options.only]
    rows: list[Compared] = []
    with progress_bar(console, len(names)) as progress:
        for number, name in enumerate(names):
            progress(number, name)
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
                rows.append(compare(name, known[name](), options.seconds, Path(folder)))
            show(console, rows[-1:])
            write_json(options.json, [asdict(row) | {"off": row.ours.off} for row in rows])
    show(console, rows)


if __name__ == "__main__":
    main()
