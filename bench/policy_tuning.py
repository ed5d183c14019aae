"""Cost and safety of the tuner behind `policy: auto`, simulated.

    python -m bench.policy_tuning [--hours H] [--steps N] [--seed S] [--jobs N] [--json FILE]

Stationary: H random loads, each for an hour of virtual time. A change of the policy is wrong if the new policy alone,
on the same requests, answers fewer on time than the former one. Steps: N random loads that rise from a third of the
rate at 30 s, fall at 90 s and rise again at 120 s. A policy is good if it is within a point of the best candidate, in
hindsight, over the minute after the first step. Loads have one to three models and workers. Takes about half an hour on
two cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rich.console import Console

from bench.common import console_of, parser_of, print_table, write_json
from bench.live_regret import cost_of, draw_model
from tidegate.engine import AnyEffect, AnyStimulus
from tidegate.host import Plugins
from tidegate.observation import Observer, ObserverOptions, PolicyChanged, Reducer
from tidegate.sim.build import setup_of
from tidegate.sim.parallel import run_parallel
from tidegate.sim.recent_traffic import RecentTraffic
from tidegate.sim.run import RunSpec, simulate
from tidegate.sim.tuning.candidates import PolicyCandidate, candidates_of, first_candidate
from tidegate.workload import PolicyChoice, Scenario, stream

AUTO = "auto"
STATIONARY_RPS, STEP_RPS = 30.0, 100.0
HOUR_S = 3600.0
STEP_AT_S, FALL_AT_S, REPEAT_AT_S, END_S = 30.0, 90.0, 120.0, 150.0
LOW_RATE_FRACTION = 1 / 3
GOOD_POINTS = 1.0
MAX_REQUESTS = 10**9


@dataclass(frozen=True)
class Task:
    """Load of a run, which is sent to processes: it has to be picklable."""

    seed: int
    number: int
    is_step: bool


class _Watch(Observer):
    """The outcome of each request, and the changes of the policy."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.traffic = RecentTraffic(max_requests=MAX_REQUESTS)
        self.changes: list[PolicyChanged] = []
        self._reducer = Reducer(self.traffic)

    def handled(self, event: AnyStimulus, commands: Sequence[Any], effects: Sequence[AnyEffect]) -> None:
        self._reducer.handled(event, effects)
        if isinstance(event, PolicyChanged):
            self.changes.append(event)

    def attainment(self, since_s: float = 0.0, until_s: float = HOUR_S) -> float:
        """The fraction of the requests that arrived in between and are on time, in percent."""
        found = self.traffic.requests(round(since_s * 1e9), round(until_s * 1e9))
        return 100 * sum(on_time for _, on_time in found) / max(1, len(found))


def draw_scenario(task: Task) -> Scenario:
    """Draw the load of a task as a scenario."""
    draw = stream(task.seed, "policy tuning", task.number)
    workers = draw.choice((1, 1, 2, 3))
    models = [draw_model(draw, f"m{index}", 3.0) | {"weight": 1} for index in range(draw.choice((1, 2, 3)))]
    load = draw.uniform(0.5, 1.1)
    rate_rps = STEP_RPS if task.is_step else STATIONARY_RPS
    slower = load * workers * 1000 / fmean(map(cost_of, models)) / rate_rps
    for model in models:
        model["slo_ms"] *= slower
        model["profile"] |= {name: slower * model["profile"][name] for name in ("alpha_ms", "beta_ms")}
    arrivals: dict[str, Any] = {"process": "poisson", "rate_rps": rate_rps}
    if task.is_step:
        rates = ((0.0, LOW_RATE_FRACTION), (STEP_AT_S, 1.0), (FALL_AT_S, LOW_RATE_FRACTION), (REPEAT_AT_S, 1.0))
        arrivals["rate_rps"] = [{"from_s": at_s, "rate_rps": fraction * rate_rps} for at_s, fraction in rates]
    elif draw.random() < 0.5:
        arrivals |= {"process": "gamma", "shape": 0.2}
    return Scenario.model_validate(
        {
            "warmup_s": 0,
            "duration_s": END_S if task.is_step else HOUR_S,
            "workers": [{"count": workers}],
            "models": models,
            "arrivals": arrivals,
            "simulation": {"jitter": {"cv": draw.choice((0.05, 0.2, 0.35))}},
        }
    )


def _run(scenario: Scenario, candidate: PolicyCandidate) -> _Watch:
    watch = _Watch()
    choice = PolicyChoice(name=candidate.policy, options=candidate.options)
    simulate(RunSpec(scenario, choice, 1), observers=[watch])
    return watch


