"""Options of plugins as text: name, type with bounds, default and description."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import isclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_WORDS = {bool: "true or false", float: "number", int: "whole number", str: "text", NoneType: "none"}
_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


@dataclass(frozen=True)
class PluginOption:
    """An option of a plugin as text."""

    name: str
    type: str
    """Type as text, with its bounds, e.g. `number, at least 0`."""
    default: str | None
    """Default as written in a configuration; None: the option is required."""
    description: str


def options_of(options: type[BaseModel]) -> tuple[PluginOption, ...]:
    """Return the options of an options class, in order."""
    return tuple(
        PluginOption(name, _type_of(field), _default_of(field), field.description or "")
        for name, field in options.model_fields.items()
    )


def _type_of(field: FieldInfo) -> str:
    arguments = get_args(field.annotation)
    if NoneType not in arguments:
        return _with_bounds(_in_words(field.annotation), field.metadata)
    rest = _either([_in_words(kind) for kind in arguments if kind is not NoneType])
    return f"{_with_bounds(rest, field.metadata)}, or none"


def _default_of(field: FieldInfo) -> str | None:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return None
    if isinstance(default, BaseModel):
        default = default.model_dump(mode="json")
    if default is None:
        return "none"
    return default if isinstance(default, str) else json.dumps(default, default=str)


def _with_bounds(word: str, metadata: Iterable[object]) -> str:
    bounds = []
    for each in metadata:
        if type(each) in _BOUNDS:
            attribute, says = _BOUNDS[type(each)]
            bounds.append(f"{says} {getattr(each, attribute):g}")
        elif isinstance(each, FieldInfo):
            return _with_bounds(word, each.metadata)
    return ", ".join([word, *bounds])


def _in_words(kind: Any) -> str:  # noqa: ANN401 - an annotation
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _with_bounds(_in_words(arguments[0]), arguments[1:])
    if origin is Literal:
        return _either(list(map(str, arguments)))
    if origin in {Union, UnionType}:
        return _either(list(map(_in_words, arguments)))
    if isclass(origin):
        what = _in_words(arguments[-1] if issubclass(origin, Mapping) else arguments[0])
        return f"{'by name:' if issubclass(origin, Mapping) else 'list of'} {what}"
    if isclass(kind) and issubclass(kind, BaseModel):
        return f"fields ({', '.join(kind.model_fields)})"
    return _WORDS.get(kind) or getattr(kind, "__name__", str(kind)).lower()


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
