"""The paper's own program, appendix A.2, written out: one binary for each choice of blocks, batch size and virtual GPU.

Much slower than columns, and the same optimum: what they are checked against.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from tidegate_ppipe.problem import PpipeProblem

Row = tuple[dict[int, float], float, float]


@dataclass(frozen=True)
class Optimum:
    """The largest load, as far as it is known."""

    value: float
    bound: float


class A2:
    """The program. `copies`: how many pipelines of one sequence of classes a model may have; in the paper, one."""

    def __init__(self, problem: PpipeProblem, gather_rps: list[float | None], *, whole_gpus: bool, copies: int) -> None:
        """`whole_gpus`: workers on a GPU are of one model and share; else equation 23, which adds up parts of GPUs."""
        self._problem = problem
        self._size = 1  # variable 0 is the load
        self._integers: list[int] = []
        self._binaries: list[int] = []
        self._rows: list[Row] = []
        rates: dict[int, list[int]] = defaultdict(list)
        virtual: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # by (model, class, share)
        for number in range(len(problem.models)):
            blocks = len(problem.models[number].blocks.blocks)
            for length in range(1, min(problem.max_partitions, blocks) + 1):
                for gpus in product(range(len(problem.classes)), repeat=length):
                    for _ in range(copies):
                        rates[number].append(self._pipeline(number, gpus, gather_rps[number], virtual))
        for number, model in enumerate(problem.models):
            self._rows.append(({0: -model.weight, **dict.fromkeys(rates[number], 1.0)}, 0, np.inf))
        self._gpus(virtual, whole_gpus)

    def solve(self) -> Optimum:
        """Solve it."""
        goal = np.zeros(self._size)
        goal[0] = -1
        matrix = lil_matrix((len(self._rows), self._size))
        for index, (row, _, _) in enumerate(self._rows):
            for position, value in row.items():
                matrix[index, position] = value
        integral = np.zeros(self._size, dtype=np.int64)
        integral[[*self._integers, *self._binaries]] = 1
        most = np.full(self._size, np.inf)
        most[self._binaries] = 1
        result = milp(
            goal,
            integrality=integral,
            bounds=Bounds(np.zeros(self._size), most),
            constraints=LinearConstraint(
                matrix.tocsr(), [row[1] for row in self._rows], [row[2] for row in self._rows]
            ),
            options={"mip_rel_gap": 0},
        )
        assert result.x is not None
        return Optimum(-float(result.fun), -float(result.mip_dual_bound))

    def _new(self, kind: list[int] | None = None) -> int:
        self._size += 1
        if kind is not None:
            kind.append(self._size - 1)
        return self._size - 1

    def _pipeline(  # noqa: PLR0912 - as many as the equations
        self,
        number: int,
        gpus: tuple[int, ...],
        gather_rps: float | None,
        virtual: dict[tuple[int, int, int], list[int]],
    ) -> int:
        """Equations 16 to 22 and 24 to 28, with gathering, links and memory; it may be unused. Gives its x_l."""
        problem, model = self._problem, self._problem.models[number]
        blocks = model.blocks
        count, rate = len(blocks.blocks), self._new()
        time: dict[int, float] = {}
        starts: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # by (d, b, i): p that begin there
        ends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for d, gpu in enumerate(gpus):
            bears: dict[int, float] = {}
            kind = problem.classes[gpu]
            for v, b, i in product(range(1, kind.max_share + 1), range(1, problem.max_batch + 1), range(count)):
                for j in range(i + 1, count + 1):
                    held = sum(blocks.memory_mib[i:j]) * v if blocks.memory_mib else 0.0
                    if kind.memory_mib is not None and held > kind.memory_mib:
                        continue
                    p, g = self._new(self._binaries), self._new(self._integers)
                    latency_s = blocks.latency_us(kind.name, v, b, i, j) / 1e6
                    into, out = [0, *blocks.cut_bytes, 0][i], [0, *blocks.cut_bytes, 0][j]
                    bears[g] = b / latency_s
                    time[p] = latency_s
                    if problem.gbps:
                        if max(into, out):
                            link = problem.gbps * 1e9 / 8 / kind.per_node / v
                            bears[g] = min(bears[g], link / max(into, out))
                        time[p] += b * out * 8 / (problem.gbps * 1e9)
                    if d == 0 and gather_rps:
                        time[p] += problem.gather * (b - 1) / gather_rps
                    starts[d, b, i].append(p)
                    ends[d, b, j].append(p)
                    virtual[number, gpu, v].append(g)
                    self._rows.append(({g: 1, p: -kind.count * v}, -np.inf, 0))  # (21)
                    self._rows.append(({g: 1, p: -1}, 0, np.inf))  # (22)
            self._rows.append(({rate: 1, **{g: -each for g, each in bears.items()}}, -np.inf, 0))  # (25), (28)
        first = [p for (d, _, i), each in starts.items() for p in each if d == 0]
        self._rows.append((dict.fromkeys(first, 1.0), 0, 1))  # (16), or unused
        for (d, _, i), each in starts.items():
            if d == 0 and i != 0:
                self._rows.append((dict.fromkeys(each, 1.0), 0, 0))  # (19)
        for (d, _, j), each in ends.items():
            if (d == len(gpus) - 1) != (j == count):
                self._rows.append((dict.fromkeys(each, 1.0), 0, 0))  # (20)
        for d in range(1, len(gpus)):  # (18): where one ends the next one starts, with the same batch
            for b, j in product(range(1, problem.max_batch + 1), range(count + 1)):
                row = {**dict.fromkeys(ends[d - 1, b, j], 1.0), **dict.fromkeys(starts[d, b, j], -1.0)}
                self._rows.append((row, 0, 0))
        budget_s = model.slo_ms / 1000 * (1 - problem.margin)
        self._rows.append((time, -np.inf, budget_s + 1e-9))  # (24), (26), (27)
        return rate

    def _gpus(self, virtual: dict[tuple[int, int, int], list[int]], whole_gpus: bool) -> None:
        for number, kind in enumerate(self._problem.classes):
            row: dict[int, float] = {}
            for (_, gpu, share), workers in virtual.items():
                if gpu == number and whole_gpus:
                    whole = self._new(self._integers)
                    self._rows.append(({whole: -share, **dict.fromkeys(workers, 1.0)}, -np.inf, 0))
                    row[whole] = 1.0
                elif gpu == number:
                    row |= dict.fromkeys(workers, 1 / share)  # (23)
            self._rows.append((row, -np.inf, kind.count))
