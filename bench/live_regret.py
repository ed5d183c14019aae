"""Regret of putting Tidegate before a Triton, live: random deployments on emulated GPUs behind tritonserver.

    python -m bench.live_regret -o FILE [--count N] [--runs N] [--seed S] [--only N ...]

Each deployment is one Triton with one to three models of one to three instances on one emulated GPU, whose concurrent
batches slow each other down by a random factor from 0 (cores to spare) to 1 (time-sliced). No profile is given; models
say `tidegate_scheduling: batched`, since Tidegate would not merge requests of a Python backend unasked. Four
arms get the same requests at the same instants, each with a Triton of its own: Triton with `dynamic_batching {}`;
Triton with the best of sixteen queue delays and timeouts per model, by a grid run before with other requests; `tidegate
serve` without options; `tidegate serve --policy auto`. The arms run at the same time, as emulated GPUs sleep: two
cores suffice for 80 requests/s to each. The first 30 s are for learning, the next 12 s are judged.

Each deployment appends a line to FILE. Started again, the program measures only what FILE lacks, and prints the results
of all lines. A deployment takes about 80 s. Keep the machine otherwise idle.
"""

import argparse
import json
import os
import re
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import uvloop
from google.protobuf import text_format
from rich.console import Console
from tritonclient.grpc import model_config_pb2

from bench.common import console_of, print_table
from bench.proxy_process import ProxyProcess, proxy_process
from tidegate.api import NS_PER_MS
from tidegate.observation import PolicyChanged, read_log
from tidegate.schemas import tuned_settings
from tidegate.sim.interval import Interval, interval_of
from tidegate.workload import Scenario, draw_requests, stream
from tidegate_loadtest.emulated import by_kind, write_emulated_model
from tidegate_loadtest.live import SendingOptions, send_scenario
from tidegate_loadtest.processes import serving_command

MAX_RATE_RPS, MIN_ALONE_MS = 80.0, 4.0
"""Limits of what two cores emulate: requests/s of each arm, and the latency of a batch of one."""
LEARNING_S, JUDGED_S, GRID_WARMUP_S, GRID_S = 30.0, 12.0, 1.0, 5.0
ARMS_AT_ONCE = 4
PLAIN, TUNED, TIDEGATE, AUTO = "Triton", "Triton, tuned", "Tidegate", "auto"
BLOCKS = 10
"""Intervals of the judged window, whose differences give the confidence interval."""
LOSS_POINTS = 1.0
"""Loss of attainment in percentage points up to which a deployment is not below."""


@dataclass(frozen=True)
class Deployment:
    """One Triton with its models and its load."""

    number: int
    instances: int
    slowdown: float
    load: float
    """Rate as a fraction of the estimated capacity."""
    rate_rps: float
    arrivals: str
    """`poisson`, `gamma` (bursts) or `step` (a third of the rate in the first third of the learning)."""
    cv: float
    """Coefficient of variation of batch latencies."""
    models: tuple[dict[str, Any], ...]

    def scenario(self, learning_s: float, judged_s: float) -> Scenario:
        """Return the requests of a run: `learning_s` at first, then `judged_s` at the deployment's rate."""
        arrivals: dict[str, Any] = {"process": "poisson", "rate_rps": self.rate_rps}
        if self.arrivals == "gamma":
            arrivals |= {"process": "gamma", "shape": 0.2}
        elif self.arrivals == "step":
            steps = ((0.0, self.rate_rps / 3), (learning_s / 3, self.rate_rps))
            arrivals["rate_rps"] = [{"from_s": at_s, "rate_rps": rate_rps} for at_s, rate_rps in steps]
        given = {"warmup_s": 0, "duration_s": learning_s + judged_s, "workers": [{"count": self.instances}]}
        simulation = {"simulation": {"jitter": {"cv": self.cv}}} if self.cv else {}
        return Scenario.model_validate({**given, **simulation, "models": self.models, "arrivals": arrivals})


