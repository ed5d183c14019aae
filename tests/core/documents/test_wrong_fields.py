"""What is wrong with a document is said in words that name the field."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tidegate.documents import wrong_fields


class Constant(BaseModel):
    model_config = ConfigDict(extra="forbid")
    how: Literal["constant"]
    value: float


class Uniform(BaseModel):
    model_config = ConfigDict(extra="forbid")
    how: Literal["uniform"]
    high: float


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: Annotated[float, Field(gt=0)] | list[int] = 1
    drawn: Annotated[Constant | Uniform, Field(discriminator="how")] = Constant(how="constant", value=1)
    name: str = ""

    @field_validator("name")
    @classmethod
    def _no_blanks(cls, name: str) -> str:
        if " " in name:
            raise ValueError(f"{name!r} has blanks")
        return name


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: list[Inner]
    some: tuple[Strict, ...] = Field(default=(Strict(),), min_length=1)
    sizes: dict[Annotated[int, Field(ge=1)], float] | str = ""
    lists: tuple[Strict, ...] | str = ""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, ["parts: must be given"]),
        ({"parts": [], "prats": 1}, ["prats: there is no such field: misspelt, or in the wrong place?"]),
        ({"parts": [{"name": "a b"}]}, ["parts.0.name: 'a b' has blanks"]),
        (
            {"parts": [{}, {"rate": "x"}]},
            [
                "parts.1.rate: Input should be a valid number, unable to parse string as a number",
                "parts.1.rate: Input should be a valid list",
            ],
        ),
        ({"parts": [{"drawn": {"how": "uniform"}}]}, ["parts.0.drawn.high: must be given"]),
        ({"parts": [], "some": []}, ["some: Tuple should have at least 1 item after validation, not 0"]),
        (
            {"parts": [], "some": [{"x": 1}]},
            ["some.0.x: there is no such field: misspelt, or in the wrong place?"],  # and not that there are none
        ),
        ("x", ["options: must be fields with values, not text"]),
        (None, ["options: is empty"]),
        ({"parts": [], "sizes": {"0": 1}}, ["sizes.0: Input should be greater than or equal to 1"]),
        (
            {"parts": [], "sizes": {"1": "x"}},
            ["sizes.1: Input should be a valid number, unable to parse string as a number"],
        ),
        (
            {"parts": [], "sizes": 5},
            ["sizes: must be fields with values, not a number", "sizes: Input should be a valid string"],
        ),
        ({"parts": [], "lists": [{"x": 1}]}, ["lists.0.x: there is no such field: misspelt, or in the wrong place?"]),
    ],
)
def test_every_wrong_field_is_named_with_what_is_wrong(document: Any, said: list[str]) -> None:  # noqa: ANN401
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(document)
    assert [str(field) for field in wrong_fields(raised.value, whole="options", members={"uniform"})] == said
