"""Types of the plugin API as fields of documents, read by msgspec, so that each type is defined once."""

from typing import Annotated, Any

import msgspec
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tidegate.api.device import Device, Slice


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
