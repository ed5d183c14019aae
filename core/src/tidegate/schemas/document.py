"""Documents as files: JSON or YAML in, JSON out, with errors that name file, field and remedy."""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import AfterValidator, Field, GetCoreSchemaHandler, ValidationError, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tidegate.api import VersionedDocument
from tidegate.api.device import Device, Slice
from tidegate.schemas.validation_errors import field_errors, format_field_errors, format_yaml_error

Name = Annotated[str, Field(min_length=1, max_length=200)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]


class DocumentError(Exception):
    """Error: a document cannot be used; the message names file, field and remedy."""


D = TypeVar("D", bound=VersionedDocument)


def read_document(path: Path, kind: type[D]) -> D:
    """Read a document of type `kind`: JSON, or YAML by the file's suffix. Raises DocumentError."""
    data = _parse(path)
    try:
        return kind.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        named = kind.model_fields.get("kind")
        wanted = f"a document of kind {named.default!r}" if named else "what this command takes"
        if why := other_kind(data, wanted, str(path)):
            raise DocumentError(f"{path}: {why}") from error
        given = data.get("kind") if isinstance(data, dict) and named else None
        if isinstance(given, str) and named and given != named.default:
            is_plan = named.default == "layout" and given.endswith("_plan")
            remedy = "; `tidegate plan ... --layout FILE` writes the layout" if is_plan else ""
            raise DocumentError(f"{path}: it is a document of kind {given!r}, not {named.default!r}{remedy}") from error
        raise DocumentError(format_field_errors(str(path), field_errors(error, kind))) from error


def write_document(path: Path, document: VersionedDocument) -> None:
    """Write a document as JSON. Raises OSError."""
    path.write_text(document.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _parse(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise DocumentError(f"{path}: {why}; give a JSON or YAML file") from error
    if path.suffix not in {".yaml", ".yml"}:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise DocumentError(f"{path}: it is no JSON: {error}; a YAML file is named .yaml") from error
    try:
        import yaml  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise DocumentError(f'{path}: YAML needs `pip install "tidegate[sim]"`; JSON does not') from error
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise DocumentError(f"{path}: {format_yaml_error(error)}") from error


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - whatever YAML can say
    """Return the content of a YAML text. Raises yaml.YAMLError, also for a field that stands there twice."""
    import yaml  # noqa: PLC0415 - of the extra `sim`

    return yaml.load(text, _loader())


@cache
def _loader() -> Any:  # noqa: ANN401 - yaml is untyped
    import yaml  # noqa: PLC0415

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """SafeLoader that refuses a field that stands there twice, of which YAML would keep the last."""

        def compose_mapping_node(self, anchor: Any) -> Any:  # noqa: ANN401
            """Return the mapping before merges (`<<`), if no key is repeated."""
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    words = f"{key.value!r} stands there twice; leave one of them out"
                    raise yaml.MarkedYAMLError(problem=words, problem_mark=key.start_mark)
                seen.add(key.value)
            return node

    return Loader


DOCUMENT_KINDS: Final = {
    "a scenario": ({"arrivals"}, "`tidegate simulate {file}`, `loadtest` or `recommend`"),
    "a configuration of `tidegate serve`": ({"tritons", "shards"}, "`tidegate serve {file}`, `check` or `doctor`"),
}
"""For each kind of document the fields that identify it, and the commands that take it."""


def other_kind(data: object, wanted: str, file: str) -> str:
    """Return an error if a document is of another kind than `wanted`, with the commands that take it; else "".

    `data`: content of the document. `wanted`: a key of DOCUMENT_KINDS, or words for a document of no such kind. `file`:
    its path, for the message.
    """
    if not isinstance(data, dict) or (wanted in DOCUMENT_KINDS and data.keys() & DOCUMENT_KINDS[wanted][0]):
        return ""
    for kind, (fields, commands) in DOCUMENT_KINDS.items():
        if kind != wanted and data.keys() & fields:
            return f"it is {kind}, not {wanted}: give it to {commands.format(file=file)}"
    return ""


class _Struct:
    """Has pydantic leave a value to msgspec: a struct or what a file says of it in, builtin types out."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        del handler

        def read(given: object) -> object:
            if isinstance(given, msgspec.Struct):
                given = msgspec.to_builtins(given)
            try:
                return msgspec.convert(given, source)
            except msgspec.ValidationError as error:
                raise ValueError(str(error).replace(" - at `$.", " in `")) from error

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins)
        )


DeviceField = Annotated[Device, _Struct()]
SliceField = Annotated[Slice, _Struct()]


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder of the file that is read, to which its paths are relative; `info`: that of the validator."""
    return Path((info.context or {}).get("folder", "."))


def _from_folder(given: str, info: ValidationInfo) -> str:
    return str(folder_of(info) / given)


DocumentPath = Annotated[str, AfterValidator(_from_folder)]
"""Path of another file, relative to the folder of the file that names it."""


class PathField:
    """Marks a field that pydantic reads from a path: `layout: Annotated[Layout, PathField()]`.

    Paths are relative to the folder of the file that names them; code with such options needs no file access.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        def read(given: object, info: core_schema.ValidationInfo) -> object:
            if not isinstance(given, str):
                return given
            try:
                return read_document(folder_of(info) / given, source)
            except DocumentError as error:
                raise ValueError(str(error)) from error

        return core_schema.with_info_before_validator_function(read, handler(source))
