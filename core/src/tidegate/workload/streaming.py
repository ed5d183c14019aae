"""Streaming models of a scenario: many responses to a request, as with token streaming."""

from pydantic import Field

from tidegate.workload.distributions import AnyDistribution, Constant
from tidegate.workload.section import Positive, ScenarioSection


class StreamingSpec(ScenarioSection):
    """Responses of a model's requests. Its profile is the time to the first one, and `slo_ms` its deadline."""

    responses: AnyDistribution = Field(default=Constant(value=1), description="Responses to a request, at least 1")
    gap_ms: AnyDistribution = Field(
        description="Mean time between the responses to a request alone on its worker (inter-token latency), in ms"
    )
    slo_gap_ms: Positive | None = Field(
        default=None, description="Longest mean gap of a stream, in ms, that counts as on time in `gap_attainment`"
    )
