"""Training: rounds of random workloads that are decided, evaluated by the latency model, and learned from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tidegate_inss.learned.outcome import by_need, outcome_of, to_the_least_busy
from tidegate_inss.learned.placement import GROUP_SIZE
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.training.agents import Agents
from tidegate_inss.training.training_record import Point, judge
from tidegate_inss.training.transitions import placing_transitions, sharing_transitions
from tidegate_inss.training.workloads import MODELS_PER_GPU_SIZE, PROBLEMS_PER_ROUND, Workload, Workloads

WARM_UP = 20
"""Number of first rounds with random decisions, which fill the replay buffers."""
JUDGED_BY = 10**9
"""Seed of the evaluation workloads, common to all networks; their models differ from those of training."""


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a training run; equal settings give equal networks."""

    seed: int = 0
    rounds: int = 2000
    interference: bool = True
    """Whether networks get interference as input; False: InSS-ni."""
    updates: int = 12
    """Steps of stage 1's optimizers in a round; stage 2 takes a third as many, on larger minibatches."""
    replayed: int = 100_000
    judged_every: int = 100
    pool: int = MODELS_PER_GPU_SIZE


@dataclass
class Training:
    """Training run that can stop after any round and resume from `state_dict`."""

    settings: TrainingSettings
    round: int = 0
    seconds: float = 0.0
    """Duration so far in seconds, set by the caller, which has a clock."""
    curve: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        settings = self.settings
        self.agents = Agents(settings.seed, replayed=settings.replayed)
        self._workloads = Workloads(settings.seed, interference=settings.interference, pool=settings.pool)
        apart = Workloads(JUDGED_BY, interference=settings.interference, pool=settings.pool)
        self._judged = [apart.draw(PROBLEMS_PER_ROUND, GROUP_SIZE) for _ in range(8)]
        self._sum, self._rounds = 0.0, 0

    @property
    def ruled(self) -> Point:
        """Results of the heuristics on the evaluation workloads."""
        return judge(self._judged, to_the_least_busy, by_need)

    def run(self) -> Iterator[Point | None]:
        """Run all remaining rounds; yield each new point of the learning curve, None after other rounds."""
        while self.round < self.settings.rounds:
            self._learn_from(self._drawn())
            self.round += 1
            if self.round % self.settings.judged_every and self.round < self.settings.rounds:
                yield None
            else:
                self.curve.append(self._point())
                yield self.curve[-1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {
            "settings": vars(self.settings),
            "round": self.round,
            "seconds": self.seconds,
            "curve": self.curve,
            "sums": (self._sum, self._rounds),
            "agents": self.agents.state_dict(),
            "workloads": self._workloads.rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises ValueError if settings other than the number of rounds differ.
        """
        kept, mine = ({**each, "rounds": 0} for each in (state["settings"], vars(self.settings)))
        if other := sorted(name for name in mine if kept.get(name) != mine[name]):
            values = ", ".join(f"{name} is {kept.get(name)!r} there and {mine[name]!r} here" for name in other)
            raise ValueError(f"the checkpoint is of another training ({values}): give its options, or another folder")
        self.round, self.seconds, self.curve = state["round"], state["seconds"], list(state["curve"])
        self._sum, self._rounds = state["sums"]
        self.agents.load_state_dict(state["agents"])
        self._workloads.rng.bit_generator.state = state["workloads"]

    def save(self, path: Path) -> None:
        """Write a checkpoint file atomically: a run that is killed meanwhile keeps the previous one."""
        new = path.with_name(path.name + ".new")
        torch.save(self.state_dict(), new)
        new.replace(path)

    def load(self, path: Path) -> None:
        """Restore a checkpoint file. Raises ValueError as `load_state_dict` does."""
        # What it holds besides tensors (generators' states, arrays) is no weights; who reads one wrote it.
        self.load_state_dict(torch.load(path, weights_only=False))

    def _drawn(self) -> Workload:
        """Mostly four GPUs, sometimes fewer, sometimes groups of groups."""
        drawn = self._workloads.rng.random()
        if drawn < 0.75:
            return self._workloads.draw(PROBLEMS_PER_ROUND, GROUP_SIZE)
        if drawn < 0.85:
            return self._workloads.draw(PROBLEMS_PER_ROUND, int(self._workloads.rng.integers(1, GROUP_SIZE)))
        return self._workloads.draw(PROBLEMS_PER_ROUND // 4, int(self._workloads.rng.integers(5, GROUP_SIZE**2 + 1)))

    def _learn_from(self, workload: Workload) -> None:
        agents, loads = self.agents, workload.loads
        if self.round < WARM_UP:
            decision = schedule(loads, workload.memory_mib, agents.place_anywhere, agents.share_anyhow)
        else:
            decision = schedule(loads, workload.memory_mib, agents.place, agents.share)
        outcome = outcome_of(loads, decision.slots, decision.shares)
        agents.remember_placing(placing_transitions(workload, loads, decision, outcome))
        agents.remember_sharing(sharing_transitions(workload, loads, decision, outcome))
        agents.learn(self.settings.updates)
        self._sum += float(outcome.reward.mean())
        self._rounds += 1

    def _point(self) -> Point:
        """How good training rounds were since the last point, and how good the networks are on workloads kept apart."""
        mean, self._sum, self._rounds = self._sum / max(1, self._rounds), 0.0, 0
        judged = judge(self._judged, self.agents.sac.best, self.agents.share_best)
        temperature = float(self.agents.sac.log_temperature.exp().detach())
        return {"round": self.round, "training_reward": mean, **judged, "temperature": temperature}
