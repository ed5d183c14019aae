"""Documents as files: JSON or YAML in, JSON out, with errors that name file, field and remedy."""

import json
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from tidegate.api import VersionedDocument
from tidegate.schemas.validation_errors import field_errors, format_field_errors, format_yaml_error


class DocumentError(Exception):
    """Error: a document cannot be used; the message names file, field and remedy."""


D = TypeVar("D", bound=VersionedDocument)


def read_document(path: Path, kind: type[D]) -> D:
    """Read a document of type `kind`: JSON, or YAML by the file's suffix. Raises DocumentError."""
    data = _parse(path)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        named = kind.model_fields.get("kind")
        wanted = f"a document of kind {named.default!r}" if named else "what this command takes"
        if why := other_kind(data, wanted, str(path)):
            raise DocumentError(f"{path}: {why}") from error
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
        import yaml  # noqa: PLC0415 - of the extra `sim`
    except ModuleNotFoundError as error:
        raise DocumentError(f'{path}: YAML needs `pip install "tidegate[sim]"`; JSON does not') from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DocumentError(f"{path}: {format_yaml_error(error)}") from error


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
