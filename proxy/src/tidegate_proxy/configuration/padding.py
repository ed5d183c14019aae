"""Padding of tensors to common sizes: the section `models.NAME.merge` of the configuration."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tidegate_proxy.configuration.section import ConfigSection, Name

Size = Annotated[int, Field(ge=1, lt=1 << 31)]


class FollowingSize(ConfigSection):
    """Size of an output that follows a size of an input: `(times * size + plus) / per`, rounded up."""

    axis: int | None = Field(
        default=None, description="Which of its sizes, 0 being the rows; default: the one that its config leaves open"
    )
    scale: Size = Field(default=1, description="For each element of the input so many of the output")
    offset: int = Field(default=0, gt=-(1 << 31), lt=1 << 31, description="And so many more, or fewer")
    stride: Size = Field(default=1, description="Each for so many elements of the input")


class PaddingConfig(ConfigSection):
    """Common sizes along one axis of one input."""

    sizes: tuple[Size, ...] = Field(
        min_length=1, strict=False, description="The sizes, ascending: a request gets the next larger one"
    )
    input: Name | None = Field(
        default=None, description="Of which input; default: the only one with a size that its config leaves open"
    )
    axis: int | None = Field(
        default=None, description="Which of its sizes, 0 being the rows; default: the one that its config leaves open"
    )
    value: float = Field(default=0, description="What the elements are that are added, at the end")
    outputs: dict[Name, FollowingSize | None] = Field(
        default_factory=dict,
        description="The outputs that have a size which follows, which is cut back; `null` for one that does not",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"to: {', '.join(map(str, self.sizes))} do not ascend: put them in order, each once")
        return self


def _entries(given: Any) -> Any:  # noqa: ANN401 - whatever the file says
    """All three ways to write it as a list of entries: the sizes alone, one entry, several."""
    if isinstance(given, Mapping):
        return [given]
    if isinstance(given, list) and given and all(isinstance(size, int) for size in given):
        return [{"sizes": given}]
    return given


class MergeConfig(ConfigSection):
    """Batching of a model's requests."""

    pad: Annotated[
        tuple[PaddingConfig, ...],
        BeforeValidator(_entries, json_schema_input_type=tuple[PaddingConfig, ...] | PaddingConfig | tuple[Size, ...]),
    ] = Field(
        default=(),
        strict=False,  # the validator before it makes lists of what JSON calls arrays
        description="Sizes that requests are padded to, so that near shapes share batches; a list of sizes is short "
        "for `to`; default: only equal shapes share",
    )