def measure(task: Task) -> dict[str, Any]:
    """Run a task; return its figures."""
    scenario, plugins = draw_scenario(task), Plugins.installed()
    auto, first = _run(scenario, PolicyCandidate(AUTO)), first_candidate(plugins, AUTO, {})
    changes = [(each.now_ns / 1e9, PolicyCandidate(each.policy, each.options)) for each in auto.changes]
    told: dict[str, Any] = {"number": task.number, "changes": [(at_s, each.title) for at_s, each in changes]}
    present = [first, *(each for _, each in changes)]
    if not task.is_step:
        alone = {each.title: _run(scenario, each).attainment() for each in _distinct(present)}
        wrong = [new.title for old, new in pairwise(present) if alone[new.title] < alone[old.title]]
        return {**told, "auto": auto.attainment(), "default": alone[first.title], "wrong": wrong}
    candidates = _distinct([first, *candidates_of(setup_of(scenario, 1), plugins)])
    until_fall = scenario.model_copy(update={"duration_s": FALL_AT_S})
    attained = {each.title: _run(until_fall, each).attainment(STEP_AT_S, FALL_AT_S) for each in candidates}
    good = {title for title, percent in attained.items() if percent >= max(attained.values()) - GOOD_POINTS}
    best = max(candidates, key=lambda each: attained[each.title])
    runs = {"auto": auto, "default": _run(scenario, first), "best": _run(scenario, best)}
    steps = {}
    for name, since_s, until_s in (("first", STEP_AT_S, FALL_AT_S), ("repeated", REPEAT_AT_S, END_S)):
        instants_s = [since_s, *(at_s for at_s, _ in changes if since_s < at_s < until_s)]
        deciding = [present[sum(at_s <= each_s for at_s, _ in changes)] for each_s in instants_s]
        times_s = (at_s - since_s for at_s, each in zip(instants_s, deciding, strict=True) if each.title in good)
        steps[name] = {"good_after_s": next(times_s, None)}
        steps[name] |= {label: watch.attainment(since_s, until_s) for label, watch in runs.items()}
    return {**told, "best": best.title, "steps": steps}


def _distinct(candidates: Sequence[PolicyCandidate]) -> list[PolicyCandidate]:
    return list({each.title: each for each in candidates}.values())


def show(console: Console, hours: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> None:
    """Print a line for each load, and the sums."""
    if hours:
        rows = (
            (row["number"], f"{row['default']:.1f}", f"{row['auto']:.1f}", _changes(row), ", ".join(row["wrong"]))
            for row in hours
        )
        print_table(console, None, ("stationary load", "default", AUTO, "changes", "wrong"), rows)
        wrong, changed = sum(len(row["wrong"]) for row in hours), sum(len(row["changes"]) for row in hours)
        console.print(f"{changed} changes in {len(hours)} h, {wrong} wrong")
    if steps:
        lines = []
        for row in steps:
            cells: list[str] = []
            for step in row["steps"].values():
                cells.append("never" if step["good_after_s"] is None else f"{step['good_after_s']:.0f}")
                cells.append(", ".join(f"{step[name]:.1f}" for name in ("auto", "default", "best")))
            lines.append((row["number"], *cells, _changes(row)))
        two = (f"{what}, {name}" for name in ("first", "repeated") for what in ("good after s", "auto, default, best"))
        print_table(console, None, ("step", *two, "changes"), lines)
        for name in ("first", "repeated"):
            times = [step["good_after_s"] for row in steps if (step := row["steps"][name])]
            ended = [at_s for at_s in times if at_s is not None]
            console.print(
                f"{name} step: good within 30 s {sum(at_s <= 30 for at_s in ended)} of {len(times)}, never "
                f"{len(times) - len(ended)}; median {median(ended or [0]):.0f} s"
            )


def _changes(row: dict[str, Any]) -> str:
    return ", ".join(f"{at_s:.0f} s {title}" for at_s, title in row["changes"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all loads, and print their figures."""
    parser = parser_of("bench.policy_tuning", __doc__, jobs=True)
    parser.add_argument("--hours", type=int, default=10, help="stationary loads of an hour; default 10")
    parser.add_argument("--steps", type=int, default=12, help="loads with steps; default 12")
    parser.add_argument("--seed", type=int, default=34, help="of the sample; default 34")
    options = parser.parse_args(arguments)
    tasks = [Task(options.seed, number, is_step=True) for number in range(options.steps)]
    tasks += [Task(options.seed, number, is_step=False) for number in range(options.hours)]
    rows: list[dict[str, Any]] = []
    for row in run_parallel(measure, tasks, jobs=options.jobs):
        rows.append(row)
        write_json(options.json, rows)
    steps, hours = rows[: options.steps], rows[options.steps :]
    show(console_of(200), hours, steps)


if __name__ == "__main__":
    main()
