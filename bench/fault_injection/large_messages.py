"""A hundred megabytes where one mebibyte is the limit, plain and compressed, over gRPC and HTTP."""

import gzip
import re
import socket
from contextlib import suppress

import grpc
import numpy as np

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request, request_of
from bench.proxy_process import ProxyProcess

SIZE, LIMIT = 100_000_000, 1 << 20
MOST_GROWTH_MIB = 64.0


def run(rig: Rig) -> Result:
    """One of each, then a good request."""
    proxy = rig.tidegate(rig.triton(Model("told")), limits={"max_message_bytes": LIMIT})
    assert rig.client(proxy.grpc).call(request("told", [[0, 0]]))[0] is OK
    before_mib = proxy.usage()["memory_mib"]
    message = request_of("told", np.zeros((1, SIZE // 4), np.float32))
    told: dict[str, str] = {}
    for name, compression in (("gRPC plain", None), ("gRPC gzip", grpc.Compression.Gzip)):
        rig.tell(name)
        told[name] = rig.client(proxy.grpc, compression=compression).call(message)[0].name
    text = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[0,' + b" " * SIZE + b"0]}]}"
    rig.tell("HTTP")
    told["HTTP plain"] = _over_http(proxy, text, "")
    told["HTTP gzip"] = _over_http(proxy, gzip.compress(text, 1), "Content-Encoding: gzip\r\n")
    growth_mib = proxy.usage()["memory_mib"] - before_mib
    good = rig.client(proxy.grpc).call(request("told", [[0, 0]]))[0] is OK
    expected = {"gRPC": "RESOURCE_EXHAUSTED", "HTTP": "413"}
    return Result(
        "; ".join(f"{name}: {status}" for name, status in told.items())
        + f"; memory {growth_mib:+.0f} MiB; the next request {'answered' if good else 'not answered'}",
        good
        and growth_mib <= MOST_GROWTH_MIB
        and all(status == expected[name.split()[0]] for name, status in told.items()),
        {**told, "growth_mib": growth_mib},
    )


def _over_http(proxy: ProxyProcess, body: bytes, header: str) -> str:
    """The status; the server may answer and close while the body is still on its way."""
    host, _, port = proxy.http.rpartition(":")
    head = f"POST /v2/models/told/infer HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    received = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        with suppress(ConnectionError):
            connection.sendall(head.encode())
            connection.sendall(body)
        with suppress(ConnectionError):
            received = connection.recv(1 << 16)
    found = re.match(rb"HTTP/1\.1 (\d{3})", received)
    return found[1].decode() if found else "closed"


HAZARD = Hazard(
    "large_messages",
    f"{SIZE // 10**6} MB at a limit of 1 MiB, plain and gzip",
    "over gRPC they pass, compressed too",
    "RESOURCE_EXHAUSTED and 413, never held",
    run,
)
