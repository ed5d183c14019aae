"""iGniter (Xu et al., TPDS 2022): minimum shares in closed form on the fewest GPUs, then more for slowed models.

Its latency model, a closed form over batch and share with a cost of the neighbors' cache, is fitted to the interference
file: to nine solo runs and one run of each model beside itself, as iGniter requires. Its terms for kernel scheduling
and GPU power are left out, because the file does not contain them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from tidegate_inss.prediction import AssignedShare, Predictor

FOR_RUNNING = 0.5
"""Maximum latency of a batch as a fraction of the SLO; the rest is for waiting."""
WHOLE_GPU_EFFICIENCY = 0.9
"""Fraction of its throughput that a whole GPU counts for, if a model needs several."""
FITTED_BATCHES, FITTED_SHARES = (1, 16, 32), (0.1, 0.5, 1.0)
K4_CANDIDATES = tuple(0.02 * each for each in range(40))
"""Values of k4 to try; the closed form is linear in the other coefficients."""


@dataclass(frozen=True)
class FittedModel:
    """Fitted compute time of a model in ms: (k1 b^2 + k2 b + k3) / (share + k4) + k5, with shares of 1."""

    k1: float
    k2: float
    k3: float
    k4: float
    k5: float
    minds_cache: float
    """Relative increase of compute time for each percent of cache bandwidth that neighbors use."""

    def gpu_ms(self, batch: int, share: float) -> float:
        """Return the stand-alone compute time in ms of `batch` rows. `share`: fraction of the GPU, 0 to 1."""
        return self.work(batch) / (share + self.k4) + self.k5

    def work(self, batch: int) -> float:
        """Return the part of the compute time of a batch that the share divides: k1 b^2 + k2 b + k3."""
        return self.k1 * batch**2 + self.k2 * batch + self.k3


def fit(predictor: Predictor, model: int) -> FittedModel:
    """Fit a model's latency, as a closed formula of batch size and share (iGniter), to its measurements.

    `predictor`: has the measurements; `model`: number of the model in the problem.
    """
    tables, units = predictor.tables, predictor.problem.units_per_gpu
    most = predictor.problem.models[model].max_batch
    batches = sorted({min(batch, most) for batch in FITTED_BATCHES})
    shares = sorted({max(1, round(share * units)) for share in FITTED_SHARES})
    points = [(batch, each) for batch in batches for each in shares]
    measured = np.array([tables.gpu_ms[model, each, batch] for batch, each in points])
    best: tuple[float, list[float]] | None = None
    for offset in K4_CANDIDATES:
        divided = np.array([1 / (each / units + offset) for _, each in points])
        rows = np.array([batch for batch, _ in points], dtype=float)
        design = np.stack([rows**2 * divided, rows * divided, divided, np.ones(len(points))], axis=1)
        # Relative errors count, as latencies span two orders of magnitude.
        found = np.linalg.lstsq(design / measured[:, None], np.ones(len(points)), rcond=None)[0]
        off = float(np.square(design @ found / measured - 1).sum())
        if best is None or off < best[0]:
            best = off, [*found[:3], offset, found[3]]
    assert best is not None, "there are offsets"
    half, batch = max(1, units // 2), min(16, most)
    twins = [AssignedShare(model, 0, half, batch)] * 2
    alone_ms = float(tables.gpu_ms[model, half, batch])
    slowed = (predictor.batch_ms(twins)[0] - float(tables.transfer_ms[model, batch])) / alone_ms
    cache = float(tables.cache_percent[model, half, batch])
    k1, k2, k3, k4, k5 = map(float, best[1])
    return FittedModel(k1, k2, k3, k4, k5, (slowed - 1) / cache if cache > 0 else 0.0)


@dataclass
class _Tenant:
    """A model, or a part of one, on a GPU."""

    model: int
    batch: int
    units: int


class Igniter:
    """State of one run of iGniter's algorithm."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.problem = predictor.problem
        self._units = self.problem.units_per_gpu
        self._fitted = [fit(predictor, model) for model in range(len(self.problem.models))]
        self._gpus: list[list[_Tenant]] = []

    def run(self) -> tuple[list[AssignedShare], dict[int, str]]:
        """Return the shares, and by model why it has too few."""
        wanted: list[_Tenant] = []
        missing: dict[int, str] = {}
        for model, tenant in enumerate(self.problem.models):
            rate = tenant.rate_rps
            while (least := self.least_units(model, rate)) is not None and least.units > self._units:
                batch = least.batch
                whole_ms = self._transfer_ms(model, batch) + self._fitted[model].gpu_ms(batch, 1.0)
                bears = WHOLE_GPU_EFFICIENCY * 1000 * batch / whole_ms
                wanted.append(_Tenant(model, batch, self._units))
                rate -= bears
                if rate <= 0:
                    break
            if least is None:
                missing[model] = "iGniter predicts that it is late even on a whole GPU"
            elif rate > 0:
                wanted.append(least)
        for each in sorted(wanted, key=lambda tenant: -tenant.units):
            if not self._place(each):
                missing[each.model] = "iGniter needs more GPUs than there are"
        shares = [
            AssignedShare(tenant.model, gpu, tenant.units, tenant.batch)
            for gpu, tenants in enumerate(self._gpus)
            for tenant in tenants
        ]
        return shares, missing

    def least_units(self, model: int, rate_rps: float) -> _Tenant | None:
        """Return the batch size for a rate in requests per second and the least share that is on time alone; None if
        none is.
        """
        tenant, fitted = self.problem.models[model], self._fitted[model]
        bound_ms, rate = FOR_RUNNING * tenant.slo_ms, rate_rps / 1000
        tables = self.predictor.tables
        per_row_ms = float(tables.transfer_ms[model, 2] - tables.transfer_ms[model, 1]) if tenant.max_batch > 1 else 0.0
        batch = min(max(1, ceil(bound_ms * rate / (1 + per_row_ms * rate))), tenant.max_batch)
        # With the largest batch that there is, it has to be done sooner.
        bound_ms = min(bound_ms, batch / rate) if batch == tenant.max_batch else bound_ms
        left_ms = bound_ms - self._transfer_ms(model, batch) - fitted.k5
        if left_ms <= 0:
            return None
        share = fitted.work(batch) / left_ms - fitted.k4
        return _Tenant(model, batch, max(1, ceil(share * self._units - 1e-9)))

    def _transfer_ms(self, model: int, batch: int) -> float:
        return float(self.predictor.tables.transfer_ms[model, batch])

    def _place(self, tenant: _Tenant) -> bool:
        """On the GPU on which all need least besides, else on a new one."""
        best: tuple[int, int, list[_Tenant]] | None = None
        for gpu, tenants in enumerate(self._gpus):
            grown = self._grown(gpu, [*tenants, tenant])
            if grown is None:
                continue
            added = sum(each.units for each in grown) - sum(each.units for each in tenants) - tenant.units
            if best is None or added < best[0]:
                best = added, gpu, grown
        if best is not None:
            self._gpus[best[1]] = best[2]
            return True
        if len(self._gpus) == len(self.problem.devices):
            return False
        grown = self._grown(len(self._gpus), [tenant])
        if grown is None:
            return False
        self._gpus.append(grown)
        return True

    def _grown(self, gpu: int, tenants: Sequence[_Tenant]) -> list[_Tenant] | None:
        """The tenants with as much more as they need beside each other; None: that is more than there is."""
        memory_mib = self.problem.devices[gpu].memory_mib
        taken_mib = sum(self.problem.models[each.model].takes_mib(each.batch) for each in tenants)
        if memory_mib is not None and taken_mib > memory_mib:
            return None
        grown = [_Tenant(each.model, each.batch, each.units) for each in tenants]
        while sum(each.units for each in grown) <= self._units:
            late = [
                each for each, taken_ms in zip(grown, self._taken_ms(grown), strict=True) if self._late(each, taken_ms)
            ]
            if not late:
                return grown
            for each in late:
                each.units += 1
        return None

    def _late(self, tenant: _Tenant, taken_ms: float) -> bool:
        # A whole GPU is the maximum: the model was divided by what one sustains.
        slo_ms = self.problem.models[tenant.model].slo_ms
        return taken_ms > FOR_RUNNING * slo_ms * (1 + 1e-9) and tenant.units < self._units

    def _taken_ms(self, tenants: Sequence[_Tenant]) -> list[float]:
        tables = self.predictor.tables
        cache = [float(tables.cache_percent[each.model, each.units, each.batch]) for each in tenants]
        taken = []
        for each, own in zip(tenants, cache, strict=True):
            fitted = self._fitted[each.model]
            gpu_ms = fitted.gpu_ms(each.batch, each.units / self._units)
            slowed = 1 + fitted.minds_cache * (sum(cache) - own)
            taken.append(self._transfer_ms(each.model, each.batch) + gpu_ms * slowed)
        return taken


def plan_igniter(predictor: Predictor) -> tuple[list[AssignedShare], dict[int, str]]:
    """Return iGniter's shares, and by model why it has too few."""
    return Igniter(predictor).run()