def draw_deployment(seed: int, number: int) -> Deployment:
    """Draw deployment `number` of the sample with this seed."""
    draw = stream(seed, "live regret", number)
    instances, slowdown = draw.choice((1, 1, 2, 3)), draw.choice((0.0, round(draw.random(), 2), 1.0))
    models = [draw_model(draw, f"m{each}", 2.5) for each in range(draw.choice((1, 2, 2, 3)))]
    load, parallel = round(draw.uniform(0.1, 1.2), 2), len(models) * instances
    weight = sum(model["weight"] for model in models)
    cost_ms = sum(model["weight"] * cost_of(model) for model in models) / weight
    rate_rps = load * parallel / (1 + slowdown * (parallel - 1)) * 1000 / cost_ms
    alone_ms = min(model["profile"]["alpha_ms"] + model["profile"]["beta_ms"] for model in models)
    slower = max(rate_rps / MAX_RATE_RPS, MIN_ALONE_MS / alone_ms)
    for model in models:
        model["slo_ms"] = round(slower * model["slo_ms"], 1)
        for name in ("alpha_ms", "beta_ms"):
            model["profile"][name] = round(slower * model["profile"][name], 3)
    arrivals, cv = draw.choice(("poisson", "gamma", "step")), draw.choice((0.0, 0.1, 0.3))
    return Deployment(number, instances, slowdown, load, rate_rps / slower, arrivals, cv, tuple(models))


def draw_model(draw: Random, name: str, min_slo_factor: float) -> dict[str, Any]:
    """Draw a model of a scenario, with an SLO of at least `min_slo_factor` times a lone request's latency."""
    alone_ms, ratio = 10.0 * 10 ** draw.random(), 0.1 * 100 ** draw.random()
    profile = {"alpha_ms": alone_ms / (1 + ratio), "beta_ms": alone_ms * ratio / (1 + ratio)}
    slo_ms, weight = alone_ms * draw.uniform(min_slo_factor, 10), draw.choice((1, 2, 4))
    model = {"name": name, "slo_ms": slo_ms, "weight": weight, "profile": profile}
    return model | {"max_batch": draw.choice((4, 8, 16))}


def cost_of(model: Mapping[str, Any]) -> float:
    """Return the milliseconds of a worker for one request in the largest batch that takes at most half of the SLO."""
    alpha_ms, beta_ms = model["profile"]["alpha_ms"], model["profile"]["beta_ms"]
    rows = max(1, min(model["max_batch"], int((model["slo_ms"] / 2 - beta_ms) / alpha_ms)))
    return float(alpha_ms + beta_ms / rows)


@dataclass(frozen=True)
class Arm:
    """One server of a deployment."""

    label: str
    batching: dict[str, Any]
    """Options of Triton's dynamic batcher."""
    policy: str | None = None
    """Policy of the Tidegate in front of it, "" for its default; None: clients call Triton."""


@contextmanager
def _serving(
    arm: Arm, deployment: Deployment, scenario: Scenario, seed: int, work: Path
) -> Iterator[tuple[str, ProxyProcess | None]]:
    """The arm's address and its Tidegate, if it has one: a Triton on an emulated GPU of its own, and what is before."""
    repository = work / "models"
    neighbors = {"board": str(work / "board"), "uses": {"1": [0, 0, 1]}, "minds": [0, 0, deployment.slowdown]}
    for model in scenario.models:
        write_emulated_model(repository, scenario, model, by_kind(scenario.workers), seed=seed, batching=arm.batching)
        path = repository / model.name / "config.pbtxt"
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for group in config.instance_group:
            group.ClearField("rate_limiter")
        if deployment.slowdown:
            config.parameters["neighbors"].string_value = json.dumps(neighbors)
        path.write_text(text_format.MessageToString(config))
    ports = [word for name in ("grpc", "http", "metrics") for word in (f"--{name}-port", "0")]
    with ExitStack() as running:
        command = ("triton", *ports, "--log-file", str(work / "triton.log"), str(repository))
        address = running.enter_context(serving_command(*command, log=work / "triton.errors"))
        if arm.policy is None:
            yield address, None
            return
        flags = ["--triton", address, "--listen", "127.0.0.1:0", "--listen-metrics", "127.0.0.1:0"]
        flags += ["--event-log", str(work / "events.jsonl"), *(["--policy", arm.policy] if arm.policy else [])]
        proxy = running.enter_context(proxy_process(work, *flags))
        yield proxy.grpc, proxy


def _send(address: str, scenario: Scenario, seed: int, learning_s: float) -> dict[str, Any]:
    """Send the requests; return figures of those that are due after `learning_s`. Runs in a process of its own."""
    requests = draw_requests(scenario, seed)
    run = uvloop.run(send_scenario(address, scenario, requests, SendingOptions({}), seed=seed)).run
    model = np.array(requests.model)
    on_time = run.ok & (run.latency_ns <= np.array(requests.slos_ns)[model])
    judged = run.scheduled_ns >= learning_s * 1e9
    since_ns = run.scheduled_ns[judged] - learning_s * 1e9
    block = np.minimum(BLOCKS - 1, since_ns * BLOCKS / (run.window_ns - learning_s * 1e9)).astype(int)
    latency_ms = run.latency_ns[judged & run.ok] / NS_PER_MS
    of_model = [float(on_time[judged & (model == each)].mean()) for each in np.unique(model[judged])]
    return {
        "attainment": float(on_time[judged].mean()),
        "worst": min(of_model),
        "learning": float(on_time[~judged].mean()),
        "requests": np.bincount(block, minlength=BLOCKS).tolist(),
        "on_time": np.bincount(block, weights=on_time[judged], minlength=BLOCKS).astype(int).tolist(),
        "p50_ms": float(np.percentile(latency_ms, 50)) if len(latency_ms) else None,
        "p99_ms": float(np.percentile(latency_ms, 99)) if len(latency_ms) else None,
        "statuses": dict(Counter(run.status[judged].tolist())),
        "not_measured": run.not_measured,
    }


