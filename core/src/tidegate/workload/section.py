"""Base class of a scenario's sections, and types of values that several sections use."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=200)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]


class ScenarioSection(BaseModel):
    """Base class of a scenario's sections: unknown fields and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
