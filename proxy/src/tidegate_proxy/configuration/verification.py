"""The section `batch_verification` of the configuration."""

from pydantic import Field

from tidegate_proxy.configuration.section import Section


class BatchVerification(Section):
    """Whether batching changes answers: of some batches one request runs again alone, and the answers are compared."""

    fraction: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Fraction of a model's batches that are verified; its first ones more often, one a second at most, "
        "while its Triton is idle; 0: none",
    )
    tolerance: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Floating-point answers agree within this fraction of their output's largest magnitude",
    )
