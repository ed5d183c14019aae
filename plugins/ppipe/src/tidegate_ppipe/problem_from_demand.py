"""From a demand to a problem, for `tidegate recommend`."""

from tidegate.api import PlanningError
from tidegate.schemas import BlockProfile, Demand
from tidegate_ppipe.problem import GpuClass, PlannedModel, PpipeProblem

MAX_CLASSES = 6
"""Maximum number of GPU classes of a problem."""


def problem_of(demand: Demand) -> PpipeProblem:
    """Return the problem with every GPU and every model, weighted by rate.

    Raises PlanningError for missing profiles.
    """
    uncut = [model.name for model in demand.models if model.blocks is None]
    if uncut:
        raise PlanningError(
            f"{uncut[0]!r} has no block profile: cut it with `tidegate split`, measure it with `tidegate "
            f"profile-blocks`, and give --blocks {uncut[0]}=FILE"
        )
    if len(demand.gpus) > MAX_CLASSES:
        raise PlanningError(f"there are {len(demand.gpus)} kinds of GPU, and it plans for at most {MAX_CLASSES}")
    planned = []
    for model in demand.models:
        blocks = model.blocks
        assert blocks is not None, "checked above"
        if model.slo_ms is None:
            raise PlanningError(f"{model.name!r} has no SLO: give it slo_ms")
        _check(blocks, demand)
        planned.append(PlannedModel(name=model.name, slo_ms=model.slo_ms, weight=model.rate_rps, profile=blocks))
    shares = {kind: max(_shares(blocks, kind) for blocks in _of(demand)) for kind in demand.gpus}
    return PpipeProblem(
        classes=tuple(
            GpuClass(name=kind, count=count, per_node=demand.per_node, max_share=shares[kind])
            for kind, count in demand.gpus.items()
        ),
        models=tuple(planned),
        gbps=demand.gbps,
    )


def _of(demand: Demand) -> list[BlockProfile]:
    return [model.blocks for model in demand.models if model.blocks is not None]


def _shares(blocks: BlockProfile, kind: str) -> int:
    """Into how many shares GPUs of a kind were divided when it was measured."""
    return max(table.share for table in blocks.latencies if table.device_class == kind)


def _check(blocks: BlockProfile, demand: Demand) -> None:
    known = {table.device_class for table in blocks.latencies}
    if lacking := [kind for kind in demand.gpus if kind not in known]:
        raise PlanningError(
            f"the block profile of {blocks.model!r} has nothing of {lacking[0]!r}: measure it there with `tidegate "
            "profile-blocks --device-class`"
        )
