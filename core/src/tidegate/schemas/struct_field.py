"""Types of the plugin API as fields of documents, read by msgspec, so that each type is defined once."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tidegate.api.device import Device, Slice
from tidegate.schemas.document import DocumentError, read_document


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
