"""The planner `reconfigure`: from the current layout to a planned one at the least cost, with capacity kept."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError
from scipy.optimize import linprog

from tidegate.api import PlanningError, Progress
from tidegate.api.device import Device
from tidegate.api.mig import MigGeometry, mig_geometries
from tidegate.schemas import Layout, LayoutWorker, field_errors
from tidegate_paris_elsa.change_plan import ChangeCost, PlannedStep, Reconfiguration, ReconfigurationProblem
from tidegate_paris_elsa.instances import (
    Capacities,
    Gpu,
    Instance,
    Seats,
    gpu_of,
    gpus_of,
    names_of,
    seat_of,
    slice_in,
    slots,
)
from tidegate_paris_elsa.problem import MigModel, MigProblem
from tidegate_paris_elsa.repartitioning import (
    NO_INSTANCES,
    GpuChange,
    KeepValue,
    devices_of,
    in_order,
    match,
    rearranged,
)
from tidegate_paris_elsa.slices import SliceOffers, SliceSpeed, offers_of
from tidegate_paris_elsa.steps import CapacityChange, ChangeStep, least_kept, loaded, nearest, steps_between, waves_of


def rates_borne(problem: MigProblem, layout: Layout) -> dict[str, float]:
    """Return {model: requests per second} at the highest load, relative to the models' weights, that the slices
    sustain.

    Every request may go to any slice on which it is on time; if it is on time on no measured one, to the fastest.
    Raises PlanningError for a model that was not measured, or on none of its slices.
    """
    offers = offers_of(problem.model_copy(update={"gpcs": None}))
    workers: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    model_of = {part.name: part.model for part in layout.partitions}
    for worker in layout.workers:
        for name in worker.hosts:
            # A slice type that the layout names is not what the problem calls it.
            workers[model_of[name]][worker.device.device_class(worker.slice)] += 1 / len(worker.hosts)
    load = min(
        _sustained_rps(model, offers, speeds, workers[model.name]) / model.weight
        for model, speeds in zip(problem.models, offers.speeds, strict=True)
    )
    return {model.name: load * model.weight for model in problem.models}


def _sustained_rps(
    model: MigModel, offers: SliceOffers, speeds: Sequence[SliceSpeed], workers: Mapping[str, float]
) -> float:
    """A linear program: what goes where, and how many times a second all sizes can come in their shares."""
    mine = [speed for speed in speeds if workers.get(offers.slice_types[speed.slice_type].name)]
    if not mine and workers:
        known = ", ".join(offers.slice_types[speed.slice_type].name for speed in speeds)
        raise PlanningError(
            f"problem: model {model.name!r} was measured on {known}, and the layout has it on "
            f"{', '.join(sorted(workers))}: name products in both alike, or measure it there"
        )
    if not mine:
        return 0.0
    allowed = {rows: _allowed(model, speeds, rows) for rows in model.shares}
    flows = [(rows, place) for rows in model.shares for place, speed in enumerate(mine) if speed in allowed[rows]]
    if {rows for rows, _ in flows} < model.shares.keys():
        return 0.0
    sizes = list(model.shares)
    served = np.zeros((len(sizes), len(flows) + 1))
    served[:, -1] = 1.0
    busy = np.zeros((len(mine), len(flows) + 1))
    for column, (rows, place) in enumerate(flows):
        served[sizes.index(rows), column] = -1.0
        busy[place, column] = model.shares[rows] / mine[place].throughput_rps(rows)
    have = [workers[offers.slice_types[speed.slice_type].name] for speed in mine]
    # In units of what the fastest slice type would sustain, since solvers like numbers near 1.
    unit_rps = sum(have) / min(busy[place].sum() or np.inf for place in range(len(mine)))
    result = linprog(
        [*[0.0] * len(flows), -1.0],
        A_ub=np.vstack([served, busy * unit_rps]),
        b_ub=[*[0.0] * len(sizes), *have],
        method="highs",
    )
    return -float(result.fun or 0.0) * unit_rps


def _allowed(model: MigModel, speeds: Sequence[SliceSpeed], rows: int) -> Sequence[SliceSpeed]:
    """Return the slice types on which this many rows are on time; else the last, which is the fastest."""
    if model.slo_ms is None:
        return speeds
    return [speed for speed in speeds if speed.latency_ms(rows) <= model.slo_ms] or speeds[-1:]


BISECTION_STEPS = 20
"""Number of bisection steps for the fraction that can be kept, if the requested one cannot."""


def plan_reconfiguration(
    problem: ReconfigurationProblem, /, *, time_limit_s: float, progress: Progress
) -> Reconfiguration:
    """Return the change with the least cost, in an order that keeps the problem's fraction of every model's capacity.

    `time_limit_s`: seconds to search. Raises PlanningError, with the fraction that can be kept, if no such order was
    found.
    """
    _check_names(problem)
    change = _Changes(problem, time_limit_s)
    for way in change.ways:
        waves = waves_of(way.moves, change.present, change.needed(problem.keep))
        if waves is not None:
            plan = change.plan(way, waves)
            progress(objective=plan.objective)
            return plan
    raise _cannot_keep(problem, change)


def new_layout(problem: ReconfigurationProblem, plan: Reconfiguration) -> Layout:
    """Return the target layout on the existing GPUs, with the names of workers that stay.

    Raises PlanningError for a plan of another problem.
    """
    planned = problem.layouts[1]
    try:
        return Layout.model_validate(planned.model_copy(update={"workers": plan.workers}).model_dump())
    except ValidationError as error:
        raise PlanningError(f"the plan is not of this problem: {field_errors(error, Layout)[0]}") from error


@dataclass(frozen=True)
class _Way:
    """Target of every GPU, the steps that lead there, and their effect on capacity."""

    changes: Sequence[GpuChange]
    of_gpu: Sequence[tuple[GpuChange, ChangeStep]]
    moves: Sequence[CapacityChange]

    @property
    def steps(self) -> list[ChangeStep]:
        """Steps, without the GPUs that they change."""
        return [step for _, step in self.of_gpu]


class _Changes:
    """A problem, with its GPUs matched."""

    def __init__(self, problem: ReconfigurationProblem, time_limit_s: float) -> None:
        self._problem = problem
        self._before, self._after = problem.layouts
        self._capacities = Capacities.of(self._before, self._after)
        self._model_of = {part.name: part.model for layout in problem.layouts for part in layout.partitions}
        self._now = {device: gpu_of(instances) for device, instances in gpus_of(self._before).items()}
        self._then = {device: gpu_of(instances) for device, instances in gpus_of(self._after).items()}
        self.present = self._sum(self._now)
        """Rows per second of each partition that the present layout does."""
        self._planned = self._sum(self._then)
        self.ways = sorted(self._ways(time_limit_s), key=self._total_s)
        """Possible targets of GPUs, cheapest first."""

    def needed(self, keep: float) -> dict[str, float]:
        """Return the capacity that every partition needs throughout: the current or the target one, whichever is
        less."""
        return {name: keep * whole for name, whole in self._shared.items()}

    def plan(self, way: _Way, waves: Sequence[Sequence[int]]) -> Reconfiguration:
        """The document."""
        cost = self._cost(way, waves)
        naive = self._steps(in_order(self._now, self._then), whole=True)
        gained_rps, lost = self._gained_rps(), self._lost_requests(way)
        known = gained_rps is not None and lost is not None
        workers = self._workers(way)
        return Reconfiguration(
            objective=cost.away_s,
            bound=None,
            cost=cost,
            naive=self._cost(naive, [[number] for number in range(len(naive.steps))]),
            gained_rps=gained_rps,
            lost_requests=lost,
            worth=(gained_rps or 0.0) * (self._problem.horizon_s - cost.seconds) > (lost or 0.0) if known else None,
            horizon_s=self._problem.horizon_s,
            steps=self._documents(way, waves, workers),
            workers=tuple(worker for mine in workers.values() for its in mine.values() for worker in its),
        )

    @property
    def _shared(self) -> dict[str, float]:
        names = self.present.keys() & self._planned.keys()
        return {name: min(self.present[name], self._planned[name]) for name in sorted(names)}

    # Which GPU becomes what -----------------------------------------------------------------------------------------

    def _ways(self, time_limit_s: float) -> list[_Way]:
        """Return planned GPUs, each for an existing one, also divided otherwise into the same slices."""
        ways = [match(self._now, self._then, self._nearest)]
        if (other := self._rearranged(time_limit_s)) is not None:
            ways.append(other)
        return [self._steps(changes) for changes in ways]

    def _rearranged(self, time_limit_s: float) -> list[GpuChange] | None:
        changes = []
        products = sorted({device.product for device in (*self._now, *self._then)})
        for product in products:
            devices = devices_of(product, self._now, self._then)
            present = {device: self._now.get(device, NO_INSTANCES) for device in devices}
            planned = [gpu for device, gpu in self._then.items() if device.product == product]
            geometry = self._geometry(devices[0], *present.values(), *planned)
            if geometry is None or not planned:
                return None
            loads = {seats: self._longest_load_s(seats) for gpu in planned for _, seats in gpu}
            worth = KeepValue(self._problem.cut_s, loads)
            found = rearranged(present, planned, geometry, worth, time_limit_s=time_limit_s / len(products))
            if found is None:
                return None
            changes += [GpuChange(device, present[device], gpu) for device, gpu in found.items()]
        return changes

    def _longest_load_s(self, seats: Seats) -> float:
        return max(sum(map(self._load_s, seat.hosts)) for seat in seats)

    def _total_s(self, way: _Way) -> float:
        return sum(self._away_s(change.device, step) for change, step in way.of_gpu)

    # One GPU --------------------------------------------------------------------------------------------------------

    def _nearest(self, device: Device, present: Gpu, planned: Gpu) -> tuple[float, Gpu]:
        geometry = self._geometry(device, present, planned)

        def cost(way: Gpu) -> float:
            return sum(self._away_s(device, step) for step in self._steps_of(present, way, geometry))

        way = nearest(present, planned, geometry, cost)
        return cost(way), way

    def _steps_of(self, present: Gpu, planned: Gpu, geometry: MigGeometry | None) -> tuple[ChangeStep, ...]:
        return steps_between(present, planned, geometry, cut_s=self._problem.cut_s, load_s=self._load_s)

    def _load_s(self, partition: str) -> float:
        return self._problem.load_time_s(self._model_of[partition])

    def _geometry(self, device: Device, *gpus: Gpu) -> MigGeometry | None:
        """The geometry of a GPU whose instances these may be; None where it is not known."""
        for geometry in mig_geometries(device.product, device.memory_mib):
            known = {profile.name for profile in geometry.profiles}
            if all(getattr(part, "profile", None) in known for gpu in gpus for part, _ in gpu):
                return geometry
        return None

    def _away_s(self, device: Device, step: ChangeStep) -> float:
        move = self._move(device, step)
        total = 0.0
        for amounts in (move.lost, move.gained):
            for name, amount in amounts.items():
                whole = max(self.present.get(name, 0.0), self._planned.get(name, 0.0))
                total += step.seconds * amount / whole if whole > 0 else 0.0
        return total

    def _move(self, device: Device, step: ChangeStep) -> CapacityChange:
        return CapacityChange(self._sum({device: step.leaving}), self._sum({device: step.arriving}))

    # All of them ----------------------------------------------------------------------------------------------------

    def _steps(self, changes: Sequence[GpuChange], *, whole: bool = False) -> _Way:
        """`whole`: a GPU that changes is divided again as a whole."""
        found: list[tuple[GpuChange, ChangeStep]] = []
        for change in changes:
            geometry = None if whole else self._geometry(change.device, change.present, change.planned)
            steps: Sequence[ChangeStep] = self._steps_of(change.present, change.planned, geometry)
            if whole and steps:
                anew = self._steps_of((), change.planned, None)
                steps = [
                    ChangeStep(change.present, change.planned, max([self._problem.cut_s, *(s.seconds for s in anew)]))
                ]
            found += [(change, step) for step in steps]
        return _Way(changes, found, [self._move(change.device, step) for change, step in found])

    def _sum(self, gpus: Mapping[Device, Gpu]) -> dict[str, float]:
        total: defaultdict[str, float] = defaultdict(float)
        for device, gpu in gpus.items():
            for part, seats in gpu:
                for name, amount in self._capacities.of_instance(device, part, seats).items():
                    total[name] += amount
        return dict(total)

    def _cost(self, way: _Way, waves: Sequence[Sequence[int]]) -> ChangeCost:
        return ChangeCost(
            away_s=self._total_s(way),
            destroyed=sum(len(step.leaving) for step in way.steps if not step.reloads),
            loads=loaded(way.steps),
            seconds=sum(max(way.steps[number].seconds for number in wave) for wave in waves),
            kept=least_kept(way.moves, waves, self.present, self._shared),
        )

    # What it is worth -----------------------------------------------------------------------------------------------

    def _asked(self, layout: Layout) -> dict[str, float] | None:
        """Return the requests per second of each model that a layout sustains, up to the demand; None: unknown."""
        requests, asked = self._problem.requests, self._problem.rates_rps
        borne = {model.name: model.rate_rps for model in layout.models}
        if requests is not None:
            borne = rates_borne(requests, layout)
        elif not all(borne.values()):
            return None
        return {name: rate if asked is None else min(rate, asked.get(name, 0.0)) for name, rate in borne.items()}

    def _gained_rps(self) -> float | None:
        before, after = self._asked(self._before), self._asked(self._after)
        return None if before is None or after is None else sum(after.values()) - sum(before.values())

    def _lost_requests(self, way: _Way) -> float | None:
        if (asked := self._asked(self._before)) is None:
            return None
        total = 0.0
        for move, step in zip(way.moves, way.steps, strict=True):
            for name, amount in move.lost.items():
                share = amount / self.present[name] if self.present[name] else 0.0
                total += share * step.seconds * asked.get(self._model_of[name], 0.0)
        return total

    # The document ---------------------------------------------------------------------------------------------------

    def _workers(self, way: _Way) -> dict[Device, dict[Instance, tuple[LayoutWorker, ...]]]:
        present = gpus_of(self._before)
        planned = {change.device: change.planned for change in way.changes}
        taken = {
            worker.name
            for device, gpu in planned.items()
            for part, _ in gpu
            for worker in present.get(device, {}).get(part, ())
        }
        found: dict[Device, dict[Instance, tuple[LayoutWorker, ...]]] = {}
        for device, gpu in sorted(planned.items(), key=lambda item: (item[0].node, str(item[0].id))):
            for part, seats in gpu:
                mine = []
                names = names_of(seats, present.get(device, {}).get(part, ()))
                for known, seat in zip(names, seats, strict=True):
                    name = known or _free_name(device, part, taken)
                    taken.add(name)
                    its = slice_in(part, seat.share)
                    device_class = seat.device_class or None
                    mine.append(
                        LayoutWorker(name=name, device=device, slice=its, device_class=device_class, hosts=seat.hosts)
                    )
                found.setdefault(device, {})[part] = tuple(mine)
        return found

    def _documents(
        self,
        way: _Way,
        waves: Sequence[Sequence[int]],
        workers: Mapping[Device, Mapping[Instance, tuple[LayoutWorker, ...]]],
    ) -> tuple[PlannedStep, ...]:
        present = gpus_of(self._before)
        documents = []
        for wave, numbers in enumerate(waves):
            for number in numbers:
                change, step = way.of_gpu[number]
                destroyed = [] if step.reloads else sorted((part for part, _ in step.leaving), key=slots)
                created = [] if step.reloads else sorted((part for part, _ in step.arriving), key=slots)
                before = [worker for part, _ in step.leaving for worker in present[change.device][part]]
                after = [worker for part, _ in step.arriving for worker in workers[change.device][part]]
                stay = {(worker.name, seat_of(worker)) for worker in before} if step.reloads else set()
                stay &= {(worker.name, seat_of(worker)) for worker in after}
                stops = [worker.name for worker in before if (worker.name, seat_of(worker)) not in stay]
                starts = [worker.name for worker in after if (worker.name, seat_of(worker)) not in stay]
                documents.append(
                    PlannedStep(
                        wave=wave,
                        device=change.device,
                        destroys=tuple(destroyed),
                        creates=tuple(created),
                        stops=tuple(stops),
                        starts=tuple(starts),
                        seconds=step.seconds,
                    )
                )
        return tuple(documents)


def _free_name(device: Device, part: Instance, taken: set[str]) -> str:
    name = f"{device.node}-{device.id}/{max(0, slots(part)[0])}"
    tries = (name if number == 0 else f"{name}-{number}" for number in range(len(taken) + 1))
    return next(each for each in tries if each not in taken)


def _check_names(problem: ReconfigurationProblem) -> None:
    known = {model.name for layout in problem.layouts for model in layout.models}
    load_s = problem.load_s if isinstance(problem.load_s, dict) else {}
    for field, names in (("load_s", load_s), ("rates_rps", problem.rates_rps or {})):
        if unknown := sorted(names.keys() - known):
            raise PlanningError(f"{field}: no layout has a model {unknown[0]!r}, but {', '.join(sorted(known))}")


def _cannot_keep(problem: ReconfigurationProblem, change: _Changes) -> PlanningError:
    low, high = 0.0, problem.keep
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        needed = change.needed(middle)
        if any(waves_of(way.moves, change.present, needed) is not None for way in change.ways):
            low = middle
        else:
            high = middle
    return PlanningError(
        f"keep: no order of steps was found that keeps {problem.keep:g} of every model's capacity; "
        f"{int(low * 1000) / 1000:g} can be kept: allow that, or add a GPU for as long as it takes"
    )
