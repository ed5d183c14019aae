"""Workloads of made-up models, and chance to decide them."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tidegate_inss.learned.sharing import SHARING_ACTION
from tidegate_inss.training.workloads import Workload, Workloads

MODELS = 24


@cache
def _workloads(interference: bool) -> Workloads:
    return Workloads(7, interference=interference, pool=MODELS)


def workload(seed: int, problems: int = 1, gpus: int = 4, *, interference: bool = True) -> Workload:
    workloads = _workloads(interference)
    workloads.rng = np.random.default_rng(seed)
    return workloads.draw(problems, gpus)


class Randomly:
    """Draws, within masks, and counts the calls."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.calls = 0

    def __call__(self, states: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        self.calls += 1
        drawn: NDArray[np.int64] = np.where(masks, self._rng.random(masks.shape), -1.0).argmax(axis=1)
        return drawn

    def share(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._rng.uniform(-1, 1, (len(states), SHARING_ACTION)).astype(np.float32)
