"""Models of InSS's evaluation on a V100, and mixes of load for them.

AlexNet, ResNet50, VGG19 and SSD (not in the paper) were measured. The execution times of the others are assumed
proportional to one of these: by InSS's tables 3 and 4 for an A100 (ResNet18, MnasNet and EfficientNet, batches of 8 on
a fifth of the GPU, relative to ResNet50's 11.06 ms), or by their number of operations (VGG16, MobileNet).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from tidegate.schemas import InterferenceModel, NonDecreasingLine, SharingModel
from tidegate_inss.prediction import borne_rps, tables_of
from tidegate_inss.problem import GpuPool, ShareProblem, SharingTenant
from tidegate_loadtest.interference.fit import fit, with_compute
from tidegate_loadtest.interference.runs import read_co_runs, read_compute, read_solo

GPU = "V100"
MEMORY_MIB = 16_160
SPREAD = 3.0
"""Concentration of the Dirichlet distribution of models' load shares; the larger, the more equal they are."""


@dataclass(frozen=True)
class Kind:
    """A model type of the paper."""

    like: str
    """The measured model whose execution times are scaled."""
    times: float
    """Factor on its execution times."""
    slo_ms: float
    """SLO of the paper (section 6.1), in ms."""
    memory_mib: float
    """Memory in MiB of a process (weights, context and workspace), and of each row of a batch; assumed."""
    per_row_mib: float


KINDS = {
    "alexnet": Kind("alexnet", 1.0, 10, 900, 5),
    "resnet50": Kind("resnet50", 1.0, 35, 800, 30),
    "vgg16": Kind("vgg19", 0.79, 65, 1200, 40),
    "mnasnet": Kind("resnet50", 0.39, 10, 700, 15),
    "mobilenet": Kind("resnet50", 0.37, 15, 700, 15),
    "efficientnet": Kind("resnet50", 0.79, 30, 700, 25),
    "resnet18": Kind("resnet50", 0.39, 15, 750, 10),
    "vgg19": Kind("vgg19", 1.0, 80, 1250, 40),
    "ssd": Kind("ssd", 1.0, 80, 900, 60),
}
_OTHERS = ("alexnet", "alexnet-2", "resnet50", "resnet50-2", "vgg16", "vgg19", "mnasnet", "mobilenet", "efficientnet")
TEN = (*_OTHERS, "resnet18")
"""Eight models, two of them twice; the paper does not say which two."""


@cache
def measured(folder: Path) -> InterferenceModel:
    """Return the interference model fitted to all of iGniter's measurements on a V100."""
    solo = read_solo(folder / "igniter_v100_solo.csv", GPU)
    solo = with_compute(solo, read_compute(folder / "igniter_v100_grid3x3.csv", GPU))
    return fit(solo, read_co_runs(folder / "igniter_v100_pairs.csv", GPU), GPU)


def kind_of(name: str) -> Kind:
    """Return the type of a model: `alexnet-2` is an AlexNet."""
    return KINDS[name.split("-", maxsplit=1)[0]]


def interference_of(names: Sequence[str], base: InterferenceModel) -> InterferenceModel:
    """Return the interference model of these models, measured or scaled from measured ones."""
    models = {name: _in_proportion(base.models[kind_of(name).like], kind_of(name).times) for name in names}
    return InterferenceModel(gpu=base.gpu, models=models)


def _in_proportion(model: SharingModel, times: float) -> SharingModel:
    """A model that computes this many times as long, and uses as much of cache and DRAM meanwhile."""
    table = model.gpu_ms
    taken_ms = tuple(tuple(ms * times for ms in row) for row in table.taken_ms)
    lines = {
        name: NonDecreasingLine(base=line.base, slope=line.slope * times)
        for name, line in (("cache_percent", model.cache_percent), ("dram_percent", model.dram_percent))
    }
    return model.model_copy(update={"gpu_ms": table.model_copy(update={"taken_ms": taken_ms}), **lines})


def problem_of(
    names: Sequence[str], base: InterferenceModel, rates: Mapping[str, float], gpus: int, scale: float = 1.0
) -> ShareProblem:
    """Return the planner's problem for models at given rates.

    `names`: models; `base`: interference model of the measured models; `rates`: requests per second by model; `gpus`:
    number of GPUs; `scale`: factor on the rates.
    """
    tenants = []
    for name in names:
        kind = kind_of(name)
        tenants.append(
            SharingTenant(
                name=name,
                rate_rps=rates[name] * scale,
                slo_ms=kind.slo_ms,
                memory_mib=kind.memory_mib,
                memory_per_row_mib=kind.per_row_mib,
            )
        )
    pool = GpuPool(product=GPU, count=gpus, memory_mib=MEMORY_MIB)
    return ShareProblem(gpus=(pool,), interference=interference_of(names, base), models=tuple(tenants))


def rates_of(names: Sequence[str], base: InterferenceModel, gpus: int, seed: int) -> dict[str, float]:
    """Draw rates that would keep all GPUs busy without sharing, if shares had any size.

    Each model gets a part of all GPUs, drawn from a Dirichlet distribution, and at most one GPU.

    `names`: models; `base`: interference model of the measured models; `gpus`: number of GPUs; `seed`: of the draw.
    """
    rng = Random(f"rates {seed}")
    drawn = [rng.gammavariate(SPREAD, 1) for _ in names]
    parts = [min(1.0, gpus * each / sum(drawn)) for each in drawn]
    problem = problem_of(names, base, dict.fromkeys(names, 1.0), gpus)
    tables = tables_of(problem)
    rates = {}
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        batches = np.arange(1, problem.models[number].max_batch + 1)
        borne = borne_rps(batches, tables.alone_ms[number, 1:, 1:], problem.models[number].slo_ms).max(axis=1)
        rates[name] = part * borne[-1]
    return rates
