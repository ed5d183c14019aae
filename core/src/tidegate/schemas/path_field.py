"""Documents as fields of options: given inline, or as the path of a file."""

from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tidegate.schemas.document import DocumentError, read_document


class PathField:
    """Marks a field that pydantic reads from a path: `layout: Annotated[Layout, PathField()]`.

    Paths are relative to the folder of the file that names them; code with such options needs no file access.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        def read(given: object, info: core_schema.ValidationInfo) -> object:
            if not isinstance(given, str):
                return given
            folder = Path((info.context or {}).get("folder", "."))
            try:
                return read_document(folder / given, source)
            except DocumentError as error:
                raise ValueError(str(error)) from error

        return core_schema.with_info_before_validator_function(read, handler(source))
