"""The sizes of requests, as `tidegate batch-histogram` finds them: what planners of slices cut GPUs by."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import VersionedDocument


class RequestSizes(VersionedDocument):
    """Number of requests of each model by rows."""

    kind: Literal["request_sizes"] = "request_sizes"
    models: dict[str, dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]] = Field(min_length=1)
    """{model: {rows: requests, or their share}}."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for name, sizes in self.models.items():
            if not sum(sizes.values()) > 0:
                raise ValueError(
                    f"models: the sizes of {name!r} sum to nothing: say how many requests have how many rows"
                )
        return self
