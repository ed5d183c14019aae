"""InSS's networks on made-up models that nobody learned from, judged by the latency model.

    python -m bench.papers.inss.networks [--problems 100] [--json FILE]

Beside them chance, rules of thumb, and the search, which gets some time. Ten minutes on one core. `reward` is
InSS's, the mean over all models; `bears` how many times its rates a plan bears, the median; a decision's processor time
is that with its own tables, which every planner has to compute.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from rich.console import Console
from rich.table import Table

from tidegate.schemas import InterferenceModel
from tidegate_inss.learned.catalog import Ints, catalog_of
from tidegate_inss.learned.heuristics import by_need, to_the_least_busy
from tidegate_inss.learned.networks import SHIPPED_FOLDER, Networks
from tidegate_inss.learned.outcome import VIOLATION_PENALTY
from tidegate_inss.learned.placement import GROUP_SIZE, Bools, Floats32
from tidegate_inss.learned.planner import MAX_DECISIONS, plan_by
from tidegate_inss.learned.sharing import SHARING_ACTION
from tidegate_inss.plan import SharePlan
from tidegate_inss.planners import plan_shares
from tidegate_inss.problem import GpuPool, ShareProblem
from tidegate_inss.tables import Floats, tables_of
from tidegate_inss.training.synthetic_models import drawn_problem
from tidegate_inss.training.workloads import MEMORY_MIB, drawn_rates

SEED = 31_337
"""No training learns from these models or is judged by them."""
UNITS = 54
POOL = 200
SECONDS = (0.02, 0.2, 1.0)
Planned = Callable[[ShareProblem], SharePlan]


class Chance:
    """Draws where models go, shares and batches."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(SEED)

    def preferences(self, states: Floats32) -> Floats32:
        """None that lasts."""
        return self._rng.random((len(states), GROUP_SIZE)).astype(np.float32)

    def place(self, states: Floats32, masks: Bools) -> Ints:
        """Any child that has room."""
        chosen: Ints = np.where(masks, self.preferences(states), -1).argmax(axis=1)
        return chosen

    def share(self, states: Floats32) -> Floats32:
        """Any actions."""
        return self._rng.uniform(-1, 1, (len(states), SHARING_ACTION)).astype(np.float32)


class Rules:
    """Rules of thumb."""

    def preferences(self, states: Floats32) -> Floats32:
        """The least busy are told first."""
        return np.tile(-np.arange(GROUP_SIZE, dtype=np.float32), (len(states), 1))

    def place(self, states: Floats32, masks: Bools) -> Ints:
        """To the least busy."""
        return to_the_least_busy(states, masks)

    def share(self, states: Floats32) -> Floats32:
        """By what is needed."""
        return by_need(states)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.papers.inss.networks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=100, help="of 4 GPUs; of 64, a twentieth; default 100")
    parser.add_argument(
        "--networks", type=Path, default=SHIPPED_FOLDER / "inss", help="a folder; default: those shipped"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    inss, deaf, rules = Networks(options.networks), Networks(SHIPPED_FOLDER / "inss-ni"), Rules()
    planners: dict[str, Planned] = {
        "chance": lambda problem: plan_by(Chance(), problem, interference=True, progress=_silent, tried=1),
        "rules, one decision": lambda problem: plan_by(rules, problem, interference=True, progress=_silent, tried=1),
        f"rules, best of {MAX_DECISIONS}": lambda problem: plan_by(rules, problem, interference=True, progress=_silent),
        "inss, one decision": lambda problem: plan_by(inss, problem, interference=True, progress=_silent, tried=1),
        f"inss, best of {MAX_DECISIONS}": lambda problem: plan_by(inss, problem, interference=True, progress=_silent),
        f"inss-ni, best of {MAX_DECISIONS}": lambda problem: plan_by(
            deaf, problem, interference=False, progress=_silent
        ),
        **{f"shares, {seconds:g} s": partial(_searched, seconds=seconds) for seconds in SECONDS},
    }
    rng = np.random.default_rng(SEED)
    pool = drawn_problem(rng, POOL, UNITS)
    found = {}
    for gpus, problems in ((GROUP_SIZE, options.problems), (64, max(1, options.problems // 20))):
        drawn = [problem_of(pool, gpus, rng) for _ in range(problems)]
        found[f"{gpus} GPUs, {problems} problems"] = {
            name: _judged(run, drawn) for name, run in planners.items() if gpus == GROUP_SIZE or name != "chance"
        }
    for title, by_planner in found.items():
        table = Table("planner", "reward", "late", "all on time", "bears", "ms", title=title)
        for name, figures in by_planner.items():
            table.add_row(
                name,
                f"{figures['reward']:.3f}",
                f"{figures['late']:.2%}",
                f"{figures['on_time']:.0%}",
                f"{figures['bears']:.3f}",
                f"{figures['ms']:.1f}",
            )
        Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def problem_of(pool: ShareProblem, gpus: int, rng: np.random.Generator) -> ShareProblem:
    """Models of the pool at rates as in training."""
    catalog = catalog_of(pool, tables_of(pool))
    numbers, rates = drawn_rates(catalog, gpus, rng)
    measured, tenants = {}, []
    for place, (number, rate) in enumerate(zip(numbers.tolist(), rates.tolist(), strict=True)):
        name, model = f"model_{place}", pool.models[number]
        measured[name] = pool.measured.models[model.name]
        tenants.append(model.model_copy(update={"name": name, "rate_rps": rate}))
    pools = (GpuPool(product=pool.measured.gpu, count=gpus, memory_mib=int(rng.choice(MEMORY_MIB))),)
    interference = InterferenceModel(gpu=pool.measured.gpu, models=measured)
    return ShareProblem(gpus=pools, interference=interference, models=tuple(tenants), units=pool.units)


def _searched(problem: ShareProblem, *, seconds: float) -> SharePlan:
    began = time.process_time()

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        del objective, bound
        return time.process_time() - began

    return plan_shares(problem, time_limit_s=seconds, progress=progress)


def _judged(run: Planned, problems: Sequence[ShareProblem]) -> dict[str, float]:
    rewards: list[float] = []
    lates: list[float] = []
    bears, seconds, served = [], [], 0
    for problem in problems:
        began = time.process_time()
        plan = run(problem)
        seconds.append(time.process_time() - began)
        borne, most, rates = (_of_models(plan, name) for name in ("bears_rps", "most_rps", "rate_rps"))
        late = np.clip(1 - borne / rates, 0.0, 1.0)
        usual = catalog_of(problem, tables_of(problem)).usual_rps
        rewards += (most / usual - VIOLATION_PENALTY * late).tolist()
        lates += late.tolist()
        served += not late.any()
        bears.append(float((borne / rates).min()))
    return {
        "reward": mean(rewards),
        "late": mean(lates),
        "on_time": served / len(problems),
        "bears": median(bears),
        "ms": 1000 * median(seconds),
    }


def _of_models(plan: SharePlan, figure: str) -> Floats:
    return np.array([getattr(model, figure) for model in plan.models])


def _silent(*, objective: float | None = None, bound: float | None = None) -> float:
    del objective, bound
    return 0.0


if __name__ == "__main__":
    main()
