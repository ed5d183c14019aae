"""Evaluation of decisions by the latency model: networks during training, and the heuristics."""

from collections.abc import Sequence

import numpy as np

from tidegate_inss.learned.outcome import outcome_of
from tidegate_inss.learned.placement import Placer
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.learned.sharing import Sharer
from tidegate_inss.training.workloads import Workload

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
