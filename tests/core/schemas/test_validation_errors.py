"""What is wrong with a document is said in words that name the field."""

import re
from typing import Annotated, Any, Literal, Self, get_args

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails
from pydantic_core.core_schema import ErrorType

from tidegate.schemas import FieldError, field_errors, format_field_errors, parse_yaml


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
        ({"parts": [], "prats": 1}, ["prats: there is no such field; did you mean parts?"]),
        ({"parts": [{"name": "a b"}]}, ["parts.0.name: 'a b' has blanks"]),
        (
            {"parts": [{}, {"rate": "x"}]},
            [
                "parts.1.rate: must be a number or a list, not 'x'",
            ],
        ),
        ({"parts": [{"drawn": {"how": "uniform"}}]}, ["parts.0.drawn.high: must be given"]),
        ({"parts": [], "some": []}, ["some: must have at least 1 entry, not 0"]),
        (
            {"parts": [], "some": [{"x": 1}]},
            ["some.0.x: there is no such field; there are: none"],  # and not that there are none
        ),
        ({"parts": [{"rat": 2}]}, ["parts.0.rat: there is no such field; did you mean rate?"]),
        (
            {"parts": [{"drawn": {"how": "uniform", "height": 1}}]},
            ["parts.0.drawn.height: there is no such field; did you mean high?"],
        ),
        ({"parts": [], "drawn": {}}, ["drawn: there is no such field here; did you mean parts.*.drawn?"]),
        (
            {"parts": [{"drawn": {"how": "gaussian"}}]},
            ["parts.0.drawn: how must be one of 'constant', 'uniform', not 'gaussian'"],
        ),
        ({"parts": [{"drawn": {}}]}, ["parts.0.drawn: how must be given"]),
        ({"parts": [], "color": 1}, ["color: there is no such field; there are: parts, some, sizes, lists"]),
        ("x", ["options: must be fields with values, such as parts: ..., not 'x'"]),
        (None, ["options: is empty"]),
        ({"parts": [], "sizes": {"0": 1}}, ["sizes.0: must be at least 1, not '0'"]),
        (
            {"parts": [], "sizes": {"1": "x"}},
            ["sizes.1: must be a number, not 'x'"],
        ),
        (
            {"parts": [], "sizes": 5},
            ["sizes: must be fields with values or text, not 5"],
        ),
        ({"parts": [], "lists": [{"x": 1}]}, ["lists.0.x: there is no such field; there are: none"]),
    ],
)
def test_every_wrong_field_is_named_with_what_is_wrong(document: Any, said: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(document)
    assert [str(field) for field in field_errors(raised.value, Outer, whole="options", members={"uniform"})] == said


class Tree(BaseModel):
    """A document that checks itself as a whole, and one that has others in it."""

    leaves: int = 1
    trees: list["Tree"] = Field(default_factory=list)

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.leaves < 1:
            raise ValueError("leaves: a tree without any is dead")
        return self


def test_a_check_of_the_whole_document_names_its_field() -> None:
    with pytest.raises(ValidationError) as raised:
        Tree.model_validate({"leaves": 0})
    (wrong,) = field_errors(raised.value, Tree)
    assert (wrong.where, wrong.what) == ("leaves", "a tree without any is dead")


def test_one_thing_that_is_wrong_is_one_line_and_more_are_counted() -> None:
    wrong = tuple(FieldError(f"models.{number}", "is empty") for number in range(4))
    assert format_field_errors("a.yaml", wrong[:1]) == "a.yaml: models.0: is empty"
    assert format_field_errors("a.yaml", wrong[:2]) == "a.yaml:\n  models.0: is empty\n  models.1: is empty"
    assert format_field_errors("a.yaml", wrong, most=2).splitlines()[2:] == ["  models.1: is empty", "  and 2 more"]


CONTEXT = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "min_length", "max_length", "actual_length", "multiple_of"), 1),
    **dict.fromkeys(
        ("max_digits", "decimal_places", "whole_digits", "tz_expected", "tz_actual", "expected_version"), 1
    ),
    **dict.fromkeys(("expected", "class_name", "class", "field_type", "pattern", "discriminator", "tag"), "x"),
    **dict.fromkeys(("expected_tags", "method_name", "attribute", "encoding", "encoding_error"), "x"),
    **dict.fromkeys(("expected_schemes", "error"), "x"),
}
RAISED = {"value_error", "assertion_error"}


def test_nothing_is_said_in_pydantics_words() -> None:
    theirs = re.compile(r"[Ii]nput |[Ii]nputs |a valid |not permitted|Field required|Value error|Assertion")
    for kind in get_args(ErrorType):
        context = CONTEXT | ({"error": ValueError("x")} if kind in RAISED else {})
        details = InitErrorDetails(type=kind, ctx=context, loc=("leaves",), input="x")
        said = str(field_errors(ValidationError.from_exception_data("Tree", [details]), Tree)[0])
        assert said.startswith("leaves: "), said
        assert not theirs.search(said), said


def test_a_merge_is_not_a_field_that_stands_there_twice() -> None:
    """The merge of a mapping that has a merge itself, which YAML resolves first."""
    text = "a: &a {k: 1}\nlist:\n - deep: &b {<<: *a, k: 2}\nx: {<<: *b}\n"
    assert parse_yaml(text) == {"a": {"k": 1}, "list": [{"deep": {"k": 2}}], "x": {"k": 2}}
    for twice in ("{<<: *a, k: 2, k: 3}", "{l: [{m: {k: 2, k: 3}}]}"):
        with pytest.raises(yaml.YAMLError, match="'k' stands there twice"):
            parse_yaml(f"a: &a {{k: 1}}\nb: {twice}\n")
