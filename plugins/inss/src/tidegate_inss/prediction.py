"""What a plan is foretold to do: what batches take beside their neighbours, how long requests wait, how many are late.

A batch takes what the interference model says with all neighbours busy (InSS, section 4.1). A request waits until its
batch is assembled and the batches before it have run (Equation 3), with Poisson arrivals and in the steady state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

from tidegate_inss.assignment import Share, by_gpu
from tidegate_inss.problem import ShareProblem
from tidegate_inss.tables import Tables, tables_of


@dataclass(frozen=True)
class Waiting:
    """What requests of one share see."""

    latency_ms: float
    """From arrival to answer, on average; infinite where more comes than the share bears."""
    late: float
    """The share of the requests that are answered after their SLO."""


@dataclass(frozen=True)
class ShareForecast:
    """What one share does."""

    batch_ms: float
    """What a full batch takes beside its neighbours: t_inf."""
    most_rps: float
    """b / t_inf, the paper's throughput."""
    rate_rps: float
    """Its part of what comes for the model."""
    waiting: Waiting


class Predictor:
    """The latency model of one problem, in tables."""

    def __init__(self, problem: ShareProblem) -> None:
        """Raises PlanningError as `ShareProblem.check` does."""
        problem.check()
        self.problem = problem
        self.tables: Tables = tables_of(problem)
        self._minds = self.tables.minds.tolist()

    def batch_ms(self, shares: Sequence[Share]) -> list[float]:
        """What a full batch of each takes, all of them being on one GPU and busy all the time.

        Who takes turns with it in one process is no neighbour; of other processes the model counts that is felt most.
        """
        tables = self.tables
        cache = [tables.cache_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        dram = [tables.dram_percent.item(model, units, batch) for model, _, units, batch, _ in shares]
        most: dict[int, tuple[float, float]] = {}
        for at, share in enumerate(shares):
            process = share.process or -1 - at
            before = most.get(process, (0.0, 0.0))
            most[process] = max(before[0], cache[at]), max(before[1], dram[at])
        all_cache, all_dram = sum(each[0] for each in most.values()), sum(each[1] for each in most.values())
        others = len(most) - 1
        taken = []
        for at, (model, _, units, batch, process) in enumerate(shares):
            own = most[process or -1 - at]
            by_cache, by_dram, by_any = self._minds[model]
            added = by_cache * (all_cache - own[0]) + by_dram * (all_dram - own[1]) + by_any * others
            taken.append(tables.transfer_ms.item(model, batch) + tables.gpu_ms.item(model, units, batch) * (1 + added))
        return taken

    def takes_mib(self, share: Share) -> float:
        """The device memory of a share's process."""
        return self.problem.models[share.model].takes_mib(share.batch)

    def forecast(self, shares: Sequence[Share]) -> list[ShareForecast]:
        """What each share does, in their order. A model's requests are divided among its shares by what these bear."""
        batch_ms = dict.fromkeys(range(len(shares)), 0.0)
        numbers = by_gpu((share._replace(model=at) for at, share in enumerate(shares)), len(self.problem.devices))
        for gpu in numbers:
            mine = [each.model for each in gpu]
            batch_ms.update(zip(mine, self.batch_ms([shares[at] for at in mine]), strict=True))
        most = [1000 * share.batch / batch_ms[at] for at, share in enumerate(shares)]
        of_model = [0.0] * len(self.problem.models)
        for share, rps in zip(shares, most, strict=True):
            of_model[share.model] += rps
        found = []
        for at, share in enumerate(shares):
            model = self.problem.models[share.model]
            rate = model.rate_rps * most[at] / of_model[share.model]
            waiting = waiting_for_full_batches(rate, share.batch, batch_ms[at], model.slo_ms)
            found.append(ShareForecast(batch_ms[at], most[at], rate, waiting))
        return found


def waiting_for_full_batches(rate_rps: float, batch: int, batch_ms: float, slo_ms: float) -> Waiting:
    """Equation 3 in the steady state: batches are full, and run one after the other.

    The j-th of b requests waits for b - j more of a Poisson process; a full batch waits for those before it as in a
    queue whose batches come Erlang distributed (Kingman's bound, its mean added for all).
    """
    per_ms = rate_rps / 1000
    busy = per_ms * batch_ms / batch
    if busy >= 1:
        return Waiting(inf, 1.0)
    queued_ms = busy * batch_ms / (2 * (1 - busy) * batch)
    latency_ms = (batch - 1) / (2 * per_ms) + queued_ms + batch_ms
    left_ms = slo_ms - queued_ms - batch_ms
    if left_ms < 0:
        return Waiting(latency_ms, 1.0)
    # Late is who waits for k more while fewer than k come in what is left: a Poisson distribution's lower tail.
    mean = per_ms * left_ms
    chance, below, late = exp(-mean), 0.0, 0.0
    for k in range(1, batch):
        below += chance
        late += below
        chance *= mean / k
    return Waiting(latency_ms, min(1.0, late / batch))
