"""Parallel simulation of many runs, each run once."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidegate.recommend.simulation_run import SimulationOutcome, SimulationRun, simulate_run
from tidegate.sim.parallel import run_parallel
from tidegate.workload import Scenario

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

    def run(self, label: str, trials: Sequence[SimulationRun]) -> list[SimulationOutcome]:
        """Return the outcomes in order. Raises TraceError, ParallelBackendError."""
        keys = [self._key(trial) for trial in trials]
        new = {
            (key, trial.goal): trial
            for key, trial in zip(keys, trials, strict=True)
            if self._known_outcome(key, trial.goal) is None
        }
        if new:
            found = self.collect(label, run_parallel(simulate_run, [*new.values()], jobs=self.jobs), len(new))
            for (key, goal), outcome in zip(new, found, strict=True):
                if outcome.missed and goal is not None:
                    self._stopped[key] = goal, outcome
                else:
                    self._known[key] = outcome
            self.count += len(new)
        known = [self._known_outcome(key, trial.goal) for key, trial in zip(keys, trials, strict=True)]
        return [outcome for outcome in known if outcome is not None]

    def _known_outcome(self, key: Key, goal: float | None) -> SimulationOutcome | None:
        """Return the known outcome of a run; a complete run covers one with any goal."""
        if (known := self._known.get(key)) is not None:
            return known
        missed, outcome = self._stopped.get(key, (2.0, None))
        return outcome if goal is not None and goal >= missed else None

    def _key(self, trial: SimulationRun) -> Key:
        options = json.dumps(trial.choice.options, sort_keys=True)
        digest = self._digest(trial.scenario)
        return digest, trial.choice.name, options, trial.seed, trial.load, trial.requests

    def _digest(self, scenario: Scenario) -> str:
        """The same for equal scenarios. It is kept, by identity, beside the scenario, which so keeps its identity."""
        known = self._digests.get(id(scenario))
        if known is None:
            digest = hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()
            known = self._digests[id(scenario)] = scenario, digest
        return known[1]
