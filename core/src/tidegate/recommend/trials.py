"""Many runs, on all cores, none of them twice."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidegate.recommend.trial import Outcome, Trial, run_trial
from tidegate.sim.parallel import run_parallel
from tidegate.workload import Scenario

Collect = Callable[[str, Iterable[Outcome], int], list[Outcome]]
"""Collects the outcomes that are still to come, of which there are so many, and says meanwhile what is being done."""


def quietly(label: str, outcomes: Iterable[Outcome], total: int) -> list[Outcome]:
    """Collect outcomes and say nothing."""
    del label, total
    return list(outcomes)


@dataclass
class Trials:
    """Runs what was not run yet."""

    jobs: int = -1
    collect: Collect = quietly
    count: int = 0
    """How many were run."""
    _known: dict[tuple[object, ...], Outcome] = field(default_factory=dict)
    _digests: dict[int, tuple[Scenario, str]] = field(default_factory=dict)

    def run(self, label: str, trials: Sequence[Trial]) -> list[Outcome]:
        """The outcomes, in order. Raises TraceError, ParallelBackendError."""
        keys = [self._key(trial) for trial in trials]
        new = {key: trial for key, trial in zip(keys, trials, strict=True) if key not in self._known}
        if new:
            found = self.collect(label, run_parallel(run_trial, [*new.values()], jobs=self.jobs), len(new))
            self._known.update(zip(new, found, strict=True))
            self.count += len(new)
        return [self._known[key] for key in keys]

    def _key(self, trial: Trial) -> tuple[object, ...]:
        options = json.dumps(trial.choice.options, sort_keys=True)
        digest = self._digest(trial.scenario)
        return digest, trial.choice.name, options, trial.seed, trial.load, trial.requests, trial.goal

    def _digest(self, scenario: Scenario) -> str:
        """The same for equal scenarios. It is kept, by identity, beside the scenario, which so keeps its identity."""
        known = self._digests.get(id(scenario))
        if known is None:
            digest = hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()
            known = self._digests[id(scenario)] = scenario, digest
        return known[1]
