"""Simulated runs of candidates and their outcomes: many in parallel, each once."""

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidegate.api import NEVER_NS, ms_to_ns
from tidegate.host import PluginError
from tidegate.recommend.recording import RecordedTraffic
from tidegate.sim.parallel import run_parallel
from tidegate.sim.run import RunSpec, SimulationError, simulate
from tidegate.workload import PolicyChoice, RequestSequence, Scenario, draw_requests
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.scenario import ProcessSpec, TraceSpec
from tidegate.workload.traces import read_trace

GOLDEN_RATIO = 0.6180339887
"""Golden ratio: spreads the start points of seeds evenly over a trace, however many there are."""
LEAST_S, SLOS_OF_WINDOW, SLOS_OF_WARMUP = 1.0, 40, 10
"""Minimum length of a window in seconds; lengths of window and warm-up as multiples of the longest SLO."""
MIN_REQUESTS = 20
"""Minimum number of requests of a model in a window for its own attainment; with fewer, one late request would
decide.
"""


@dataclass(frozen=True)
class SimulationRun:
    """One run to simulate; can be pickled."""

    scenario: Scenario
    choice: PolicyChoice
    seed: int
    load: float = 1.0
    """Factor on the request rate."""
    recording: RecordedTraffic | None = None
    requests: int | None = None
    """Approximate number of requests in the window; None: as the scenario defines."""
    goal: float | None = None
    """Attainment below which the run stops as soon as it is certain for some model; None: it never stops early."""


@dataclass(frozen=True)
class SimulationOutcome:
    """Outcome of one run: requests, drops and attainment by model."""

    attainment: float = 0.0
    """Attainment of all requests."""
    models: dict[str, float] = field(default_factory=dict)
    """Attainment by model; models with few requests are left out."""
    p99_ms: float | None = None
    busy_share: float = 0.0
    missed: bool = False
    """Whether the run was stopped because a model is below the goal."""
    broken: str = ""
    """Why the run failed; empty: it did not."""

    @property
    def worst(self) -> float:
        """Attainment of the worst model, 0 to 1."""
        return 0.0 if self.missed or self.broken else min(self.models.values(), default=1.0)

    @property
    def score(self) -> float:
        """Score by which candidates are compared: mean of the overall attainment and that of the worst model."""
        return (self.attainment + self.worst) / 2


def simulate_run(run: SimulationRun) -> SimulationOutcome:
    """Simulate the run, and return its outcome. Raises TraceError."""
    scenario = scenario_of(run)
    if run.recording is not None:
        requests = _recorded_requests(run, scenario)
    else:
        requests = draw_requests(scenario, run.seed, run.load)
    counts = Counter(requests.model[bisect_left(requests.at_ns, round(scenario.warmup_s * NS_PER_S)) :])
    # Of a model with few requests a single one that is late would end the run.
    limit = None if run.goal is None or min(counts.values(), default=MIN_REQUESTS) < MIN_REQUESTS else 1 - run.goal
    spec = RunSpec(scenario, run.choice, run.seed, load=run.load, bad_limit=limit)
    try:
        result = simulate(spec, requests=requests)
    except (PluginError, SimulationError) as error:
        return SimulationOutcome(broken=str(error))
    row = result.total
    return SimulationOutcome(
        row.attainment,
        {each.model: each.attainment for each in result.rows[1:] if each.accepted >= MIN_REQUESTS},
        row.p99_ms,
        row.busy_share,
        result.stopped_early,
    )


def scenario_of(run: SimulationRun) -> Scenario:
    """Return the scenario with the window and the part of the trace of this run."""
    scenario, arrivals = run.scenario, run.scenario.arrivals
    if run.recording is not None:
        return scenario
    steady = isinstance(arrivals, TraceSpec) or not isinstance(arrivals.rate_rps, list)
    changes: dict[str, object] = {}
    if steady and run.requests is not None:
        slo_s = max((model.slo_ms for model in scenario.models if model.slo_ms is not None), default=0.0) / 1000
        wanted_s = max(LEAST_S, SLOS_OF_WINDOW * slo_s, run.requests / _rate_rps(scenario, run.load))
        changes["duration_s"] = min(scenario.duration_s, wanted_s)
        changes["warmup_s"] = min(scenario.warmup_s, max(LEAST_S / 2, SLOS_OF_WARMUP * slo_s))
    if isinstance(arrivals, TraceSpec):
        period_s = read_trace(scenario.folder / arrivals.file, arrivals.format).period_s
        start_s = (arrivals.start_s + run.seed * GOLDEN_RATIO * period_s) % period_s
        changes["arrivals"] = arrivals.model_copy(update={"start_s": start_s})
    return scenario.model_copy(update=changes)


