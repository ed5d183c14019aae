"""Validation errors as text: which field of a document is wrong, why, and what was probably meant."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Final, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MIN_SIMILARITY: Final = 0.7
"""Minimum similarity of two names for a suggestion (difflib's ratio; 1: equal)."""
MIN_STEM_CHARACTERS: Final = 4
"""Minimum length of a known name that an unknown one begins with."""


def closest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `given`, ignoring case; None if none is close.

    A unit may be missing (`slo` for `slo_ms`), an end be too long (`certificate` for `cert`).
    """
    names = {name.lower(): name for name in known}
    found = get_close_matches(given.lower(), names, n=1, cutoff=MIN_SIMILARITY)
    longer = [name for name in names if name.startswith(f"{given.lower()}_")]
    shorter = [name for name in names if len(name) >= MIN_STEM_CHARACTERS and given.lower().startswith(name)]
    alike = found or (longer if len(longer) == 1 else shorter)
    return names[alike[0]] if len(alike) == 1 else None


def did_you_mean(given: str, known: Iterable[str], heading: str) -> str:
    """Return the end of an error message about an unknown name `given`, with a suggestion and the known names.

    For example `; did you mean 'symphony'? Installed: fifs, symphony`, or without a similar name `; installed: fifs,
    symphony`. `heading`: noun for the known names, in lower case.
    """
    names = sorted(known)
    meant = closest(given, names)
    listed = f"{heading}: {', '.join(names) or 'none'}"
    return f"; {listed}" if meant is None else f"; did you mean {meant!r}? {listed[0].upper()}{listed[1:]}"


def check_each_once(what: str, names: Iterable[str], advice: str = "") -> None:
    """Raise ValueError if one of `names` is listed twice in the field `what`; `advice`: what to do about it."""
    if doubles := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"{what}: {doubles[0]!r} is listed twice{advice and f': {advice}'}")


MAX_SHOWN_CHARACTERS: Final = 60
"""Maximum number of characters of an invalid text that an error repeats."""


@dataclass(frozen=True)
class ValueProblem:
    """A requirement on a value, and the value that violates it."""

    wanted: str
    """A sentence without its subject, e.g. `must be a number`."""
    given: str = ""
    """Invalid value as text; empty if the requirement mentions it."""

    def __str__(self) -> str:
        return f"{self.wanted}, not {self.given}" if self.given else self.wanted


def value_problem(error: ErrorDetails) -> ValueProblem:
    """Return the problem with a value that pydantic rejected. `error`: includes its context."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if given is None and kind in _FIELDS:
        return ValueProblem("is empty")
    shown = _shown(given)
    match kind:
        case _ if kind in _TYPES_OF_VALUES:
            wanted = f"must be {_TYPES_OF_VALUES[kind]}"
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
            wanted, shown = _counted(kind, context, "entry", "entries"), str(context["actual_length"])
        case "union_tag_invalid":
            wanted, shown = f"{_tag(context)} must be one of {context['expected_tags']}", repr(context["tag"])
        case "missing" | "union_tag_not_found":
            wanted, shown = f"{_tag(context)} must be given".lstrip(), ""
        case "value_error" | "assertion_error":
            wanted, shown = str(context["error"]), ""
        case "json_invalid":
            wanted, shown = f"is no JSON: {context['error']}", ""
        case _:
            wanted = plain_message(error["msg"])
    return ValueProblem(wanted, shown)


def plain_message(message: str) -> str:
    """Return a message of pydantic in plain English; other libraries, such as typer, pass such messages on."""
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
MUST_BE_FIELDS: Final = "must be fields with values"
_TYPES_OF_VALUES: Final = {
    **dict.fromkeys(_FIELDS, MUST_BE_FIELDS.removeprefix("must be ")),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "a list"),
    **dict.fromkeys(("string_type", "invalid_key", "string_unicode"), "text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    "none_required": "left empty",
    "path_type": "a path",
}
"""Names of types for people who write files."""

_BOUNDS: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}


def _number(bound: object) -> str:
    return f"{bound:.12g}" if isinstance(bound, float) else str(bound)


def _tag(context: dict[str, Any]) -> str:
    """The field that says which member of a union is meant."""
    return str(context.get("discriminator", "")).strip("'")


def _counted(kind: str, context: dict[str, Any], one: str, many: str) -> str:
    word, bound = ("at least", "min_length") if kind.endswith("short") else ("at most", "max_length")
    count = context[bound]
    return f"must have {word} {count} {one if count == 1 else many}"


