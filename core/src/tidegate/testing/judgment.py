"""Comparison of a policy with simple baselines in typical traffic.

Each scenario has one difficulty in otherwise usual conditions: six workers, an SLO of 60 ms, and batches of up to
sixteen rows that take 8 ms and 2 ms for each row. The baselines are `fifs`, `eager` and Triton's batcher with expert
settings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tidegate.host import PluginError, Plugins
from tidegate.schemas import tuned_settings
from tidegate.sim.interval import Interval, interval_of
from tidegate.sim.parallel import run_parallel
from tidegate.sim.run import RunSpec, SimulationError, simulate
from tidegate.workload import PolicyChoice, Scenario

BASELINE_POLICIES = ("fifs", "eager", "triton")
TUNED_BASELINE = "triton"
"""Baseline of which the best setting counts, chosen afterwards for each scenario."""
WORLD_SEEDS = (1, 2, 3, 4, 5)
WARMUP_S, DURATION_S = 0.5, 1.5
NOISE_FRACTION = 0.01
"""Minimum fraction of requests by which a policy below a baseline is reported, if its interval excludes none."""
_GPU = {"alpha_ms": 2, "beta_ms": 8, "max_batch": 16}
_MODEL = {"name": "m", "slo_ms": 60, "profile": _GPU}


def _world(rate_rps: float, **changes: object) -> dict[str, Any]:
    usual = {
        "warmup_s": WARMUP_S,
        "duration_s": DURATION_S,
        "workers": [{"count": 6, "gpu": "GPU"}],
        "models": [_MODEL],
        "arrivals": {"process": "poisson", "rate_rps": rate_rps},
    }
    return deepcopy({**usual, **changes})


def _applications() -> list[dict[str, Any]]:
    times = ((80, 4), (15, 12), (5, 40))
    return [
        {"name": f"a{number}", "weight": weight, "time_ms": {"distribution": "normal", "mean": mean, "std": mean / 10}}
        for number, (weight, mean) in enumerate(times)
    ]


def _pools() -> dict[str, Any]:
    parts = [
        {"name": f"m.{gpu}", "profiles": {gpu: {"alpha_ms": alpha, "beta_ms": 8}}, "output_bytes": 100_000}
        for gpu, alpha in (("A", 3), ("B", 2), ("C", 1.5))
    ]
    workers = [{"count": 2, "gpu": gpu, "hosts": [f"m.{gpu}"]} for gpu in "ABC"]
    models = [{"name": "m", "slo_ms": 160, "pipelines": [{"batch": 8, "partitions": parts}]}]
    return _world(560, workers=workers, models=models, simulation={"jitter": {"cv": 0.2}})


JUDGED_SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "usual": _world(2350),
    "more load than they sustain": _world(3000),
    "rows: log-normal, mean 4": _world(
        560, models=[{**_MODEL, "rows": {"distribution": "lognormal", "mean": 4, "cv": 1}}]
    ),
    "rows: 1 or 16": _world(
        400, models=[{**_MODEL, "rows": {"distribution": "table", "values": [1, 16], "weights": [3, 1]}}]
    ),
    "applications, 80/15/5 %": _world(
        420,
        models=[
            {
                "name": "m",
                "slo_ms": 150,
                "profile": {"alpha_ms": 1, "beta_ms": 4, "max_batch": 16},
                "apps": _applications(),
            }
        ],
        simulation={"service": {"m": {"combine": "padded"}}},
    ),
    "quick models beside slow ones": _world(
        1000,
        models=[
            {"name": "quick", "slo_ms": 20, "weight": 0.7, "profile": {"alpha_ms": 0.5, "beta_ms": 2, "max_batch": 16}},
            {"name": "slow", "slo_ms": 400, "weight": 0.3, "profile": {"alpha_ms": 10, "beta_ms": 40, "max_batch": 8}},
        ],
    ),
    "times vary by 35 %": _world(1300, simulation={"jitter": {"cv": 0.35}}),
    "one stage in a hundred stalls": _world(1900, simulation={"stalls": {"probability": 0.01}}),
    "one stage in a hundred fails": _world(1900, simulation={"failures": {"probability": 0.01}}),
    "two of six workers lost": _world(
        2000, simulation={"events": [{"at_s": 0.4, "lost": 0}, {"at_s": 0.4, "lost": 1}, {"at_s": 1.0, "joined": 0}]}
    ),
    "bursts": _world(2100, arrivals={"process": "gamma", "shape": 0.08, "rate_rps": 2100}),
    "three pools": _pools(),
}
"""Scenarios by name."""


@dataclass(frozen=True)
class Judgment:
    """Results of a policy in one scenario beside the best baseline there."""

    policy: str
    world: str
    attainment: float
    """Fraction of requests on time, the mean of all seeds."""
    worst: float
    """Attainment of the worst model."""
    best: str
    """Baseline with the highest mean attainment, Triton's with its setting."""
    gain: Interval
    """Attainment of the policy minus that of the best baseline, seed by seed."""
    worst_gain: float
    """Attainment of the worst model minus that of the best baseline's worst model; mean over seeds."""

    @property
    def is_below(self) -> bool:
        """Whether the policy is below the baseline by more than noise."""
        return self.gain.high < 0 and self.gain.mean < -NOISE_FRACTION


