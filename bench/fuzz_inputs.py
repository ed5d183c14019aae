"""Malformed requests, each generated from a seed and a number: content and transport."""

import gzip
import json
import random
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from tritonclient.grpc import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL, WORDS = "numbers", "words"
"""Models under attack: FP32 and BYTES, from X to Y, batchable."""
Way = Literal["unary", "stream", "http", "tcp"]
METHODS = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "RepositoryIndex", "SystemSharedMemoryStatus", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "SystemSharedMemoryRegister", "ModelInfer", "Nope",
)  # fmt: skip
"""Methods of Triton's service to call; those that change loaded models or logging are left out."""
NAMES = ["", "X", "Y", "x" * 5000, "X\0", "..", "/", "ü", MODEL, WORDS, "nope", "%00", "1", "-1"]
PARAMETERS = [
    "timeout", "priority", "sequence_id", "sequence_start", "shared_memory_region", "classification", "binary_data",
    "shared_memory_byte_size", "shared_memory_offset", "slo_ms", "triton_final_response", "", "x" * 999,
]  # fmt: skip
REGIONS = [
    "tidegate-1-0", "tidegate-", "tidegate_1", "/tidegate-1-0", "//tidegate-1", "triton_python_backend_shm_region_1",
    "triton_python_backend_shm_region_", "mine", "/mine", "/../tidegate-1", "tidegate-1\0", "x" * 300, "TIDEGATE-1-0",
]  # fmt: skip
"""Names of shared-memory regions that clients must not use, and imitations."""
IMITATIONS = [
    "a=0a0178;b", "a;b", "a=b", "('a', 1)", "a\0b", "a\nb",
    "timeout ", "Timeout", "triton_x", "tidegate_scheduling", "ü" * 99,
]  # fmt: skip
"""Names of parameters that imitate other parameters."""
METADATA: list[tuple[str, str | bytes]] = [
    ("te", "trailers"), ("tenant-id", "a"), ("team", "x" * 5000), ("temperature", ""), ("triton-grpc-protocol-a", "b"),
    ("authorization", "Bearer x"), ("grpc-timeout", "1n"), ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-00"),
    ("traceparent", "nonsense"), ("triton_grpc_error", "true"), ("triton_grpc_error", "maybe"),
    ("x-bin", b"\0\xff" * 50), ("a" * 900, "b"), ("priority", "-1"), ("timeout", "1"), ("slo_ms", "nan"),
    ("slo_ms", "1e400"),
]  # fmt: skip
INFLATED = 64 << 20
"""Inflated size of a decompression bomb in bytes; the proxy accepts a quarter of it."""
NUMBERS = [0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**40, 2**60 + 2, 2**63 - 1, -(2**63), 255]
TYPES = ["", "FP32", "BYTES", "INT64", "BOOL", "BF16", "FP16", "UINT8", "fp32", "FP33", "FP32\0", "X" * 999]


@dataclass(frozen=True)
class Input:
    """One malformed input."""

    way: Way
    content: bytes | list[bytes]
    """For a call its message, for a stream its messages, else the bytes for the socket."""
    method: str = ""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    """Metadata of a call or stream."""
    pieces: int = 1
    """Number of pieces in which bytes are written to the socket, with a pause after each."""
    compressed: bool = False
    """Whether the messages of a call or stream are compressed."""


def make_input(seed: int, index: int) -> Input:
    """Return the input with number `index`."""
    rng = random.Random(f"{seed}/{index}")
    kinds = [_unary, _other_call, _stream, _http_infer, _http_anything, _no_http_2, _http_2, _http_bomb, _grpc_bomb]
    make: Callable[[random.Random], Input] = rng.choices(kinds, [30, 8, 10, 30, 20, 2, 4, 0.3, 0.1])[0]
    made = make(rng)
    if made.way in ("unary", "stream"):
        metadata = tuple(rng.sample(METADATA, rng.choice([0, 0, 1, 3])))
        return replace(made, metadata=metadata, compressed=made.compressed or rng.random() < 0.1)
    return replace(made, pieces=rng.choice([2, 5, 20]) if rng.random() < 0.1 else 1)


def good_request(model: str = MODEL, rows: int = 1) -> service_pb2.ModelInferRequest:
    """Return a well-formed request."""
    request = service_pb2.ModelInferRequest(model_name=model, id="good")
    if model == MODEL:
        request.inputs.add(name="X", datatype="FP32", shape=[rows, 2])
        request.raw_input_contents.append(b"\0\0\x80?" * rows * 2)
    else:
        request.inputs.add(name="X", datatype="BYTES", shape=[rows, 1])
        request.raw_input_contents.append(b"\3\0\0\0abc" * rows)
    return request


