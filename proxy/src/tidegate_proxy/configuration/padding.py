"""Padding of tensors to common sizes: the section `models.NAME.merge` of the configuration."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tidegate_proxy.configuration.section import ConfigSection, Name

Size = Annotated[int, Field(ge=1, lt=1 << 31)]


class FollowingSize(ConfigSection):
    """Size of an output that follows a size of an input: `(scale * size + offset) / stride`, rounded up."""

    axis: int | None = Field(
        default=None, description="Axis of the output, 0 being the rows; default: the dynamic one in the model's config"
    )
    scale: Size = Field(default=1, description="Factor of the size of the input")
    offset: int = Field(
        default=0, gt=-(1 << 31), lt=1 << 31, description="Number added to the product, or subtracted if negative"
    )
    stride: Size = Field(default=1, description="Divisor of the sum")


class PaddingConfig(ConfigSection):
    """Common sizes along one axis of one input."""

    sizes: tuple[Size, ...] = Field(
        min_length=1, strict=False, description="Sizes to pad to, ascending: a request gets the next larger one"
    )
    input: Name | None = Field(
        default=None, description="Input to pad; default: the only one with a dynamic dimension in the model's config"
    )
    axis: int | None = Field(
        default=None, description="Axis to pad, 0 being the rows; default: the dynamic one in the model's config"
    )
    value: float = Field(default=0, description="Value of the elements that are added at the end")
    outputs: dict[Name, FollowingSize | None] = Field(
        default_factory=dict,
        description="Outputs with a size that follows, which is cut back; `null` for one that does not",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"sizes: {', '.join(map(str, self.sizes))} do not ascend: put them in order, each once")
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
        description="Sizes that requests are padded to, so that similar shapes share batches; a list is "
        "short for `{sizes: [...]}`; default: only equal shapes share",
    )