@dataclass(frozen=True)
class _Task:
    """Specification of one run; can be pickled."""

    run: RunSpec
    world: str
    title: str


def judge_policies(
    policies: Iterable[PolicyChoice],
    *,
    worlds: Iterable[str] | None = None,
    seeds: Sequence[int] = WORLD_SEEDS,
    plugins: Plugins | None = None,
    jobs: int = -1,
) -> "Judging":
    """Prepare the comparison of policies with the baselines in the same scenarios, on the same arrivals.

    `worlds`: names in JUDGED_SCENARIOS; default: all. `seeds`: two to ten. `jobs`: parallel runs; -1: one for each
    core. Raises PluginError for a policy that is not installed; missing baselines are left out.
    """
    plugins = plugins or Plugins.installed()
    choices = list(policies)
    for choice in choices:
        plugins.policy(choice.name)
    return Judging(choices, tuple(JUDGED_SCENARIOS if worlds is None else worlds), tuple(seeds), plugins, jobs)


class Judging:
    """All runs of a comparison: iterate for progress, then call `judgments`."""

    def __init__(
        self,
        choices: Sequence[PolicyChoice],
        worlds: Sequence[str],
        seeds: Sequence[int],
        plugins: Plugins,
        jobs: int,
    ) -> None:
        self._choices, self._worlds, self._jobs = choices, worlds, jobs
        self._scores: dict[tuple[str, str], list[tuple[float, float]]] = {}
        """Attainment of all and of the worst model, by (world, policy's title), in the order of the seeds."""
        self.unfit: dict[tuple[str, str], str] = {}
        """Why a policy cannot run in a world, by (world, policy's title)."""
        self._tasks = []
        for world in worlds:
            scenario = Scenario(version=1, name=world, **JUDGED_SCENARIOS[world])
            is_split = any(model.pipelines for model in scenario.models)
            for choice in {each.title: each for each in (*choices, *_yardsticks(scenario, plugins))}.values():
                if is_split and not plugins.policy(choice.name).policy.runs_pipelines:
                    self.unfit[world, choice.title] = "it runs no split models"
                    continue
                self._tasks += [_Task(RunSpec(scenario, choice, seed), world, choice.title) for seed in seeds]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[None]:
        """Make the runs, one after the other."""
        outcomes = run_parallel(_score, self._tasks, jobs=self._jobs)
        for task, score in zip(self._tasks, outcomes, strict=True):
            if isinstance(score, str):
                self.unfit[task.world, task.title] = score
            else:
                self._scores.setdefault((task.world, task.title), []).append(score)
            yield

    def judgments(self, title: str) -> list[Judgment]:
        """Return the judgments of a policy, by its title, in the scenarios that it can run in."""
        judged = []
        names = {choice.title for choice in self._choices} - set(BASELINE_POLICIES)
        for world in self._worlds:
            own = self._scores.get((world, title), [])
            others = {
                name: scores
                for (where, name), scores in self._scores.items()
                if where == world and name not in names and name != title and (world, name) not in self.unfit
            }
            if len(own) < 2 or not others or (world, title) in self.unfit:
                continue
            best = max(others, key=lambda name: fmean(score for score, _ in others[name]))
            gains = [mine - other for (mine, _), (other, _) in zip(own, others[best], strict=True)]
            worst_gain = fmean(mine - other for (_, mine), (_, other) in zip(own, others[best], strict=True))
            attainment, worst = fmean(score for score, _ in own), fmean(score for _, score in own)
            judged.append(Judgment(title, world, attainment, worst, best, interval_of(gains, -1.0), worst_gain))
        return judged


def _yardsticks(scenario: Scenario, plugins: Plugins) -> list[PolicyChoice]:
    choices = []
    for name in BASELINE_POLICIES:
        if name not in plugins.policies:
            continue
        if name == TUNED_BASELINE:
            slos_ms = {model.name: model.slo_ms or 0.0 for model in scenario.models}
            choices += [
                PolicyChoice(name=name, label=f"{name} {label}", options=options)
                for label, options in tuned_settings(slos_ms).items()
            ]
        else:
            choices.append(PolicyChoice(name=name))
    return choices


def _score(task: _Task) -> tuple[float, float] | str:
    """The attainment of all requests and of the worst model; or why the policy cannot run there."""
    try:
        total = simulate(task.run).total
    except (PluginError, SimulationError) as error:
        return str(error)
    except Exception as error:  # a policy's constructor may raise anything
        return f"{type(error).__name__}: {error}"
    return total.attainment, 1 - total.worst_bad_rate
