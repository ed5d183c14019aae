"""How a call is refused before anything is done for it."""

import json
from typing import NamedTuple

import grpc


class GrpcRefusal(NamedTuple):
    """What a gRPC call ends with."""

    code: grpc.StatusCode
    details: str


class HttpRefusal(NamedTuple):
    """What an HTTP request is answered with."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def http_refusal(status: int, words: str, *headers: tuple[str, str]) -> HttpRefusal:
    """The words as Triton packs them: JSON, without blanks, under the content type that Triton gives."""
    body = json.dumps({"error": words}, separators=(",", ":"), ensure_ascii=False).encode()
    return HttpRefusal(status, body, (("content-type", "text/plain"), *headers))