def _policies(event_log: Path) -> list[str]:
    """The policies that took over, in order."""
    with event_log.open("rb") as lines:
        _header, entries = read_log(lines)
        return [entry.event.policy for entry in entries if isinstance(entry.event, PolicyChanged)]


def _cpu_fractions(proxy: ProxyProcess, started_s: float, seconds: float) -> dict[str, float]:
    """The fraction of a core that Tidegate took, and that its tuner's simulations took."""
    with urllib.request.urlopen(f"http://{proxy.metrics}/metrics") as page:
        found = re.search(r"^tidegate_tuning_cpu_seconds_total (\S+)", page.read().decode(), re.MULTILINE)
    return {"cpu": (proxy.spent()[0] - started_s) / seconds, "tuning_cpu": float(found[1]) / seconds if found else 0.0}


def run_arms(
    arms: Sequence[Arm], deployment: Deployment, seed: int, spans_s: tuple[float, float], senders: ProcessPoolExecutor
) -> dict[str, dict[str, Any]]:
    """Run the arms at the same time, each with servers of its own; return the figures by label.

    `arms`: at most `ARMS_AT_ONCE`; `deployment`: the models and their load; `seed`: of the requests and of the
    variation of batch latencies, the same for all arms; `spans_s`: seconds of the learning part and of the judged part;
    `senders`: as many processes as arms.
    """
    scenario, ready = deployment.scenario(*spans_s), Barrier(len(arms))

    def run(arm: Arm) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            work = Path(folder)
            try:
                with _serving(arm, deployment, scenario, seed, work) as (address, proxy):
                    ready.wait()
                    started_s = proxy.spent()[0] if proxy else 0.0
                    figures = senders.submit(_send, address, scenario, seed, spans_s[0]).result()
                    figures |= _cpu_fractions(proxy, started_s, sum(spans_s)) if proxy else {}
            except BaseException:
                ready.abort()
                raise
            if arm.policy is not None:
                figures["policies"] = _policies(work / "events.jsonl")
            return figures

    with ThreadPoolExecutor(len(arms)) as threads:
        running = [threads.submit(run, arm) for arm in arms]
    errors = [error for each in running if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda each: isinstance(each, BrokenBarrierError)):
        raise error
    return {arm.label: each.result() for arm, each in zip(arms, running, strict=True)}


def measure(seed: int, number: int, run: int, senders: ProcessPoolExecutor) -> dict[str, Any]:
    """Tune Triton for a deployment by the grid, run the four arms, and return the line of the results."""
    load_average, deployment = os.getloadavg()[0], draw_deployment(seed, number)
    slos_ms = {model["name"]: model["slo_ms"] for model in deployment.models}
    settings = [Arm(label, options) for label, options in tuned_settings(slos_ms).items()]
    grid: dict[str, float] = {}
    for at in range(0, len(settings), ARMS_AT_ONCE):
        arms = settings[at : at + ARMS_AT_ONCE]
        found = run_arms(arms, deployment, 1000 + run, (GRID_WARMUP_S, GRID_S), senders)
        grid |= {label: figures["attainment"] for label, figures in found.items()}
    best = max(settings, key=lambda arm: grid[arm.label])
    arms = [Arm(PLAIN, {}), Arm(TUNED, best.batching), Arm(TIDEGATE, {}, ""), Arm(AUTO, {}, "auto")]
    figures = run_arms(arms, deployment, run, (LEARNING_S, JUDGED_S), senders)
    facts = {"seed": seed, "number": number, "run": run, "load_average": load_average}
    return {**facts, "deployment": asdict(deployment), "tuned": best.label, "grid": grid, "arms": figures}