def _request(rng: random.Random) -> bytes:
    """A request that is wrong in some ways."""
    request = good_request(rng.choice([MODEL, WORDS]), rng.randint(1, 3))
    for _ in range(rng.randint(0, 3)):
        rng.choice(_CHANGES)(rng, request)
    serialized: bytes = request.SerializeToString()
    return _mangled(rng, serialized) if rng.random() < 0.5 else serialized


def _change_shape(rng: random.Random, request: Any) -> None:  # noqa: ANN401 - protobuf messages share no type
    tensor = request.inputs[0] if request.inputs else request.inputs.add()
    tensor.ClearField("shape")
    tensor.shape.extend(rng.choice(NUMBERS) for _ in range(rng.randint(0, 4)))


def _change_contents(rng: random.Random, request: Any) -> None:  # noqa: ANN401
    what = rng.randint(0, 3)
    if what == 0:
        request.raw_input_contents.append(rng.randbytes(rng.choice([0, 1, 8, 100])))
    elif what == 1:
        del request.raw_input_contents[:]
    elif what == 2:
        request.raw_input_contents[:] = [rng.randbytes(rng.choice([0, 3, 7, 9, 5000]))]
    elif request.inputs:
        request.inputs[0].contents.fp32_contents.extend([1.0] * rng.randint(1, 9))


def _change_names(rng: random.Random, request: Any) -> None:  # noqa: ANN401
    what = rng.randint(0, 3)
    if what == 0:
        request.model_name = rng.choice(NAMES)
    elif what == 1:
        request.model_version = rng.choice(["9", "-1", "one", "1\0", "99999999999999999999", "1.0"])
    elif what == 2 and request.inputs:
        request.inputs[0].name = rng.choice(NAMES)
    else:
        request.outputs.add(name=rng.choice(NAMES))


def _change_types(rng: random.Random, request: Any) -> None:  # noqa: ANN401
    if request.inputs:
        request.inputs[0].datatype = rng.choice(TYPES)


def _change_parameters(rng: random.Random, request: Any) -> None:  # noqa: ANN401
    where = rng.choice([request, *request.inputs, *request.outputs])
    name = rng.choice([*PARAMETERS, *IMITATIONS, "shared_memory_region"])
    parameter = where.parameters[name]
    what = rng.randint(0, 3)
    if what == 0 or name == "shared_memory_region":
        parameter.string_param = rng.choice([*NAMES, *REGIONS])
    elif what == 1:
        parameter.int64_param = rng.choice(NUMBERS)
    elif what == 2:
        parameter.bool_param = True
    else:
        parameter.double_param = rng.choice([0.0, -1.5, 1e308, float("nan"), float("inf")])


def _double_inputs(rng: random.Random, request: Any) -> None:  # noqa: ANN401
    for _ in range(rng.choice([1, 1, 1, 300])):
        if request.inputs:
            request.inputs.add().CopyFrom(request.inputs[0])


_CHANGES = [_change_shape, _change_contents, _change_names, _change_types, _change_parameters, _double_inputs]