def _shown(given: object) -> str:
    match given:
        case None:
            return "nothing"
        case bool() | int() | float():
            return str(given).lower()
        case str():
            return repr(given if len(given) <= MAX_SHOWN_CHARACTERS else f"{given[:MAX_SHOWN_CHARACTERS]}...")
        case list() | tuple():
            return "a list"
        case dict():
            return "fields with values"
        case _:
            return f"a {type(given).__name__}"


WHOLE_DOCUMENT: Final = "document"
"""Location of an error that concerns no single field."""
_TYPES = ("list[", "tuple[", "dict[", "constrained-", "function-", "[key]")
"""How steps of a path begin that are types, not fields."""
_NAMES_ITS_FIELD = re.compile(r"([\w.]+): (.+)", re.DOTALL)
"""Pattern of messages of whole-document checks that begin with a field."""
Location = tuple[int | str, ...]


@dataclass(frozen=True)
class FieldError:
    """A field of a document, and what is wrong with it."""

    where: str
    """Path of the field, e.g. `models.0.slo_ms`."""
    what: str
    """The problem with the field."""

    def __str__(self) -> str:
        return self.what if self.where == WHOLE_DOCUMENT else f"{self.where}: {self.what}"


def field_errors(
    error: ValidationError, kind: type[BaseModel], *, whole: str = WHOLE_DOCUMENT, members: Container[str] = ()
) -> tuple[FieldError, ...]:
    """Return every error that pydantic found in a document of type `kind`.

    `whole`: location of errors that concern no single field. `members`: names of members of unions, which pydantic
    lists in the path although they are no fields; types among the steps are left out anyway.
    """
    errors = error.errors(include_url=False)
    places = [e["loc"] for e in errors]
    unknown = {e["loc"]: _meant(e["loc"], kind) for e in errors if e["type"] == "extra_forbidden"}
    missing = {e["loc"] for e in errors if e["type"] == "missing"}
    for location, meant in unknown.items():
        absent = _beside(location, missing)
        is_alone = len(absent) == len(_beside(location, unknown)) == 1
        if is_alone and not meant and not any(_places_of(kind, str(location[-1]))):
            unknown[location] = str(absent[0][-1])
    misspelt = {(*location[:-1], meant) for location, meant in unknown.items()}
    wrong: dict[str, list[ValueProblem]] = {}
    for e in errors:
        if e["type"] == "missing" and e["loc"] in misspelt:
            continue
        if _is_other_than_text(e["loc"], places, deeper=True):
            continue
        # A list whose every entry is wrong counts as empty: not worth a line of its own.
        if e["type"] == "too_short" and any(e["loc"] == place[: len(e["loc"])] != place for place in places):
            continue
        is_unknown = e["type"] == "extra_forbidden"
        what = ValueProblem(_no_such_field(e["loc"], kind, unknown[e["loc"]])) if is_unknown else value_problem(e)
        if what.wanted == MUST_BE_FIELDS and (example := _required_at(e["loc"], kind)):
            what = replace(what, wanted=f"{MUST_BE_FIELDS}, such as {example}: ...")
        steps = [str(step) for step in e["loc"] if step not in members]
        if _is_other_than_text(e["loc"], places):
            steps.pop()
        where = ".".join(step for step in steps if not step.startswith(_TYPES))
        if not where and (named := _NAMES_ITS_FIELD.match(what.wanted)):
            where, what = named[1], ValueProblem(named[2])
        wrong.setdefault(where or whole, []).append(what)
    return tuple(FieldError(where, what) for where, problems in wrong.items() for what in _as_one(problems))


def format_field_errors(source: str, wrong: Sequence[FieldError], *, most: int = 8) -> str:
    """Return the problems of the file `source` as text: one line with its name, or a line for each problem.

    `most`: maximum number of lines; further problems are only counted.
    """
    if len(wrong) == 1:
        return f"{source}: {wrong[0]}"
    more = [f"and {len(wrong) - most} more"] if len(wrong) > most else []
    return "\n  ".join([f"{source}:", *map(str, wrong[:most]), *more])


def _as_one(problems: Sequence[ValueProblem]) -> Iterator[str]:
    """Merge the problems that several members of a union report for one value into one sentence."""
    alike = {what.given for what in problems}
    if len(problems) == 1 or len(alike) > 1 or not all(what.wanted.startswith("must be ") for what in problems):
        yield from dict.fromkeys(map(str, problems))
        return
    wanted = dict.fromkeys(what.wanted.removeprefix("must be ") for what in problems)
    yield str(ValueProblem(f"must be {' or '.join(wanted)}", problems[0].given))


