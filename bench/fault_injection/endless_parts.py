"""Trailers, chunk extensions and headers without end."""

import socket
from contextlib import suppress

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig

MOST_BYTES = 64 << 20
MOST_GROWTH_MIB = 32.0
CHUNKED = b"POST /v2/models/told/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
PARTS = {
    "trailers": (CHUNKED + b"0\r\n", b"trailer: value\r\n" * 4000),
    "an extension": (CHUNKED + b"2;", b"x" * 60_000),
    "headers": (b"GET /v2 HTTP/1.1\r\n", b"x: y\r\n" * 10_000),
}


def run(rig: Rig) -> Result:
    """Each to HTTP and to the metrics port, until it is cut off."""
    proxy = rig.tidegate(rig.triton(Model("told")))
    before = proxy.usage()["memory_mib"]
    taken = {}
    for port in ("http", "metrics"):
        host, _, number = str(getattr(proxy, port)).rpartition(":")
        for name, (begun, piece) in PARTS.items():
            sent = 0
            with suppress(ConnectionError), socket.create_connection((host, int(number)), timeout=20) as connection:
                connection.sendall(begun)
                while sent < MOST_BYTES:
                    connection.sendall(piece)
                    sent += len(piece)
            taken[f"{port}, {name}"] = sent / (1 << 20)
    growth = proxy.usage()["memory_mib"] - before
    most = max(taken.values())
    return Result(
        f"cut off after {most:.0f} MiB at most; memory grew by {growth:.0f} MiB",
        most < MOST_BYTES >> 20 and growth <= MOST_GROWTH_MIB,
        {"taken_mib": taken, "growth_mib": growth},
    )


HAZARD = Hazard(
    "endless_parts",
    "trailers, chunk extensions and headers without end, to HTTP and the metrics port",
    "130 MB of trailers are taken and kept",
    f"each is cut off, memory grows by {MOST_GROWTH_MIB:g} MiB at most",
    run,
)
