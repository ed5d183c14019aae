"""Listening ports, and the takeover of a port by a second process (hot restart).

New connections go to the second process from the moment that it listens. With SO_REUSEPORT alone the kernel distributes
new connections among both, and resets those that wait when one closes its port. A BPF program of one instruction
changes that: it selects the second of the sockets on the port; with only one, the kernel falls back to it. So the newer
process gets all connections, is the only one when the first has closed its port, by then without waiting connections,
and can be replaced by a third in the same way.
"""

import contextlib
import ctypes
import logging
import os
import socket
import struct
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path
from typing import Final

from tidegate_proxy.configuration.addresses import host_of, port_of

log = logging.getLogger(__name__)


def bind(address: str, *, reuse_port: bool = False) -> socket.socket:
    """Return a socket bound to HOST:PORT; port 0 picks a free one. Raises OSError if the address cannot be bound.

    `reuse_port`: another process may bind it too.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host_of(address).strip("[]"), port_of(address), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise listen_error(address, error) from error
    port = socket.socket(family, kind, protocol)
    try:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(where)
    except OSError as error:
        port.close()
        raise listen_error(address, error) from error
    return port


def listen_error(address: str, error: OSError) -> OSError:
    """Return the error of a server that cannot listen on an address, with the remedy where one is known.

    `error`: error of the socket.
    """
    why = error.strerror or str(error)
    if isinstance(error, socket.gaierror) or error.errno == EADDRNOTAVAIL:
        why += "; give an address of this machine, or 0.0.0.0 for all of them"
    elif error.errno == EADDRINUSE:
        why = "is the port taken? Stop what listens there, or give another address (port 0 takes a free port)"
    elif error.errno == EACCES:
        why += "; ports below 1024 are for root: give another port"
    return OSError(f"cannot listen on {address}: {why}")


_SO_ATTACH_REUSEPORT_CBPF: Final = getattr(socket, "SO_ATTACH_REUSEPORT_CBPF", 51)
_RETURN_CONSTANT: Final = 0x06
"""Classic BPF's BPF_RET | BPF_K: what is returned is an index into the port's sockets, in the order of their coming."""
_SECOND: Final = 1


def prefer_newest(port: int) -> None:
    """Direct new connections to the newest of Tidegate's processes that listen on a port.

    If the kernel does not support that, connections are distributed among all, with a warning.
    """
    for listener in _listeners(port):
        with listener:
            try:
                _attach(listener)
            except OSError as error:
                log.warning(
                    "port shared without preference: new connections go to all processes",
                    extra={"port": port, "error": str(error)},
                )


def _attach(listener: socket.socket) -> None:
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, _SECOND))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def _listeners(port: int) -> list[socket.socket]:
    """The sockets of this process that listen on the port: those of gRPC's core are at hand in no other way."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if not str(entry.readlink()).startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(entry.name)))
            if _listens(one, port):
                found.append(one)
            else:
                one.close()
    return found


def _listens(one: socket.socket, port: int) -> bool:
    is_tcp = one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6)
    return is_tcp and one.getsockname()[1] == port and bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
