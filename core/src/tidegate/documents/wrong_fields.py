"""What is wrong with a document, field by field, in words: for all files and all options that people write."""

from collections.abc import Container
from dataclasses import dataclass

from pydantic import ValidationError


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

    def where(location: tuple[int | str, ...]) -> str:
        steps = [str(step) for step in location if step not in members]
        return ".".join(step for step in steps if not step.startswith(("list[", "constrained-"))) or whole

    errors = error.errors(include_url=False, include_context=False, include_input=False)
    places = [e["loc"] for e in errors]
    return tuple(
        WrongField(where(e["loc"]), _what(e["type"], e["msg"]))
        for e in errors
        # A list whose every entry is wrong counts as empty: not worth a line of its own.
        if e["type"] != "too_short" or not any(e["loc"] == place[: len(e["loc"])] != place for place in places)
    )


def _what(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "there is no such field: misspelt, or in the wrong place?"
    if kind == "missing":
        return "must be given"
    return message.removeprefix("Value error, ")