def _is_other_than_text(location: Location, places: Sequence[Location], *, deeper: bool = False) -> bool:
    """Whether it says that something is no text which may also be fields, and it is those that were tried.

    `deeper`: and there is something wrong within these, which is then what is to be said.
    """
    union, step = location[:-1], location[-1:]
    others = [place for place in places if place[: len(union)] == union and place != location]
    typed = [place for place in others if len(place) > len(union) and str(place[len(union)]).startswith(_TYPES)]
    return step == ("str",) and any(len(place) > len(location) or not deeper for place in typed)


def _beside(location: Location, others: Iterable[Location]) -> list[Location]:
    return [other for other in others if other[:-1] == location[:-1]]


def _no_such_field(location: Location, kind: type[BaseModel], meant: str | None) -> str:
    """Return a suggestion for an unknown field: the field `meant`, its place elsewhere, or the known fields."""
    if meant:
        return f"there is no such field; did you mean {meant}?"
    if elsewhere := next(_places_of(kind, str(location[-1])), None):
        return f"there is no such field here; did you mean {elsewhere}?"
    return f"there is no such field; there are: {', '.join(_fields_at(location[:-1], kind)) or 'none'}"


def _meant(location: Location, kind: type[BaseModel]) -> str | None:
    """The field that is called nearly as one that there is not."""
    return closest(str(location[-1]), _fields_at(location[:-1], kind))


def _required_at(location: Location, kind: type[BaseModel]) -> str | None:
    """Return the first required field of the section at a location; None: it has none."""
    at: list[Any] = [kind]
    for step in location:
        at = _inside(at, step)
    fields = (field for each in at if _is_model(each) for field in each.model_fields.items())
    return next((name for name, info in fields if info.is_required()), None)


def _fields_at(location: Location, kind: type[BaseModel]) -> list[str]:
    at: list[Any] = [kind]
    for step in location:
        at = _inside(at, step)
    return list(dict.fromkeys(field for each in at if _is_model(each) for field in each.model_fields))


def _places_of(kind: type[BaseModel], name: str) -> Iterator[str]:
    """Where in a document there is a field of this name, those nearest to the top first: `models.*.slo_ms`."""
    seen, level = {kind}, [("", kind)]
    while level:
        below = []
        for path, model in level:
            if name in model.model_fields:
                yield f"{path}{name}"
            for field, info in model.model_fields.items():
                for step, inner in _below(info.annotation):
                    if inner not in seen:
                        seen.add(inner)
                        below.append((f"{path}{field}.{step}", inner))
        level = below


def _below(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:  # noqa: ANN401 - whatever can be annotated
    """The models that a value of this type is, or holds, each with the step to it."""
    for each in _alternatives(annotation):
        if _is_model(each):
            yield "", each
        elif get_origin(each) is not None:
            for argument in get_args(each):
                yield from ((f"*.{step}", model) for step, model in _below(argument))


def _inside(types: Sequence[Any], step: int | str) -> list[Any]:
    """Return the types behind one step of a path, or the types themselves if the step only names one of them."""
    found: list[Any] = []
    for each in types:
        origin, arguments = get_origin(each), get_args(each)
        if _is_model(each):
            field = each.model_fields.get(str(step))
            found += _alternatives(field.annotation) if field else []
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            found += _alternatives(arguments[1])
        elif isinstance(step, int) and isinstance(origin, type) and issubclass(origin, Sequence):
            found += [inner for argument in arguments for inner in _alternatives(argument)]
    return found or list(types)


def _is_model(each: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(each, type) and issubclass(each, BaseModel)


def _alternatives(annotation: Any) -> list[Any]:  # noqa: ANN401 - whatever can be annotated
    """The members of a union, without what annotates them; anything else is its only member."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in _alternatives(member)]
    return [annotation]


def format_yaml_error(error: Exception) -> str:
    """Return the message and the position of a parser error (yaml.YAMLError) as one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"it is no YAML: {' '.join(str(error).split())}"
    if problem == "but found another document":
        return f"line {mark.line + 1} begins a second document (---): give each a file of its own"
    return f"it is no YAML: line {mark.line + 1}, column {mark.column + 1}: {' '.join(problem.split())}"
