"""Registration of the policy `orloj`."""

from tidegate.api import PolicySpec, hookimpl
from tidegate_orloj.policy import Orloj


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policy `orloj`."""
    return [
        PolicySpec(
            "orloj", "Batches by distributions of execution time, for models whose latency depends on the input", Orloj
        )
    ]