def _rate_rps(scenario: Scenario, load: float) -> float:
    arrivals = scenario.arrivals
    if isinstance(arrivals, ProcessSpec):
        return arrivals.mean_rps(scenario.duration_s) * load
    return read_trace(scenario.folder / arrivals.file, arrivals.format).rate_rps * arrivals.scale * load


def _recorded_requests(run: SimulationRun, scenario: Scenario) -> RequestSequence:
    assert run.recording is not None, "asked by the caller"
    slos_ns = tuple(NEVER_NS if model.slo_ms is None else ms_to_ns(model.slo_ms) for model in scenario.models)
    late = frozenset(
        model.name for model in scenario.models if model.on_deadline_miss == "serve" and model.slo_ms is not None
    )
    return run.recording.requests(run.seed, run.load, slos_ns, late)


Collect = Callable[[str, Iterable[SimulationOutcome], int], list[SimulationOutcome]]
"""Function `collect(label, outcomes, total)` that returns the pending outcomes as a list and shows progress."""

Key = tuple[object, ...]
"""Key that identifies a run, without its goal, which only ends runs early."""


def quietly(label: str, outcomes: Iterable[SimulationOutcome], total: int) -> list[SimulationOutcome]:
    """Return the outcomes without a progress display; `label` and `total` are ignored."""
    del label, total
    return list(outcomes)


@dataclass
class SimulationRuns:
    """Results of simulation runs: a run is simulated once, on all cores, and its result is kept."""

    jobs: int = -1
    collect: Collect = quietly
    count: int = 0
    """Number of simulated runs."""
    _known: dict[Key, SimulationOutcome] = field(default_factory=dict)
    """Outcomes of complete runs."""
    _stopped: dict[Key, tuple[float, SimulationOutcome]] = field(default_factory=dict)
    """The goal that other runs missed, and what they had come to."""
    _digests: dict[int, tuple[Scenario, str]] = field(default_factory=dict)

    def run(self, label: str, runs: Sequence[SimulationRun]) -> list[SimulationOutcome]:
        """Return the outcomes in order. Raises TraceError, ParallelBackendError."""
        keys = [self._key(run) for run in runs]
        new = {
            (key, run.goal): run
            for key, run in zip(keys, runs, strict=True)
            if self._known_outcome(key, run.goal) is None
        }
        if new:
            found = self.collect(label, run_parallel(simulate_run, [*new.values()], jobs=self.jobs), len(new))
            for (key, goal), outcome in zip(new, found, strict=True):
                if outcome.missed and goal is not None:
                    self._stopped[key] = goal, outcome
                else:
                    self._known[key] = outcome
            self.count += len(new)
        known = [self._known_outcome(key, run.goal) for key, run in zip(keys, runs, strict=True)]
        return [outcome for outcome in known if outcome is not None]

    def _known_outcome(self, key: Key, goal: float | None) -> SimulationOutcome | None:
        if (known := self._known.get(key)) is not None:
            return known
        missed, outcome = self._stopped.get(key, (2.0, None))
        return outcome if goal is not None and goal >= missed else None

    def _key(self, run: SimulationRun) -> Key:
        options = json.dumps(run.choice.options, sort_keys=True)
        digest = self._digest(run.scenario)
        return digest, run.choice.name, options, run.seed, run.load, run.requests

    def _digest(self, scenario: Scenario) -> str:
        """The same for equal scenarios. It is kept, by identity, beside the scenario, which so keeps its identity."""
        known = self._digests.get(id(scenario))
        if known is None:
            digest = hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()
            known = self._digests[id(scenario)] = scenario, digest
        return known[1]
