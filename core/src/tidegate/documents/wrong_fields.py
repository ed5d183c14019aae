"""What is wrong with a document, field by field, in words: for all files and all options that people write."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tidegate.documents.did_you_mean import closest
from tidegate.documents.wrong_value import WrongValue, wrong_value

WHOLE: Final = "document"
"""Where something is wrong of which no single field is to blame."""
_TYPES = ("list[", "tuple[", "dict[", "constrained-", "function-", "[key]")
"""How steps of a path begin that are types, not fields."""
_NAMES_ITS_FIELD = re.compile(r"([\w.]+): (.+)", re.DOTALL)
"""What a check of the whole document says, where it begins with the field that it is about."""
Location = tuple[int | str, ...]


@dataclass(frozen=True)
class WrongField:
    """A field, and what is wrong with it."""

    where: str
    """The path of the field, e.g. `models.0.slo_ms`."""
    what: str
    """What is wrong with it."""

    def __str__(self) -> str:
        return self.what if self.where == WHOLE else f"{self.where}: {self.what}"


def wrong_fields(
    error: ValidationError, kind: type[BaseModel], *, whole: str = WHOLE, members: Container[str] = ()
) -> tuple[WrongField, ...]:
    """Every field that pydantic refuses of a document of this kind.

    `whole`: what the document itself is called where no field is to blame. `members`: names of members of unions, which
    pydantic takes for steps of the path though no field is called so; types among the steps are left out anyway.
    """
    errors = error.errors(include_url=False)
    places = [e["loc"] for e in errors]
    misspelt = {(*e["loc"][:-1], _meant(e["loc"], kind)) for e in errors if e["type"] == "extra_forbidden"}
    wrong: dict[str, list[WrongValue]] = {}
    for e in errors:
        if e["type"] == "missing" and e["loc"] in misspelt:
            continue
        if _is_other_than_text(e["loc"], places, deeper=True):
            continue
        # A list whose every entry is wrong counts as empty: not worth a line of its own.
        if e["type"] == "too_short" and any(e["loc"] == place[: len(e["loc"])] != place for place in places):
            continue
        unknown = e["type"] == "extra_forbidden"
        what = WrongValue(_no_such_field(e["loc"], kind)) if unknown else wrong_value(e)
        steps = [str(step) for step in e["loc"] if step not in members]
        if _is_other_than_text(e["loc"], places):
            steps.pop()
        where = ".".join(step for step in steps if not step.startswith(_TYPES))
        if not where and (named := _NAMES_ITS_FIELD.match(what.wanted)):
            where, what = named[1], WrongValue(named[2])
        wrong.setdefault(where or whole, []).append(what)
    return tuple(WrongField(where, what) for where, said in wrong.items() for what in _as_one(said))


def in_lines(source: str, wrong: Sequence[WrongField], *, most: int = 8) -> str:
    """What is wrong with a file: one line that begins with its name, or, where more is wrong, a line for each.

    Beyond `most` lines the rest is only counted.
    """
    if len(wrong) == 1:
        return f"{source}: {wrong[0]}"
    more = [f"and {len(wrong) - most} more"] if len(wrong) > most else []
    return "\n  ".join([f"{source}:", *map(str, wrong[:most]), *more])


def _as_one(said: Sequence[WrongValue]) -> Iterator[str]:
    """What members of a union say of one value, as one sentence: a number or a list, not text."""
    alike = {what.given for what in said}
    if len(said) == 1 or len(alike) > 1 or not all(what.wanted.startswith("must be ") for what in said):
        yield from dict.fromkeys(map(str, said))
        return
    wanted = dict.fromkeys(what.wanted.removeprefix("must be ") for what in said)
    yield str(WrongValue(f"must be {' or '.join(wanted)}", said[0].given))


def _is_other_than_text(location: Location, places: Sequence[Location], *, deeper: bool = False) -> bool:
    """Whether it says that something is no text which may also be fields, and it is those that were tried.

    `deeper`: and there is something wrong within these, which is then what is to be said.
    """
    union, step = location[:-1], location[-1:]
    others = [place for place in places if place[: len(union)] == union and place != location]
    typed = [place for place in others if len(place) > len(union) and str(place[len(union)]).startswith(_TYPES)]
    return step == ("str",) and any(len(place) > len(location) or not deeper for place in typed)


def _no_such_field(location: Location, kind: type[BaseModel]) -> str:
    """What may have been meant: a field called nearly so, one that belongs elsewhere, or one of those that are."""
    if meant := _meant(location, kind):
        return f"there is no such field; did you mean {meant}?"
    if elsewhere := next(_shards(kind, str(location[-1])), None):
        return f"there is no such field here; did you mean {elsewhere}?"
    return f"there is no such field; there are: {', '.join(_fields_at(location[:-1], kind)) or 'none'}"


def _meant(location: Location, kind: type[BaseModel]) -> str | None:
    """The field that is called nearly as one that there is not."""
    return closest(str(location[-1]), _fields_at(location[:-1], kind))


def _fields_at(location: Location, kind: type[BaseModel]) -> list[str]:
    """The fields that a section may have."""
    at: list[Any] = [kind]
    for step in location:
        at = _inside(at, step)
    return list(dict.fromkeys(field for each in at if _is_model(each) for field in each.model_fields))


def _shards(kind: type[BaseModel], name: str) -> Iterator[str]:
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
    """What is behind a step of a path; the types themselves where the step only names one of them."""
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
