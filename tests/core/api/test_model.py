"""A request has rows, however it comes about."""

import msgspec
import pytest

from tidegate.api import Request


@pytest.mark.parametrize("rows", [0, -1])
def test_there_is_no_request_without_rows(rows: int) -> None:
    with pytest.raises(ValueError, match="has at least 1"):
        Request(0, "m", rows, 0)
    request = Request(0, "m", 1, 0)
    with pytest.raises(ValueError, match="has at least 1"):
        msgspec.structs.replace(request, rows=rows)
    line = msgspec.json.encode(request).replace(b'"rows":1', f'"rows":{rows}'.encode())
    with pytest.raises(msgspec.ValidationError, match="has at least 1"):
        msgspec.json.decode(line, type=Request)
