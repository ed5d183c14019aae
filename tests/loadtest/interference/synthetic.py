"""A GPU of which the truth is known: three models with smooth curves, who mind cache, DRAM or merely company."""

from collections.abc import Sequence
from itertools import product
from random import Random

from tidegate.schemas import Tenant
from tidegate_loadtest.interference.runs import CoRun, SoloRun

NOISE = 0.01
"""The standard deviation of a measured latency, relative."""
BATCHES, SHARES = (1, 2, 4, 8, 16, 32), (20, 40, 50, 60, 80)
# By model: ms per row on the whole GPU, ms per batch on it, ms that no share makes shorter.
CURVES = {"heavy": (0.8, 1.0, 0.4), "light": (0.1, 0.4, 0.3), "broad": (0.5, 2.0, 0.2)}
# Percent of cache and DRAM that a model uses when it does all that it can; what it minds of each, and of anybody.
USES = {"heavy": (10, 60), "light": (25, 3), "broad": (40, 20)}
MINDS = {"heavy": (0.0, 0.006, 0.01), "light": (0.007, 0.0, 0.02), "broad": (0.002, 0.002, 0.0)}
BUS = {"heavy": 0.02, "light": 0.05, "broad": 0.01}


def gpu_ms(tenant: Tenant) -> float:
    """What it computes alone."""
    row, batch, fixed = CURVES[tenant.partition]
    return (row * tenant.rows + batch) / (tenant.percent / 100) + fixed


def used(tenant: Tenant) -> tuple[float, float]:
    """The percentages of cache and DRAM that it uses alone."""
    busy = tenant.rows / gpu_ms(tenant) * CURVES[tenant.partition][0]
    cache, dram = USES[tenant.partition]
    return cache * busy, dram * busy


def truth_ms(tenant: Tenant, neighbors: tuple[Tenant, ...]) -> float:
    """What it takes beside these."""
    cache, dram, anybody = MINDS[tenant.partition]
    added = sum(cache * used(each)[0] + dram * used(each)[1] + anybody for each in neighbors)
    return BUS[tenant.partition] * tenant.rows + gpu_ms(tenant) * (1 + added)


def solo_runs(seed: int) -> list[SoloRun]:
    """Each model alone, on each share with each batch."""
    rng = Random(seed)
    runs = []
    for tenant in (Tenant(model, rows, percent) for model in CURVES for rows in BATCHES for percent in SHARES):
        factor, (cache, dram) = rng.gauss(1, NOISE), used(tenant)
        taken_ms = factor * truth_ms(tenant, ())
        runs.append(
            SoloRun(tenant.partition, tenant.rows, tenant.percent, taken_ms, factor * gpu_ms(tenant), cache, dram)
        )
    return runs


def co_runs(seed: int, number: int, *, tenants: int = 2) -> list[CoRun]:
    """So many runs of so many models beside each other, which share out the GPU."""
    rng = Random(seed)
    shares = [each for each in product(range(20, 90, 10), repeat=tenants) if sum(each) == 100]
    runs = []
    for _ in range(number):
        together = tuple(
            Tenant(rng.choice(sorted(CURVES)), rng.choice(BATCHES), percent) for percent in rng.choice(shares)
        )
        beside = (together[:at] + together[at + 1 :] for at in range(tenants))
        taken = tuple(
            rng.gauss(1, NOISE) * truth_ms(tenant, others) for tenant, others in zip(together, beside, strict=True)
        )
        runs.append(CoRun(together, taken))
    return runs


def few_of_each(co_runs: Sequence[CoRun], number: int, seed: int) -> list[CoRun]:
    """Draw `number` runs for each model by `seed`; InSS uses three."""
    names = sorted({tenant.partition for run in co_runs for tenant in run.tenants})
    rng, chosen = Random(seed), set[int]()
    for name in names:
        mine = [at for at, run in enumerate(co_runs) if any(tenant.partition == name for tenant in run.tenants)]
        chosen.update(rng.sample(mine, min(number, len(mine))))
    return [co_runs[at] for at in sorted(chosen)]
