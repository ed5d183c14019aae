"""What is wrong with a document, field by field, in words: for all files and all options that people write."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_TYPES = ("list[", "tuple[", "dict[", "constrained-", "function-", "[key]")
"""How steps of a path begin that are types, not fields."""


@dataclass(frozen=True)
class WrongField:
    """A field, and what is wrong with it."""

    where: str
    """The path of the field, e.g. `models.0.slo_ms`."""
    what: str
    """What is wrong with it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def wrong_fields(
    error: ValidationError, *, whole: str = "document", members: Container[str] = ()
) -> tuple[WrongField, ...]:
    """Every field that pydantic refuses.

    `whole`: what the document itself is called where no field is to blame. `members`: names of members of unions, which
    pydantic takes for steps of the path though no field is called so; types among the steps are left out anyway.
    """

    errors = error.errors(include_url=False, include_context=False)
    places = [e["loc"] for e in errors]

    def where(location: tuple[int | str, ...]) -> str:
        steps = [str(step) for step in location if step not in members]
        if _is_other_than_text(location, places):
            steps.pop()
        return ".".join(step for step in steps if not step.startswith(_TYPES)) or whole

    return tuple(
        WrongField(where(e["loc"]), _what(e))
        for e in errors
        if not _is_other_than_text(e["loc"], places, deeper=True)
        # A list whose every entry is wrong counts as empty: not worth a line of its own.
        and (e["type"] != "too_short" or not any(e["loc"] == place[: len(e["loc"])] != place for place in places))
    )


def _is_other_than_text(
    location: tuple[int | str, ...], places: Sequence[tuple[int | str, ...]], *, deeper: bool = False
) -> bool:
    """Whether it says that something is no text which may also be fields, and it is those that were tried.

    `deeper`: and there is something wrong within these, which is then what is to be said.
    """
    union, step = location[:-1], location[-1:]
    others = [place for place in places if place[: len(union)] == union and place != location]
    typed = [place for place in others if len(place) > len(union) and str(place[len(union)]).startswith(_TYPES)]
    return step == ("str",) and any(len(place) > len(location) or not deeper for place in typed)


def _what(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field: misspelt, or in the wrong place?"
        case "missing":
            return "must be given"
        case "model_type" | "dict_type" if error["input"] is None:
            return "is empty"
        case "model_type" | "dict_type":
            return f"must be fields with values, not {_kind(error['input'])}"
        case _:
            return error["msg"].removeprefix("Value error, ")


def _kind(given: object) -> str:
    match given:
        case str():
            return "text"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(given).__name__}"