def _mangled(rng: random.Random, content: bytes) -> bytes:
    """Cut, flipped, repeated, inserted."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        what = rng.randint(0, 4)
        if what == 0:
            del data[at:]
        elif what == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            data[at:at] = rng.choice([b"\xff" * 11, b"\0", b"\x80\x80\x80\x80\x10", rng.randbytes(rng.randint(1, 9))])
        elif what == 3:
            data[at:at] = data[: rng.randrange(len(data) + 1)]
        else:
            del data[at : at + rng.randint(1, 9)]
    return bytes(data)


def _unary(rng: random.Random) -> Input:
    return Input("unary", _request(rng), "ModelInfer")


def _other_call(rng: random.Random) -> Input:
    named = _mangled(rng, b"\x0a\x07numbers\x12\x011")
    region = service_pb2.SystemSharedMemoryRegisterRequest(
        name=rng.choice(REGIONS), key=rng.choice(["/nope", *REGIONS]), offset=rng.choice([0, 2**63]), byte_size=4
    )
    contents = [b"", rng.randbytes(rng.randint(1, 50)), named, _request(rng), region.SerializeToString()]
    content = rng.choice(contents)
    return Input("unary", content, rng.choice(METHODS))


def _stream(rng: random.Random) -> Input:
    return Input("stream", [_request(rng) for _ in range(rng.randint(1, 5))])


@cache
def _inflated() -> bytes:
    """A request of which a few kilobytes are left when it is compressed."""
    request = good_request(rows=1)
    request.raw_input_contents[0] = bytes(INFLATED)
    serialized: bytes = request.SerializeToString()
    return serialized


def _grpc_bomb(rng: random.Random) -> Input:
    if rng.random() < 0.5:
        return Input("unary", _inflated(), "ModelInfer", compressed=True)
    return Input("stream", [_inflated()], compressed=True)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _no_http_2(rng: random.Random) -> Input:
    frames = b"".join(
        rng.choice([0, 5, 100, 2**24 - 1]).to_bytes(3, "big") + rng.randbytes(6 + rng.choice([0, 5, 100]))
        for _ in range(rng.randint(0, 4))
    )
    start = rng.choice([b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE, PREFACE[: rng.randrange(len(PREFACE))], PREFACE])
    return Input("tcp", start + frames)


def _http_2(rng: random.Random) -> Input:
    """Frames of calls, in disorder: kind, flags, payload."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/" + rng.choice(METHODS).encode()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"grpc-timeout", rng.choice([b"1S", b"1n", b"soon", b"99999999H", b"0m"])),
        (b"grpc-encoding", rng.choice([b"identity", b"gzip", b"br", b"deflate"])),
    ]
    if rng.random() < 0.3:
        rng.shuffle(fields)
    if rng.random() < 0.3:
        del fields[rng.randrange(len(fields))]
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    message = good_request(rng.choice([MODEL, WORDS])).SerializeToString()
    data = (
        bytes([rng.choice([0, 0, 0, 1, 9])])
        + (len(message) + rng.choice([0, 0, 0, -1, 1])).to_bytes(4, "big")
        + message
    )
    frames = [
        (1, 4, block), (1, 5, block), (1, 0, block[:20]), (9, 4, block[20:]), (0, 0, data), (0, 1, data), (0, 1, b""),
        (0, 8, b"\3" + data + bytes(3)), (2, 0, bytes(5)), (3, 0, bytes(3) + b"\x08"), (4, 0, b"\0\4\0\0\0\1"),
        (4, 1, b""), (6, 0, bytes(8)), (7, 0, bytes(8)), (8, 0, b"\0\0\0\1"), (8, 0, b"\x7f\xff\xff\xff"), (20, 0, b""),
    ]  # fmt: skip
    sent = [PREFACE, b"\0\0\0\4\0\0\0\0\0"]
    for _ in range(rng.randint(1, 20)):
        kind, flags, payload = rng.choice(frames[:6] if rng.random() < 0.6 else frames)
        if rng.random() < 0.05:
            flags, payload = rng.randrange(256), _mangled(rng, payload)
        stream_id = rng.choice([1, 1, 3, 5, 7, 7, 2, 0, 2**31 - 1]) if kind < 4 or kind > 7 else 0
        sent.append(len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload)
    return Input("tcp", b"".join(sent))


