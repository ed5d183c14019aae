"""Requests with something odd in them, wherever it may be: Triton and the http_server answer alike."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.proxy.servers.http.conftest import fetch
from tidegate_proxy.tritons.embedded import EmbeddedTriton

VALID: dict[str, Any] = {
    "id": "mine",
    "parameters": {"binary_data_output": True, "timeout": 60_000_000, "any": "text"},
    "inputs": [
        {"name": "X_FP32", "datatype": "FP32", "shape": [1, 2], "data": [0.1, 2]},
        {"name": "X_INT8", "datatype": "INT8", "shape": [1, 2], "parameters": {"binary_data_size": 2}},
        {"name": "X_STRING", "datatype": "BYTES", "shape": [1, 2], "data": [["a"], ["b:"]]},
    ],
    "outputs": [{"name": "Y_FP32", "parameters": {"binary_data": False}}, {"name": "Y_INT8"}],
}
# No number beyond these: as a shape it would take Triton more memory than there is.
ODD = st.sampled_from(
    [
        *(
            None,
            True,
            False,
            0,
            1,
            -1,
            2,
            3,
            300,
            1.5,
            -0.0,
            1e30,
            2.0**64,
            "",
            "X_FP32",
            "Y_INT8",
            "FP32",
            "INT8",
            "FP16",
        ),
        *("BYTES", "a\0b", "\u00e9\U0001f600", [], {}, [1], [1, 2], [[1, 2], [3]], {"a": 1}, [True], [None], ["x"]),
    ]
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from _places(value[key], (*path, key))


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The valid request, changed in up to two places."""
    document = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(_places(document)) or [("id",)]))
        holder: Any = document
        for key in path:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "remove", "repeat"]))
        if change == "replace" or (change == "repeat" and isinstance(holder, dict)):
            holder[last] = copy.deepcopy(draw(ODD))
        elif change == "repeat":
            holder.append(copy.deepcopy(holder[last]))
        else:
            holder.pop(last, None) if isinstance(holder, dict) else holder.pop(last)
    return document


@settings(max_examples=examples(1.5), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    document=documents(), tail=st.sampled_from([b"\x01\x02"] * 8 + [b"", b"\x01", b"\x01\x02\x03"]), plain=st.booleans()
)
def test_odd_requests(triton: EmbeddedTriton, http_server: Any, document: Any, tail: bytes, plain: bool) -> None:
    head = json.dumps(document, ensure_ascii=plain).encode()
    asked = ("POST", "/v2/models/all/infer", head + tail, {"Inference-Header-Content-Length": str(len(head))})
    assert fetch(http_server.http_address, *asked) == fetch(triton.http_address, *asked)
