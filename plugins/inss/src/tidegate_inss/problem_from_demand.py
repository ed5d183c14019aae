"""From a demand to a problem, for `tidegate recommend`."""

from tidegate.api import PlanningError
from tidegate.schemas import Demand
from tidegate_inss.problem import GpuPool, ShareProblem, SharingTenant


def problem_of(demand: Demand) -> ShareProblem:
    """Return the problem with every GPU of the measured product and every model of the demand.

    Raises PlanningError for missing profiles or a missing interference file.
    """
    measured = demand.interference
    if measured is None:
        raise PlanningError(
            "how models slow each other down on one GPU was not measured: fit that with `tidegate fit-interference` "
            "and give --interference FILE"
        )
    if others := [product for product in demand.gpus if product != measured.gpu]:
        raise PlanningError(
            f"interference was measured on {measured.gpu!r}, and there are {others[0]!r}: measure it there, too"
        )
    if lacking := measured.lacks(model.name for model in demand.models):
        raise PlanningError(
            f"the interference file knows nothing of {lacking[0]!r}: measure it with `tidegate profile-shares`"
        )
    tenants = []
    for model in demand.models:
        if model.slo_ms is None:
            raise PlanningError(f"{model.name!r} has no SLO: give it slo_ms")
        tenants.append(
            SharingTenant(
                name=model.name, rate_rps=model.rate_rps, slo_ms=model.slo_ms, max_batch=min(model.max_batch, 1024)
            )
        )
    pools = (GpuPool(product=product, count=count, per_node=demand.per_node) for product, count in demand.gpus.items())
    return ShareProblem(gpus=tuple(pools), interference=measured, models=tuple(tenants))
