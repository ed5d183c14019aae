"""What is wrong with a value, in words of ours: pydantic's speak of inputs, dictionaries and validation."""

import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ErrorDetails

SHOWN: Final = 60
"""So many characters of a text that is wrong are repeated."""


@dataclass(frozen=True)
class WrongValue:
    """What a value must be, and what it is."""

    wanted: str
    """A sentence without its subject, e.g. `must be a number`."""
    given: str = ""
    """What stands there instead; empty where the sentence has said it."""

    def __str__(self) -> str:
        return f"{self.wanted}, not {self.given}" if self.given else self.wanted


def wrong_value(error: ErrorDetails) -> WrongValue:
    """What pydantic refuses, in words. `error` comes with its context."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if given is None and kind in _FIELDS:
        return WrongValue("is empty")
    said = _said(given)
    match kind:
        case _ if kind in _TYPES:
            wanted = f"must be {_TYPES[kind]}"
        case _ if kind in _BOUNDS:
            word, bound = _BOUNDS[kind]
            wanted = f"must be {word} {_number(context[bound])}"
        case "literal_error" | "enum":
            wanted = f"must be {context['expected']}"
        case "string_too_short" | "string_too_long":
            wanted = _counted(kind, context, "character", "characters")
        case "string_pattern_mismatch":
            wanted = f"must match the pattern {context['pattern']}"
        case "too_short" | "too_long":
            wanted, said = _counted(kind, context, "entry", "entries"), str(context["actual_length"])
        case "union_tag_invalid":
            wanted, said = f"{_tag(context)} must be one of {context['expected_tags']}", repr(context["tag"])
        case "missing" | "union_tag_not_found":
            wanted, said = f"{_tag(context)} must be given".lstrip(), ""
        case "value_error" | "assertion_error":
            wanted, said = str(context["error"]), ""
        case "json_invalid":
            wanted, said = f"is no JSON: {context['error']}", ""
        case _:
            wanted = in_our_words(error["msg"])
    return WrongValue(wanted, said)


def in_our_words(message: str) -> str:
    """A message of pydantic's, which other libraries, such as typer, pass on: without inputs that should be valid."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


_WORDS: Final = (
    (r"a valid integer(, .*)?$", "a whole number"),
    (r"a valid number(, .*)?$", "a number"),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
    (r"greater than", "more than"),
    (r"\b(\w+ )?[Ii]nput should (not )?", r"must \2"),
    (r"\b(\w+ )?[Ii]nput is ", "is "),
    (r"\ba valid ", "a "),
    (r"[Ii]nput (string|violated)", r"text \1"),
    (r"(Value error|Assertion failed), ", ""),
)
_FIELDS: Final = frozenset({"model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"})
_TYPES: Final = {
    **dict.fromkeys(_FIELDS, "fields with values"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "a list"),
    **dict.fromkeys(("string_type", "invalid_key", "string_unicode"), "text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    "none_required": "left empty",
    "path_type": "a path",
}
"""What types are called by people who write files."""

_BOUNDS: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}


def _number(bound: object) -> str:
    """As people write it: pydantic makes 1.0 of 1."""
    return f"{bound:.12g}" if isinstance(bound, float) else str(bound)


def _tag(context: dict[str, Any]) -> str:
    """The field that says which member of a union is meant."""
    return str(context.get("discriminator", "")).strip("'")


def _counted(kind: str, context: dict[str, Any], one: str, many: str) -> str:
    word, bound = ("at least", "min_length") if kind.endswith("short") else ("at most", "max_length")
    count = context[bound]
    return f"must have {word} {count} {one if count == 1 else many}"


def _said(given: object) -> str:
    match given:
        case None:
            return "nothing"
        case bool() | int() | float():
            return str(given).lower()
        case str():
            return repr(given if len(given) <= SHOWN else f"{given[:SHOWN]}...")
        case list() | tuple():
            return "a list"
        case dict():
            return "fields with values"
        case _:
            return f"a {type(given).__name__}"
