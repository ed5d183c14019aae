"""A load that changes every half a minute: the plan for its mean, the GSLICE loop, and shares planned anew."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from bench.papers.inss.outcomes import Load, Way, plan, problem_for
from bench.papers.inss.workloads import stretched
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_inss.layout import layout_of
from tidegate_inss.problem import ShareProblem

NAMES = ("alexnet", "resnet50", "vgg19", "mobilenet", "efficientnet")
CHANGES_S = 30
UNLIKE = 0.5
"""How unlike a model's rates are over time: log-normal, the standard deviation of the logarithm."""
CONTROLLERS: dict[str | None, dict[str, Any]] = {
    None: {},
    "gslice-loop": {"spare": 0.75},
    "share-replanning inss": {"planner": "inss"},
    "share-replanning": {},
}
"""Options by controller; a name's first word is the controller's. The loop is told what is best for it (`told`)."""
POLICY = PolicyChoice(name="symphony")
LIMITS = {"interval_s": 2, "cooldown_s": 4, "startup_timeout_s": 30}
STARTUP_S = {"distribution": "lognormal", "mean": 3, "cv": 0.3}
"""How long new processes take until they are warm."""


@dataclass(frozen=True)
class Hour:
    """A load over time, and who changes the layout."""

    load: Load
    seconds: float
    controller: str | None
    stretch: float = 1.0
    """All takes so much longer, and so much less comes."""


@dataclass(frozen=True)
class Followed:
    """What came of it."""

    late: float
    worst: float
    gpus: float
    changes: int
    undone: int
    lost: int
    """Requests that failed or were forgotten."""
    taken_s: tuple[float, ...]
    """How long each change took, from its first new process to the switch."""


def follow(hour: Hour) -> Followed:
    """Simulate."""
    with TemporaryDirectory() as folder:
        return followed(simulate(RunSpec(scenario_of(hour, Path(folder)), POLICY, hour.load.seed)))


def scenario_of(hour: Hour, folder: Path) -> Scenario:
    """The scenario; its arrivals are a file in the folder. The plan at the beginning is the search's for mean rates."""
    problem = problem_for(hour.load)
    found, _ = plan(hour.load, Way("shares"))
    problem = stretched(problem, hour.stretch)
    trace = folder / "arrivals.txt"
    with trace.open("w") as lines:
        lines.writelines(f"{at:.6f} {name}\n" for at, name in arrivals(problem, hour.seconds, hour.load.seed))
    return Scenario.model_validate(
        {
            "warmup_s": 1,
            "duration_s": hour.seconds - 1,
            "layout": layout_of(problem, found),
            "arrivals": {"process": "trace", "file": str(trace), "format": "lines"},
            "simulation": {"interference": problem.measured, "startup": {"time_s": STARTUP_S}},
            **_controller(hour.controller, problem),
        }
    )


def followed(result: RunResult) -> Followed:
    """What came of a run, simulated or live."""
    total = result.rows[0]
    states = Counter(change.state for change in result.changes)
    began: dict[int, float] = {}
    taken_s = []
    for change in result.changes:
        if change.state == "starting":
            began[change.change] = change.at_s
        elif change.state == "switched":
            taken_s.append(change.at_s - began[change.change])
    return Followed(
        late=total.bad_rate,
        worst=total.worst_bad_rate,
        gpus=total.mean_gpus or 0.0,
        changes=states["switched"],
        undone=states["undone"],
        lost=total.failed + total.stranded,
        taken_s=tuple(taken_s),
    )


def _controller(name: str | None, problem: ShareProblem) -> dict[str, Any]:
    if name is None:
        return {}
    options = {"problem": problem.model_dump(mode="json"), **CONTROLLERS[name]}
    return {"controller": {"name": name.split()[0], "options": options, **LIMITS}}


def arrivals(problem: ShareProblem, seconds: float, seed: int) -> Iterator[tuple[float, str]]:
    """Instants and models, in order: Poisson, each model's rate drawn anew every half a minute."""
    rng = Random(f"changing {seed}")
    begin = 0.0
    while begin < seconds:
        rates = [model.rate_rps * rng.lognormvariate(-(UNLIKE**2) / 2, UNLIKE) for model in problem.models]
        now, total = begin, sum(rates)
        while (now := now + rng.expovariate(total)) < begin + CHANGES_S:
            yield now, rng.choices(problem.models, rates)[0].name
        begin += CHANGES_S
