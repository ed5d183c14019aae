"""Inference over HTTP: scheduled, and yet every byte of the answer is Triton's."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.proxy.servers.http.conftest import request_body

Alike = Callable[..., Any]
Body = Callable[..., bytes]
ECHO = "/v2/models/echo/infer"
ALL = "/v2/models/all/infer"
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP32": [0.1, -0.0, 1, 1e21, 1e22, 1e-6, 1e-7, 3.4e38, 1e39, 1e-45, 16777216.5],
    "FP64": [0.1, 1e308, 5e-324, 2.2250738585072014e-308, 123456789012345678, 0.30000000000000004],
    "STRING": ["", "plain", 'quo"te\\ and/slash', "\u00e9\u2028\U0001f600", "\u0000\u0001\u001f\u007f\b\f\n\r\t"],
}
KINDS: dict[str, Any] = {
    "BOOL": np.bool_,
    "STRING": np.object_,
    **{f"FP{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
}


def _numpy(kind: str, values: list[Any]) -> "np.ndarray[Any, Any]":
    array: np.ndarray[Any, Any] = np.array(values, KINDS.get(kind, kind.lower()))
    return array


def _raw(kind: str, values: list[Any]) -> bytes:
    if kind != "STRING":
        with np.errstate(over="ignore"):
            return _numpy(kind, values).tobytes()
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in values)


def _name(kind: str) -> str:
    return "BYTES" if kind == "STRING" else kind


def _binary(inputs: list[tuple[str, list[Any], bytes]], **more: object) -> tuple[bytes, dict[str, str]]:
    """A request whose inputs are binary, and its headers."""
    entries = [
        {
            "name": f"X_{kind}",
            "datatype": _name(kind),
            "shape": [1, len(values)],
            "parameters": {"binary_data_size": len(raw)},
        }
        for kind, values, raw in inputs
    ]
    head = json.dumps({"inputs": entries, **more}).encode()
    body = head + b"".join(raw for _, _, raw in inputs)
    return body, {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("binary_output", [False, True])
def test_json_of_every_datatype(alike: Alike, kind: str, binary_output: bool) -> None:
    entry = {"name": f"X_{kind}", "datatype": _name(kind), "shape": [1, len(VALUES[kind])], "data": VALUES[kind]}
    request = {"inputs": [entry], "parameters": {"binary_data_output": binary_output}}
    answer = alike("POST", ALL, json.dumps(request).encode(), scheduled=True)
    assert answer.status == 200
    assert (answer.header("inference-header-content-length") is not None) == binary_output


@pytest.mark.parametrize("kind", [*VALUES, "FP16"])
@pytest.mark.parametrize("binary_output", [False, True])
def test_binary_of_every_datatype(alike: Alike, kind: str, binary_output: bool) -> None:
    values = VALUES.get(kind, [1.5, -2, 65504])
    body, headers = _binary(
        [(kind, values, _raw(kind, values))],
        outputs=[{"name": f"Y_{kind}", "parameters": {"binary_data": binary_output}}],
    )
    answer = alike("POST", ALL, body, headers, scheduled=True)
    assert answer.status == (400 if kind == "FP16" and not binary_output else 200)


@pytest.mark.parametrize("binary_output", [False, True])
def test_bfloat16_is_binary_only(alike: Alike, binary_output: bool) -> None:
    head = request_body(
        {"datatype": "BF16", "parameters": {"binary_data_size": 2}}, parameters={"binary_data_output": binary_output}
    )
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = alike("POST", "/v2/models/bf16/infer", head + b"\x80\x3f", headers, scheduled=True)
    assert answer.status == (200 if binary_output else 400)


def test_every_datatype_at_once_each_output_as_asked(alike: Alike) -> None:
    inputs = [(kind, values, _raw(kind, values)) for kind, values in VALUES.items()]
    outputs = [
        {"name": f"Y_{kind}", "parameters": {"binary_data": position % 2 == 0}} for position, kind in enumerate(VALUES)
    ]
    body, headers = _binary(inputs, outputs=outputs[::-1], id="all of them")
    assert alike("POST", ALL, body, headers, scheduled=True).status == 200


def test_binary_and_json_inputs_side_by_side(alike: Alike) -> None:
    entries = [
        {"name": "X_INT8", "datatype": "INT8", "shape": [1, 2], "parameters": {"binary_data_size": 2}},
        {"name": "X_FP32", "datatype": "FP32", "shape": [1, 2], "data": [[1.5], 2]},
        {"name": "X_FP64", "datatype": "FP64", "shape": [1, 2], "data": [1.5, 2]},
        {"name": "X_STRING", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 6}},
    ]
    for listed in (entries[2:], entries):  # the second data mixes arrays and numbers, which Triton takes
        head = json.dumps({"inputs": listed}).encode()
        tail = b"\x01\x02" * (listed is entries) + b"\x02\x00\x00\x00\xff\xfe"
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = alike("POST", ALL, head + tail, headers, scheduled=listed is not entries)
        assert b'"data":["\xff\xfe"]' in answer.body


@pytest.mark.parametrize(
    "names", [["Y_INT8"], ["Y_FP32", "Y_INT8"], []], ids=["one", "both, the other way round", "none"]
)
def test_requested_outputs(alike: Alike, names: list[str]) -> None:
    body, headers = _binary(
        [("INT8", [1], b"\x01"), ("FP32", [1], bytes(4))], outputs=[{"name": name} for name in names]
    )
    answer = alike("POST", ALL, body, headers, scheduled=True)
    assert len(json.loads(answer.body)["outputs"]) == (len(names) or 2)


@pytest.mark.parametrize(
    ("data", "shape"),
    [([[1, 2], [3, 4]], [2, 2]), ([1, 2, 3, 4], [2, 2]), ([[[1], [2]]], [1, 2]), ([], [1, 0]), ([7], [1, 0])],
)
def test_data_may_be_nested_in_any_way(alike: Alike, data: list[Any], shape: list[int]) -> None:
    assert alike("POST", ECHO, request_body({"data": data, "shape": shape}), scheduled=True).status == 200


@pytest.mark.parametrize("kind", ["INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32"])
def test_integers_wrap_around(alike: Alike, kind: str) -> None:
    values = [300, 2**40 + 7, *([] if kind.startswith("U") else [-(2**50) - 3])]
    entry = {"name": f"X_{kind}", "datatype": kind, "shape": [1, len(values)], "data": values}
    assert alike("POST", ALL, json.dumps({"inputs": [entry]}).encode(), scheduled=True).status == 200


@pytest.mark.parametrize("name", ["mine", 'a"b\\/\u00e9\u001f\t', "colon: comma, ", ""])
def test_ids_come_back(alike: Alike, name: str) -> None:
    assert alike("POST", ECHO, request_body({"data": [1]}, id=name), scheduled=True).status == 200


@pytest.mark.parametrize("value", [1, -(2**63), 2**63, 2**64, 1.5, 1e3, True, False, "text", "caf\u00e9", ""], ids=repr)
def test_parameters_reach_the_model(alike: Alike, value: object) -> None:
    body = request_body({"data": [1]}, parameters={"mine": value})
    answer = alike("POST", "/v2/models/shows/infer", body, scheduled=True)
    assert b"mine" in answer.body


def test_priority_and_timeout_are_no_parameters_of_the_model(alike: Alike) -> None:
    body = request_body({"data": [1]}, parameters={"priority": 0, "timeout": 60_000_000})
    assert b'["{}"]' in alike("POST", "/v2/models/shows/infer", body, scheduled=True).body


@pytest.mark.parametrize("special", [b"NaN", b"Inf", b"-Inf", b"Infinity", b"-0", b"1E5", b"18446744073709551616"])
def test_numbers_that_only_some_parsers_take(alike: Alike, special: bytes) -> None:
    body = request_body({"data": ["it"]}).replace(b'"it"', special)
    assert alike("POST", ECHO, body, scheduled=True).status == 200


def test_random_doubles_are_read_and_printed_to_the_last_digit(alike: Alike) -> None:
    random = np.random.default_rng(7)
    bits = random.integers(0, 2**64, 3000, dtype=np.uint64).view(np.float64)
    values = [*bits[np.isfinite(bits)].tolist(), *random.normal(size=3000).tolist()]
    entry = {"name": "X_FP64", "datatype": "FP64", "shape": [1, len(values)], "data": values}
    assert alike("POST", ALL, json.dumps({"inputs": [entry]}).encode(), scheduled=True).status == 200


def test_special_doubles_are_printed_as_triton_does(alike: Alike) -> None:
    powers = 2.0 ** np.arange(-1074, 1024)
    values = [*powers.tolist(), *(float(f"1e{power}") for power in range(-323, 309)), float("nan"), float("-inf")]
    body, headers = _binary([("FP64", values, np.array(values).tobytes())])
    assert alike("POST", ALL, body, headers, scheduled=True).status == 200


@pytest.mark.parametrize("size", [0, 4, 400])
def test_raw_binary_of_variable_size(alike: Alike, size: int) -> None:
    answer = alike("POST", ECHO, bytes(size), {"Inference-Header-Content-Length": "0"}, scheduled=True)
    assert (answer.header("content-type") == "application/octet-stream") == bool(size)


def test_raw_binary_of_fixed_size(alike: Alike) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    assert alike("POST", "/v2/models/three/infer", bytes(12), headers, scheduled=True).status == 200
    assert alike("POST", "/v2/models/three/infer", bytes(16), headers).status == 400


def test_raw_binary_string(alike: Alike) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    answer = alike("POST", "/v2/models/word/infer", b"any \xff bytes", headers, scheduled=True)
    assert answer.body.endswith(b"any \xff bytes")


def test_without_any_body_it_is_a_raw_request(alike: Alike) -> None:
    assert alike("POST", ECHO, scheduled=True).status == 200


@pytest.mark.parametrize("version", ["1", "01"])
def test_version_in_the_path(alike: Alike, version: str) -> None:
    path = f"/v2/models/echo/versions/{version}/infer"
    assert alike("POST", path, request_body({"data": [1]}), scheduled=True).status == 200


@pytest.mark.parametrize(
    "accepted",
    [
        *("gzip", "deflate", "gzip, deflate", "deflate, gzip", "identity", "br", "", "*", "gzip;q=0"),
        *(
            "gzip;q=0.5, deflate;q=0.7",
            "gzip;q=x, deflate",
            "GZIP",
            "identity;q=1, gzip;q=1",
            "gzip ;q=1, deflate;q=.1",
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 5000], ids=["small", "large"])
def test_compressed_responses(alike: Alike, accepted: str, count: int) -> None:
    body = request_body({"data": list(range(count)), "shape": [1, count]})
    alike("POST", ECHO, body, {"Accept-Encoding": accepted}, scheduled=True)


def test_compressed_binary_response(alike: Alike) -> None:
    body = request_body({"data": [0] * 999, "shape": [1, 999]}, parameters={"binary_data_output": True})
    answer = alike("POST", ECHO, body, {"Accept-Encoding": "gzip"}, scheduled=True)
    assert gzip.decompress(answer.body).endswith(bytes(4 * 999))


@pytest.mark.parametrize("count", [1, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
def test_compressed_requests(alike: Alike, encoding: str, count: int) -> None:
    body, headers = _binary([("FP32", [0] * count, np.arange(count, dtype=np.float32).tobytes())])
    packers: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
    answer = alike("POST", ALL, packers[encoding](body), {**headers, "Content-Encoding": encoding}, scheduled=True)
    assert answer.status == 200


def test_gzip_called_deflate_is_gzip_all_the_same(alike: Alike) -> None:
    packed = gzip.compress(request_body({"data": [1]}))
    assert alike("POST", ECHO, packed, {"Content-Encoding": "deflate"}, scheduled=True).status == 200


def test_large_tensors(alike: Alike) -> None:
    values = np.random.default_rng(1).integers(0, 2**32, 2_000_000, dtype=np.uint32).tobytes()
    body, headers = _binary(
        [("UINT32", [0] * 2_000_000, values)], outputs=[{"name": "Y_UINT32", "parameters": {"binary_data": True}}]
    )
    assert alike("POST", ALL, body, headers, scheduled=True).body.endswith(values)


@pytest.mark.parametrize(
    "code", ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS"]
)
def test_a_models_errors_have_tritons_status(alike: Alike, code: str) -> None:
    entry = {"name": "X", "datatype": "BYTES", "shape": [1, 1], "data": [code]}
    answer = alike("POST", "/v2/models/fails/infer", json.dumps({"inputs": [entry]}).encode(), scheduled=True)
    assert answer.status >= 400


def test_a_model_that_breaks(alike: Alike) -> None:
    answer = alike("POST", "/v2/models/breaks/infer", request_body({"data": [1]}), scheduled=True)
    assert answer.status == 500
