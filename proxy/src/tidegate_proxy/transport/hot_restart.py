"""Two processes on one port, the second of which takes over: new connections go to it from the moment that it listens.

With SO_REUSEPORT alone the kernel deals new connections out to both, and those that wait to be accepted by one that
closes its port are reset. A program of one instruction changes that: of the sockets on the port it chooses the second;
where there is only one, the kernel falls back to that. So whoever comes second gets all, is the only one when the first
has closed its port, by then without anybody waiting, and makes room for a third in the same way.
"""

import contextlib
import ctypes
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_SO_ATTACH_REUSEPORT_CBPF: Final = getattr(socket, "SO_ATTACH_REUSEPORT_CBPF", 51)
_RETURN_CONSTANT: Final = 0x06
"""Classic BPF's BPF_RET | BPF_K: what is returned is an index into the port's sockets, in the order of their coming."""
_SECOND: Final = 1


def prefer_newest(port: int) -> None:
    """Have the process that came last, of ours that listen on a port, get new connections.

    Where the kernel knows no such thing they are dealt out to all, and a warning says so.
    """
    for listener in _listeners(port):
        with listener:
            try:
                _attach(listener)
            except OSError as error:
                log.warning("new connections on port %d go to all processes that share it: %s", port, error)


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