def gain(rows: Sequence[Mapping[str, Any]], ours: str, theirs: str) -> Interval:
    """Return by how many percentage points of attainment an arm is above another, with its 95 % interval over blocks.

    `rows`: lines of one deployment, one for each run; `ours`: label of the arm; `theirs`: label of the other arm.
    """
    differences, counts = [], []
    for row in rows:
        ours_on_time, theirs_on_time = (row["arms"][label]["on_time"] for label in (ours, theirs))
        differences += [one - other for one, other in zip(ours_on_time, theirs_on_time, strict=True)]
        counts += row["arms"][ours]["requests"]
    mean_count = fmean(counts)
    return interval_of([100 * each / mean_count for each in differences], -100.0, 100.0)


def is_below(points: Interval) -> bool:
    """Whether a gain in percentage points is a loss of more than `LOSS_POINTS` that chance does not explain."""
    return points.mean < -LOSS_POINTS and points.high < 0


def show(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each deployment, the mean gains, and the deployments that are below."""
    by_number: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_number.setdefault(f"{row['seed']}/{row['number']}", []).append(row)
    arms = (PLAIN, TUNED, TIDEGATE, AUTO)
    pairs = [(ours, theirs) for ours in (TIDEGATE, AUTO) for theirs in (PLAIN, TUNED)]
    gains: dict[tuple[str, str], list[Interval]] = {pair: [] for pair in pairs}
    lines = []
    for name, its in by_number.items():
        facts, found = its[0]["deployment"], [gain(its, *pair) for pair in pairs]
        for pair, points in zip(pairs, found, strict=True):
            gains[pair].append(points)
        words = f"{len(facts['models'])} models, {facts['instances']} instances, slowdown {facts['slowdown']:g}, "
        words += f"load {facts['load']:.0%}, {facts['arrivals']}, CV {facts['cv']:g}"
        late = [arm for arm in arms if any(row["arms"][arm]["not_measured"] for row in its)]
        lines.append(
            (
                f"{name}: {words}",
                *(f"{100 * fmean(row['arms'][arm]['attainment'] for row in its):.1f}" for arm in arms),
                ", ".join(f"{fmean(row['arms'][arm]['p50_ms'] or 0 for row in its):.0f}" for arm in arms),
                *(f"{'[red]' if is_below(each) else ''}{_range(each)}" for each in found),
                ", ".join(late),
            )
        )
    columns = ("deployment", *arms, "p50 ms", *(f"{ours} over {theirs}" for ours, theirs in pairs), "not measured")
    print_table(console, None, columns, lines)
    for (ours, theirs), intervals in gains.items():
        means = [each.mean for each in intervals]
        mean = interval_of(means, -100.0, 100.0) if len(means) > 1 else intervals[0]
        below = [name for name, each in zip(by_number, intervals, strict=True) if is_below(each)]
        console.print(
            f"{ours} over {theirs}: mean {_range(mean)} points, worst {min(means):+.1f}; below by more than "
            f"{LOSS_POINTS:g} point beyond chance: {len(below)} of {len(means)} {' '.join(below)}"
        )
    for arm in (TIDEGATE, AUTO):
        figures = [row["arms"][arm] for row in rows]
        cpu, tuning, p99_ms = (
            fmean(each.get(name) or 0.0 for each in figures) for name in ("cpu", "tuning_cpu", "p99_ms")
        )
        console.print(f"{arm}: {cpu:.0%} of a core, simulations {tuning:.0%}; mean of p99 {p99_ms:.0f} ms")


def _range(points: Interval) -> str:
    return f"{points.mean:+.1f} ({points.low:+.1f} to {points.high:+.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the deployments that the file does not have, and print the results of all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.live_regret", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON lines, one a deployment")
    parser.add_argument("--count", type=int, default=30, help="number of deployments; default 30")
    parser.add_argument("--runs", type=int, default=1, help="runs of each, with other requests; default 1")
    parser.add_argument("--seed", type=int, default=34, help="of the sample; default 34")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these deployments of the sample")
    options = parser.parse_args(arguments)
    console = console_of(240)
    rows = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    known = {(row["seed"], row["number"], row["run"]) for row in rows}
    numbers = range(options.count) if options.only is None else options.only
    due = [(options.seed, number, run) for run in range(1, options.runs + 1) for number in numbers]
    with ProcessPoolExecutor(ARMS_AT_ONCE, mp_context=get_context("spawn")) as senders:
        for each in due:
            if each in known:
                continue
            try:
                row = measure(*each, senders)
            except (Exception, SystemExit) as error:  # the other deployments go on
                console.print(f"{each[0]}/{each[1]}, run {each[2]}: not measured: {error}; run the program again")
                continue
            rows.append(row)
            with options.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
            show(console, [row])
    if rows:
        show(console, rows)


if __name__ == "__main__":
    main()