PARTS = [
    "v2", "models", MODEL, "..", ".", "%2e%2e", "%2f", "%00", "..;", "infer", "stats", "config", "ready", "health",
    "live", "a" * 2000, "versions", "1", "systemsharedmemory", "status", "", "caf%C3%A9", "\x01", "?a=b", "#c",
    "region", "register", "unregister", "tidegate-1-0", "%74idegate-1", "%zz", "%5c", "\\", ";a=b",
    "repository", "index",
]  # fmt: skip
BEFORE_PATHS = [
    "",
    "",
    "",
    "http://x",
    "HTTP://x:80",
    "//x",
    "ftp://x",
    "http://",
    "*",
    "x:80",
    "http://a@x",
    "http://x?",
]
PATHS = ["/v2", "/v2/health/ready", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/config", "/v2/models/stats", "/v2/nope"]

# HTTP ----------------------------------------------------------------------------------------------------------------

VALUES = [
    *map(json.dumps, [*REGIONS, *IMITATIONS]), '{"shared_memory_region":"tidegate-1-0","shared_memory_byte_size":8}',
    '"shared_memory_region"', '"shared\\u005fmemory_region"',
    "null", "true", "1", "-1", "1e400", "-0.0", "1e-400", "18446744073709551616", '"X"', '""', "[]", "{}", "[[]]",
    "[null]", "[1,[2]]", '"\\u0000"', '"\\ud800"', "NaN", "Infinity", "[1.5,2]", "[1,2,3]", '{"a":1}', "0" * 300,
    "[" * 100, '"' + "a" * 5000,
]  # fmt: skip
"""JSON values, valid and almost valid."""


def _json(rng: random.Random) -> bytes:
    model = rng.choice([MODEL, WORDS])
    data: Any = [1.0, 2.0] if model == MODEL else ["abc"]
    shape = [1, len(data)]
    tensor = {"name": "X", "datatype": "FP32" if model == MODEL else "BYTES", "shape": shape, "data": data}
    text = json.dumps({"id": "1", "inputs": [tensor], "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]})
    if rng.random() < 0.02:
        return rng.choice([b"[", b'{"a":', b'{"inputs":[']) * rng.choice([900, 1001, 200_000])
    for _ in range(rng.randint(0, 3)):
        pieces = ['"X"', '"FP32"', "[1, 2]", "[1.0, 2.0]", "true", '"inputs"', '"data"', '"shape"', '"Y"', '"1"']
        piece = rng.choice([each for each in pieces if each in text] or ["{"])
        text = text.replace(piece, rng.choice(VALUES), 1)
    content = text.encode()
    return _mangled(rng, content) if rng.random() < 0.4 else content


def _http(rng: random.Random, method: str, path: str, headers: list[str], body: bytes) -> Input:
    lengths = [f"Content-Length: {len(body)}"]
    wrong = rng.random()
    if wrong < 0.04:
        lengths = [f"Content-Length: {rng.choice([0, 1, len(body) + 7, -1, 2**63, '0x5', '+1', '', '1, 1'])}"]
    elif wrong < 0.08:
        lengths = [f"Transfer-Encoding: {rng.choice(['chunked', 'gzip, chunked', 'x'])}"]
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        body = rng.choice([chunks, b"zz\r\n" + body, b"ffffffffffffffffff\r\n", body])
    elif wrong < 0.1:
        lengths *= 2
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers, *lengths]
    head = "\r\n".join(lines).encode("latin1") + b"\r\n\r\n"
    return Input("http", (_mangled(rng, head) if rng.random() < 0.1 else head) + body)


def _http_infer(rng: random.Random) -> Input:
    body, headers = _json(rng), []
    way = rng.random()
    if way < 0.3:
        binary = rng.randbytes(rng.choice([0, 3, 8, 100]))
        length = rng.choice([len(body), len(body), 0, len(body) + 1, len(body) + 10**6, -1, 2**64])
        body += binary
        headers.append(f"Inference-Header-Content-Length: {length}")
    elif way < 0.45:
        packed = rng.choice(
            [gzip.compress(body, mtime=0), zlib.compress(body), body, gzip.compress(body, mtime=0)[:-5]]
        )
        headers.append(f"Content-Encoding: {rng.choice(['gzip', 'deflate', 'br', 'identity', 'gzip, gzip', ''])}")
        body = _mangled(rng, packed) if rng.random() < 0.5 else packed
    if rng.random() < 0.1:
        headers.append(f"Accept-Encoding: {rng.choice(['gzip', 'deflate', '*', 'gzip;q=x', 'a' * 3000])}")
    model = rng.choice([MODEL, MODEL, WORDS])
    return _http(
        rng, "POST", f"/v2/models/{model}{rng.choice(['', '/versions/1', '/versions/9'])}/infer", headers, body
    )


@cache
def _packed(encoding: str, rounds: int) -> bytes:
    """Return zeros, compressed this many times."""
    packed = bytes(INFLATED)
    for _ in range(rounds):
        packed = gzip.compress(packed, mtime=0) if encoding == "gzip" else zlib.compress(packed)
    return packed


def _http_bomb(rng: random.Random) -> Input:
    encoding, rounds = rng.choice(["gzip", "deflate"]), rng.choice([1, 1, 2])
    headers = [f"Content-Encoding: {', '.join([encoding] * rounds)}"]
    if rng.random() < 0.3:
        headers.append(f"Inference-Header-Content-Length: {rng.choice([0, 100, INFLATED])}")
    model = rng.choice([MODEL, WORDS, "nope"])
    return _http(rng, "POST", f"/v2/models/{model}/infer", headers, _packed(encoding, rounds))


def _http_anything(rng: random.Random) -> Input:
    path = rng.choice(PATHS) if rng.random() < 0.3 else "/" + "/".join(rng.choices(PARTS, k=rng.randint(1, 7)))
    path = rng.choice(BEFORE_PATHS) + path
    method = rng.choice(["GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "get", "G T", "X" * 99])
    floods = rng.choice([0, 0, 0, 0, 1, 500])
    headers = [f"{name}: {value}" for name, value in rng.sample(METADATA, rng.choice([0, 1])) if isinstance(value, str)]
    headers += [f"X-{number}: {'y' * rng.choice([1, 300])}" for number in range(floods)]
    return _http(rng, method, path, headers, rng.choice([b"", b"{}", rng.randbytes(20)]))
