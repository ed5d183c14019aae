"""Current deployment for planners: a layout's workers as shares, and the current rates."""

from collections.abc import Mapping, Sequence

from tidegate.control.rates import check_models
from tidegate.schemas import Layout, Mps
from tidegate_inss.prediction import AssignedShare
from tidegate_inss.problem import ShareProblem

MIN_RATE_FRACTION = 0.02
"""Minimum rate to plan for, as a fraction of the problem's rate."""


def check_first(problem: ShareProblem, layout: Layout) -> None:
    """Raise ValueError if the initial layout does not fit the problem."""
    check_models((model.name for model in problem.models), layout)
    known = set(problem.devices)
    for worker in layout.workers:
        device, named = worker.device, f"problem: worker {worker.name!r} of the layout"
        if device not in known:
            raise ValueError(
                f"{named} is on {device.product} {device.id} of {device.node!r}, which is none of its GPUs: give the "
                "problem that the layout was planned from"
            )
        if not isinstance(worker.slice, Mps) or len(worker.hosts) != 1:
            raise ValueError(f"{named} is no MPS share with one model: plan the layout by `tidegate plan shares`")


def shares_of(problem: ShareProblem, layout: Layout) -> list[AssignedShare]:
    """Return the current shares, in the order of the layout's workers."""
    devices = {device: number for number, device in enumerate(problem.devices)}
    models = {model.name: number for number, model in enumerate(problem.models)}
    batches = {model.name: max(pipeline.batch for pipeline in model.pipelines) for model in layout.models}
    shares = []
    for worker in layout.workers:
        assert isinstance(worker.slice, Mps), "that was checked at the start"
        name = worker.hosts[0]
        units = worker.slice.percent * problem.units_per_gpu // 100
        shares.append(AssignedShare(models[name], devices[worker.device], units, batches[name]))
    return shares


def problem_with(problem: ShareProblem, rates_rps: Mapping[str, float]) -> ShareProblem:
    """Return the problem with other rates in requests per second, by model name."""
    models = tuple(
        model.model_copy(update={"rate_rps": max(rates_rps[model.name], MIN_RATE_FRACTION * model.rate_rps)})
        for model in problem.models
    )
    return problem.model_copy(update={"models": models})


def steady_batches(
    planned: Sequence[AssignedShare], present: Sequence[AssignedShare], most: Sequence[int]
) -> list[AssignedShare]:
    """Return the shares with batch sizes that change rarely, because a changed size loads the process again.

    `planned`: new shares; `present`: current ones; `most`: maximum batch of each model. A model keeps its current batch
    size if that is at least the planned one and at most four times as large; otherwise it gets the next power of two.
    """
    serving = {share.model: share.batch for share in present}
    wanted: dict[int, int] = {}
    for share in planned:
        wanted[share.model] = max(wanted.get(share.model, 1), share.batch)
    batches = {}
    for model, batch in wanted.items():
        now = serving.get(model, 0)
        batches[model] = now if batch <= now <= 4 * batch else min(most[model], 1 << (batch - 1).bit_length())
    return [share._replace(batch=batches[share.model]) for share in planned]
