"""gpulet (Choi et al., ATC 2022): every GPU in at most two parts; small models share a part, serialized.

Latencies are profiled ones plus a tenth. The interference of neighbors is a regression over the use of cache and DRAM
by both, fitted to pairs of models as the interference model predicts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidegate_inss.prediction import AssignedShare, Floats, LatencyTables, Predictor

SHARE_PERCENTS = (20, 40, 50, 60, 80, 100)
LATENCY_MARGIN_FACTOR = 1.1
"""Factor on profiled latency."""
MIN_GAIN = 0.05
"""Minimum relative gain in throughput of a larger part to be preferred."""
MIN_REST_RPS = 15.0
"""Remaining rate of a model in requests per second that gets no part of its own."""
MIN_PLACED_FRACTION = 0.85
"""Fraction of its rate from which a model counts as placed."""
PAIRS_OF = 12
"""Maximum number of models among which the regression is fitted."""


@dataclass
class _Tenant:
    model: int
    batch: int
    rate_rps: float
    occupancy: float
    """The share of the time for which it runs."""


@dataclass
class _Part:
    """A gpulet: a share of a GPU with its models."""

    gpu: int
    percent: int
    tenants: list[_Tenant] = field(default_factory=list)

    @property
    def occupancy(self) -> float:
        return sum(tenant.occupancy for tenant in self.tenants)


@dataclass(frozen=True)
class _Demand:
    """A part that is wanted."""

    model: int
    percent: int
    batch: int
    rate_rps: float
    saturated: bool


class Gpulets:
    """State of one run of gpulet's algorithm."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.problem = predictor.problem
        self._units = {part: part * self.problem.units_per_gpu // 100 for part in SHARE_PERCENTS}
        self._latency_ms = {
            part: LATENCY_MARGIN_FACTOR * predictor.tables.alone_ms[:, units] for part, units in self._units.items()
        }
        self._factors = regression(predictor.tables)
        self._parts: list[list[_Part]] = [[] for _ in self.problem.devices]

    def run(self) -> tuple[list[AssignedShare], dict[int, str]]:
        """Return the shares, and by model why it has too few."""
        models = self.problem.models
        missing: dict[int, str] = {}
        for model in sorted(range(len(models)), key=lambda each: models[each].rate_rps * models[each].slo_ms):
            placed_rps = 0.0
            for _ in range(2):
                placed_rps += self._place(model, models[model].rate_rps - placed_rps)
                if placed_rps >= MIN_PLACED_FRACTION * models[model].rate_rps:
                    break
            else:
                missing[model] = f"gpulet finds parts for {placed_rps:,.0f} of its {models[model].rate_rps:,.0f}/s"
        return self._shares(), missing

    def _place(self, model: int, rate_rps: float) -> float:
        """Place as much of a rate as there is room for; returns how much."""
        placed_rps = 0.0
        while (demand := self._demand(model, rate_rps - placed_rps)) is not None:
            if not self._find(demand) and not self._take_turns(demand):
                return placed_rps
            placed_rps += demand.rate_rps
            if rate_rps - placed_rps <= MIN_REST_RPS:
                break
        return placed_rps

    def _demand(self, model: int, rate_rps: float) -> _Demand | None:
        """The part that a rate wants: a saturated one of the most efficient size, or a smaller one for the rest."""
        bears = [self._saturated(model, part) for part in SHARE_PERCENTS]
        best, most_gain = SHARE_PERCENTS[0], 0.0
        for at in range(1, len(SHARE_PERCENTS)):
            gained = bears[at][1] - bears[at - 1][1]
            per_percent = gained / (SHARE_PERCENTS[at] - SHARE_PERCENTS[at - 1])
            if gained > MIN_GAIN * bears[at - 1][1] and per_percent > most_gain:
                best, most_gain = SHARE_PERCENTS[at], per_percent
        batch, most_rps = bears[SHARE_PERCENTS.index(best)]
        if 0 < most_rps < rate_rps:
            return _Demand(model, best, batch, most_rps, saturated=True)
        for part in SHARE_PERCENTS:
            if residue := self._residue(model, self._latency_ms[part][model], rate_rps):
                return _Demand(model, part, residue, rate_rps, saturated=False)
        return None

    def _saturated(self, model: int, part: int) -> tuple[int, float]:
        """Return the largest batch of which two are on time, and the rate that it sustains."""
        latency_ms, tenant = self._latency_ms[part][model], self.problem.models[model]
        batch = max((b for b in range(1, tenant.max_batch + 1) if 2 * latency_ms[b] <= tenant.slo_ms), default=0)
        return batch, 1000 * batch / float(latency_ms[batch]) if batch else 0.0

    def _residue(self, model: int, latency_ms: Sequence[float], rate_rps: float) -> int:
        """The largest batch that is gathered and run in time, and faster than it is gathered; 0: there is none."""
        tenant = self.problem.models[model]
        for batch in range(tenant.max_batch, 0, -1):
            duty_ms = 1000 * batch / rate_rps
            # One row is not gathered: it runs when it comes.
            gathered_ms = duty_ms if batch > 1 else 0.0
            if latency_ms[batch] <= duty_ms and latency_ms[batch] + gathered_ms <= tenant.slo_ms:
                return batch
        return 0

    def _find(self, demand: _Demand) -> bool:
        """Take the smallest free part that is large enough, and on time beside its neighbor."""
        free: list[tuple[int, int]] = []
        for gpu, parts in enumerate(self._parts):
            if not parts:
                free.append((100, gpu))
            elif len(parts) == 1 and parts[0].percent < 100:
                free.append((100 - parts[0].percent, gpu))
        for percent, gpu in sorted(free):
            if percent < demand.percent:
                continue
            tried = [part for part in SHARE_PERCENTS if part >= demand.percent] if percent == 100 else [percent]
            for size in tried:
                part = _Part(gpu, size)
                if self._fits_memory(gpu, demand) and self._is_on_time(part, demand):
                    self._parts[gpu].append(part)
                    self._join(part, demand)
                    return True
        return False

    def _take_turns(self, demand: _Demand) -> bool:
        """Join a part that others do not fill."""
        if demand.saturated:
            return False
        for part in sorted((part for parts in self._parts for part in parts), key=lambda each: each.percent):
            if part.percent < demand.percent or any(tenant.model == demand.model for tenant in part.tenants):
                continue
            latency_ms = float(self._latency_ms[part.percent][demand.model][demand.batch])
            duty_ms = 1000 * demand.batch / demand.rate_rps
            room = latency_ms / duty_ms <= 1 - part.occupancy
            on_time = latency_ms + duty_ms < self.problem.models[demand.model].slo_ms
            if room and on_time and self._fits_memory(part.gpu, demand) and self._is_on_time(part, demand):
                self._join(part, demand)
                return True
        return False

    def _join(self, part: _Part, demand: _Demand) -> None:
        latency_ms = float(self._latency_ms[part.percent][demand.model][demand.batch])
        occupancy = 1.0 if demand.saturated else latency_ms * demand.rate_rps / (1000 * demand.batch)
        part.tenants.append(_Tenant(demand.model, demand.batch, demand.rate_rps, occupancy))

    def _fits_memory(self, gpu: int, demand: _Demand) -> bool:
        memory_mib = self.problem.devices[gpu].memory_mib
        models = self.problem.models
        taken = models[demand.model].takes_mib(demand.batch) + sum(
            models[tenant.model].takes_mib(tenant.batch) for part in self._parts[gpu] for tenant in part.tenants
        )
        return memory_mib is None or taken <= memory_mib

    def _is_on_time(self, part: _Part, demand: _Demand) -> bool:
        """Whether it is on time beside what runs on the rest of the GPU, and that beside it."""
        slo_ms = self.problem.models[demand.model].slo_ms
        mine = _Tenant(demand.model, demand.batch, demand.rate_rps, 1.0 if demand.saturated else 0.0)
        for other in self._parts[part.gpu]:
            if other is part:
                continue
            for tenant in other.tenants:
                if not self._on_time(part.percent, mine, slo_ms, other.percent, tenant):
                    return False
                theirs_ms = self.problem.models[tenant.model].slo_ms
                if not self._on_time(other.percent, tenant, theirs_ms, part.percent, mine):
                    return False
        return True

    def _on_time(self, percent: int, mine: _Tenant, slo_ms: float, their_percent: int, theirs: _Tenant) -> bool:
        factor = self._factor(percent, mine, their_percent, theirs)
        latency_ms = float(self._latency_ms[percent][mine.model][mine.batch]) * factor
        gathered_ms = 1000 * mine.batch / mine.rate_rps if mine.batch > 1 else 0.0
        return latency_ms + (latency_ms if mine.occupancy >= 1 else gathered_ms) <= slo_ms

    def _factor(self, percent: int, mine: _Tenant, their_percent: int, theirs: _Tenant) -> float:
        """How many times as long a batch takes beside another one: at least once."""
        tables = self.predictor.tables
        used = [
            array[tenant.model, -1, tenant.batch] / 100 * share / 100
            for array in (tables.cache_percent, tables.dram_percent)
            for tenant, share in ((mine, percent), (theirs, their_percent))
        ]
        return max(1.0, float(np.dot(self._factors, [*used, 1.0])))

    def _shares(self) -> list[AssignedShare]:
        shares = []
        for parts in self._parts:
            for number, part in enumerate(parts, start=1):
                process = number if len(part.tenants) > 1 else 0
                units = self._units[part.percent]
                shares += [AssignedShare(each.model, part.gpu, units, each.batch, process) for each in part.tenants]
        return shares


def regression(tables: LatencyTables) -> Floats:
    """Return the five coefficients: own and neighbor's cache, own and neighbor's DRAM (use on a whole GPU times share),
    constant.

    Fitted by least squares to pairs of the first models, in halves, fifths and batches of 2, 8 and 32.
    """
    models, whole, batches = len(tables.minds), tables.gpu_ms.shape[1] - 1, tables.gpu_ms.shape[2] - 1
    rows, factors = [], []
    some = range(min(models, PAIRS_OF))
    for mine_percent in (20, 40, 50, 60, 80):
        mine_units, their_units = mine_percent * whole // 100, (100 - mine_percent) * whole // 100
        for batch in sorted({min(b, batches) for b in (2, 8, 32)}):
            for mine in some:
                alone_ms = tables.alone_ms[mine, mine_units, batch]
                for theirs in some:
                    used = (
                        tables.cache_percent[theirs, their_units, batch],
                        tables.dram_percent[theirs, their_units, batch],
                    )
                    added = float(np.dot(tables.minds[mine], [*used, 1.0]))
                    factors.append(1 + added * tables.gpu_ms[mine, mine_units, batch] / alone_ms)
                    rows.append(
                        [
                            array[model, whole, batch] / 100 * percent / 100
                            for array in (tables.cache_percent, tables.dram_percent)
                            for model, percent in ((mine, mine_percent), (theirs, 100 - mine_percent))
                        ]
                        + [1.0]
                    )
    found: Floats = np.linalg.lstsq(np.array(rows), np.array(factors), rcond=None)[0]
    return found


def plan_gpulets(predictor: Predictor) -> tuple[list[AssignedShare], dict[int, str]]:
    """Return gpulet's shares, and by model why it has too few."""
    return Gpulets(predictor).run()
