"""Request sizes that `tidegate batch-histogram` counts, used by planners of MIG partitions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import VersionedDocument


class RequestSizes(VersionedDocument):
    """Number of requests of each model by rows."""

    kind: Literal["request_sizes"] = "request_sizes"
    models: dict[str, dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]]] = Field(min_length=1)
    """{model: {rows: number or fraction of its requests}}."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for name, sizes in self.models.items():
            if not sum(sizes.values()) > 0:
                raise ValueError(
                    f"models: the sizes of {name!r} sum to nothing: say how many requests have how many rows"
                )
        return self
