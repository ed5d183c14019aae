"""Live run of a scenario: against a running server, or against a cluster emulated for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from tidegate.host import Plugins
from tidegate.sim.build import setup_of
from tidegate.sim.document import simulate_document
from tidegate.sim.result import RunResult
from tidegate.sim.run import choose_policies
from tidegate.sim.verdicts import simulate_verdicts
from tidegate.workload import PolicyChoice, Scenario, draw_requests, layout_of, mean_rate_rps
from tidegate.workload.scenario_file import without_placeholders
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.live import LiveObservations, SendingOptions, send_scenario
from tidegate_loadtest.open_loop import Progress
from tidegate_loadtest.slo_evaluation import judge

MAX_NAMED_RUNS = 2
"""Maximum number of runs that do not measure the server and have a sentence each."""


@dataclass(frozen=True)
class LiveRun:
    """Parameters of one live run."""

    scenario: Scenario
    policy: PolicyChoice
    seed: int
    sending: SendingOptions
    target: str | None = None
    """HOST:PORT of the server; None: emulate the cluster, under the policy."""
    gantt_s: float = 0.0
    """Seconds of single requests and stages to keep for charts, with the run's detail; 0: none."""
    load: float = 1.0
    """Factor on the arrival rate."""

    @property
    def name(self) -> str:
        """Name in messages."""
        at_rate = "" if self.load == 1 else f", {mean_rate_rps(self.scenario, self.load):,.4g}/s"
        return f"{self.policy.title}, seed {self.seed}{at_rate}"


@dataclass(frozen=True)
class LiveResult:
    """Result of one live run."""

    run: LiveRun
    result: RunResult
    seen: LiveObservations

    @property
    def fell_behind(self) -> bool:
        """Whether the run measures the generator rather than the server."""
        return self.seen.run.fell_behind

    @property
    def not_measured(self) -> str:
        """Return why the run does not measure the server; "": it does."""
        return self.seen.run.not_measured


def plan_runs(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Sequence[int],
    sending: SendingOptions,
    *,
    target: str | None = None,
    gantt_s: float = 0.0,
) -> list[LiveRun]:
    """Return the runs for policies given by name or label; default: the scenario's, or the target unmodified.

    `target`: HOST:PORT, or NAME=HOST:PORT, where NAME labels the results. Raises PluginError (policy or controller not
    installed, or wrong options), and LoadTestError for a scenario that cannot be emulated. `seeds`: one run for each;
    `gantt_s`: see `LiveRun`.
    """
    if target is not None:
        choice, target = _of_target(scenario, policies, target)
        return [LiveRun(scenario, choice, seed, sending, target, gantt_s) for seed in seeds]
    from tidegate_loadtest.emulated import check_can_be_emulated  # noqa: PLC0415 - of the extra `emulated`

    choices = choose_policies(scenario, policies)
    check_can_be_emulated(scenario, choices)
    for choice in choices:
        Plugins.installed().make_policy(choice.name, setup_of(scenario, seeds[0]), choice.options)
    if scenario.controller is not None:
        Plugins.installed().make_controller(scenario.controller, layout_of(scenario), seed=seeds[0])
    return [LiveRun(scenario, choice, seed, sending, None, gantt_s) for choice in choices for seed in seeds]


def _of_target(scenario: Scenario, policies: Sequence[str], target: str) -> tuple[PolicyChoice, str]:
    """Return the label and the address of a running server in the results."""
    label, _, address = target.rpartition("=")
    if len(policies) > 1:
        raise LoadTestError(f"{address} runs one policy: name at most one with --policy")
    if policies:
        (choice,) = choose_policies(scenario, policies)
        return (choice.model_copy(update={"label": label}) if label else choice), address
    return PolicyChoice(name=label or address), address


def run_live(
    run: LiveRun, *, progress: Callable[[Progress], None] | None = None, work: Path | None = None
) -> LiveResult:
    """Execute a run; stop all processes that it started, even if it raises. Raises LoadTestError, TraceError.

    `work`: an empty folder for an emulated cluster's files (models, profiles, logs, Tidegate's event log).
    """
    scenario, seed = run.scenario, run.seed
    requests = draw_requests(scenario, seed, run.load)

    def send(target: str) -> LiveObservations:
        return uvloop.run(send_scenario(target, scenario, requests, run.sending, seed=seed, progress=progress))

    def judged(seen: LiveObservations, event_log: Path | None) -> LiveResult:
        title = run.policy.title
        result = judge(
            scenario,
            requests,
            seen,
            policy=title,
            seed=seed,
            event_log=event_log,
            gantt_s=run.gantt_s,
            load=run.load,
        )
        return LiveResult(run, result, seen)

    if run.target is not None:
        return judged(send(run.target), None)
    from tidegate_loadtest.emulated import emulated_cluster  # noqa: PLC0415 - of the extra `emulated`

    with TemporaryDirectory(prefix="tidegate-loadtest-") as folder:
        with emulated_cluster(scenario, run.policy, seed, work or Path(folder)) as cluster:
            seen = send(cluster.address)
        return judged(seen, cluster.event_log)


def live_document(scenario: Scenario, lives: Sequence[LiveResult]) -> dict[str, Any]:
    """Return the document of `tidegate simulate`, with the runs that do not measure the server."""
    results = [live.result for live in lives]
    excluded = [
        {"policy": live.run.policy.title, "seed": live.run.seed, "reason": live.not_measured}
        for live in lives
        if live.not_measured
    ]
    document = simulate_document(scenario, results)
    own = {"scenario": without_placeholders(document["scenario"]), "command": "loadtest", "not_measured": excluded}
    return {**document, **own}


def not_measured_verdicts(lives: Sequence[LiveResult]) -> list[str]:
    """Return a sentence for each run that does not measure the server; of many, one with their number and the first."""
    excluded = [live for live in lives if live.not_measured]
    sentences = [f"{live.run.name}: not measured: {live.not_measured}." for live in excluded]
    if len(excluded) > MAX_NAMED_RUNS:
        return [f"{len(excluded)} of {len(lives)} runs are not measured, first {sentences[0]}"]
    return sentences


def live_verdicts(scenario: Scenario, lives: Sequence[LiveResult], *, workers: int | None) -> list[str]:
    """Return sentences on live runs: those that do not measure the server first. `workers`: as in a simulation."""
    excluded = not_measured_verdicts(lives)
    measured = [live.result for live in lives if not live.not_measured]
    return excluded + (simulate_verdicts(scenario, measured, workers=workers) if measured else [])
