"""Registration of the policy `orloj`."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_orloj.policy import Orloj


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policy `orloj`."""
    return [
        PolicySpec("orloj", "Batches by the distributions of requests' times, for times that depend on data", Orloj)
    ]
