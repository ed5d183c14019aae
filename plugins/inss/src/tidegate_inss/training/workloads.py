"""Workloads for training and evaluation: models, rates, number of GPUs and their memory."""

from dataclasses import dataclass

import numpy as np

from tidegate_inss.learned.catalog import Catalog, Ints, catalog_of
from tidegate_inss.learned.loads import Loads
from tidegate_inss.tables import Floats, tables_of
from tidegate_inss.training.synthetic_models import GPU_UNITS, drawn_problem

MEMORY_MIB = (8_000, 16_000, 40_000, 80_000)
LEAST_LOAD, MOST_LOAD = 0.3, 0.9
"""Range of the total load of all models relative to the GPUs, without interference."""
PROBLEMS_PER_ROUND = 32
"""Number of problems with four GPUs in a round of training; with more GPUs, fewer."""
MODELS_PER_GPU_SIZE = 192
"""Number of random models for each size of GPU."""


@dataclass(frozen=True)
class Workload:
    """Problems that are decided together, with equal numbers of GPUs."""

    catalog: Catalog
    problems: tuple[tuple[Ints, Floats], ...]
    """Model numbers in the catalog, and rates in requests per second, of each problem."""
    memory_mib: Floats
    """Memory of the GPUs in MiB, shape (problems, GPUs)."""

    @property
    def loads(self) -> Loads:
        """Copies of all models, to place."""
        return Loads.of(self.catalog, self.problems, gpus=self.memory_mib.shape[1])


class Workloads:
    """Source of random workloads; another seed gives other models and rates."""

    def __init__(self, seed: int, *, interference: bool = True, pool: int = MODELS_PER_GPU_SIZE) -> None:
        models = np.random.default_rng((seed, 0))
        made_up = (drawn_problem(models, pool, units) for units in GPU_UNITS)
        self._catalogs = [catalog_of(each, tables_of(each), interference=interference) for each in made_up]
        self.rng = np.random.default_rng((seed, 1))

    def draw(self, problems: int, gpus: int) -> Workload:
        """Return `problems` random problems of `gpus` GPUs, with two to four models per GPU on average."""
        rng = self.rng
        catalog = self._catalogs[rng.integers(len(self._catalogs))]
        drawn = [drawn_rates(catalog, gpus, rng) for _ in range(problems)]
        memory = rng.choice(MEMORY_MIB, (problems, 1)) * np.ones((problems, gpus))
        return Workload(catalog, tuple(drawn), memory)


def drawn_rates(catalog: Catalog, gpus: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Return one to four models of the catalog for each GPU, and their random rates in requests per second."""
    number = max(1, round(gpus * rng.uniform(1.0, 4.0)))
    models = rng.integers(len(catalog.slo_ms), size=number)
    weights = rng.gamma(rng.uniform(0.7, 4.0), size=number) + 0.02
    need = weights / weights.sum() * gpus * rng.uniform(LEAST_LOAD, MOST_LOAD)
    units = need * catalog.units
    low = np.minimum(np.floor(units).astype(np.int64), catalog.units)
    borne = catalog.borne_alone_rps[models]
    at = np.arange(number)
    above = borne[at, np.minimum(low + 1, catalog.units)]
    rates = borne[at, low] + (units - low).clip(0, 1) * (above - borne[at, low])
    rates *= np.maximum(1.0, units / catalog.units)
    # A share on which the model bears nothing says no rate: it gets a small part of what it could do.
    small = 0.02 * borne[:, -1]
    return models, np.where(borne[:, -1] > 0, np.maximum(rates, small), 1.0)
