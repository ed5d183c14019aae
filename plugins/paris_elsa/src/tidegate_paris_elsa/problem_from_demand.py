"""From a demand to a problem, for `tidegate recommend`."""

from tidegate.api import PlanningError
from tidegate.schemas import MIG_GEOMETRIES, Demand, DemandedModel, mig_geometries
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile


def problem_of(demand: Demand) -> MigProblem:
    """Return the problem with every GPU partitioned and every model by its rate.

    Raises PlanningError for missing profiles.
    """
    for product in demand.gpus:
        if len(found := mig_geometries(product, None)) != 1:
            names = " or ".join(geometry.product for geometry in found)
            may = f"it may be {names}: say which" if found else f"MIG is known for {', '.join(MIG_GEOMETRIES)}"
            raise PlanningError(f"{product!r} cannot be cut into MIG slices ({may})")
    return MigProblem(
        gpus=tuple(
            GpuPool(product=product, count=count, per_node=demand.per_node) for product, count in demand.gpus.items()
        ),
        models=tuple(
            MigModel(
                name=model.name,
                slo_ms=model.slo_ms,
                weight=model.rate_rps,
                sizes=dict(model.sizes),
                profiles=_measured(model, [*demand.gpus]),
            )
            for model in demand.models
        ),
    )


def _measured(model: DemandedModel, products: list[str]) -> tuple[SliceProfile, ...]:
    found = tuple(
        SliceProfile(kind=kind, rows=tuple(range(1, len(table) + 1)), latency_ms=table)
        for kind, table in model.latency_ms.items()
        if kind.partition("/")[0] in products and "/" in kind
    )
    if not found:
        raise PlanningError(
            f"{model.name!r} was not measured on slices of {products[0]}: add profiles by kind, such as "
            f"{products[0]}/{mig_geometries(products[0], None)[0].profiles[0].name}, "
            "with `tidegate profile --device-class`"
        )
    return found
