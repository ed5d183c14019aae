"""Training record beside the networks: the command, the settings and the results."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tidegate.api import VersionedDocument
from tidegate_inss.learned.networks import PLACING, SHARING
from tidegate_inss.learned.outcome import outcome_of
from tidegate_inss.learned.placement import Placer
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.learned.sharing import Sharer
from tidegate_inss.training.workloads import PROBLEMS_PER_ROUND, Workload

if TYPE_CHECKING:
    from tidegate_inss.training.trainer import Training


Point = dict[str, float]


def judge(workloads: Sequence[Workload], placer: Placer, sharer: Sharer) -> Point:
    """Return means over all models: reward, normalized throughput, late fraction, fraction without a share.

    `placer`, `sharer`: decide stages 1 and 2.
    """
    outcomes = []
    for workload in workloads:
        loads = workload.loads
        decision = schedule(loads, workload.memory_mib, placer, sharer)
        outcomes.append(outcome_of(loads, decision.slots, decision.shares))
    late = np.concatenate([outcome.late for outcome in outcomes])
    reward = np.concatenate([outcome.reward for outcome in outcomes])
    throughput = np.concatenate([outcome.throughput for outcome in outcomes])
    return {
        "reward": float(reward.mean()),
        "throughput": float(throughput.mean()),
        "late": float(late.mean()),
        "on_time": float((late == 0).mean()),
    }


RECORDED_LIBRARIES = ("numpy", "torch", "stable-baselines3")


class TrainingRecord(VersionedDocument):
    """Record of a training run."""

    kind: Literal["inss_training"] = "inss_training"
    command: str
    """Command that reproduces these networks with these library versions."""
    settings: dict[str, Any]
    problems_per_round: int
    seconds: float
    """Duration of the training in seconds."""
    libraries: dict[str, str]
    networks_sha256: dict[str, str]
    rules: Point
    """Results of the heuristics on held-out workloads."""
    curve: list[Point]
    """Points of the learning curve: round; mean reward of the rounds since the last point; on held-out workloads mean
    reward of a model, its normalized throughput, fraction of late requests, fraction of models without a share.
    """

    @property
    def last(self) -> Point:
        """Results of the networks on held-out workloads at the end of training."""
        return self.curve[-1]


def record_of(training: "Training", folder: Path) -> TrainingRecord:
    """Return the record of a finished training whose networks are in the folder."""
    settings = vars(training.settings)
    ni = "" if training.settings.interference else " --no-interference"
    return TrainingRecord(
        command=f"tidegate train-inss FOLDER --seed {settings['seed']} --rounds {settings['rounds']}{ni}",
        settings=settings,
        problems_per_round=PROBLEMS_PER_ROUND,
        seconds=round(training.seconds, 1),
        libraries={name: version(name) for name in RECORDED_LIBRARIES},
        networks_sha256={name: sha256((folder / name).read_bytes()).hexdigest() for name in (PLACING, SHARING)},
        rules=_rounded(training.ruled),
        curve=[_rounded(point) for point in training.curve],
    )


def _rounded(point: Point) -> Point:
    return {name: round(value, 5) for name, value in point.items()}
