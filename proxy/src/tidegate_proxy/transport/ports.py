"""The ports where clients find Tidegate, bound before anybody listens on them."""

import socket
from errno import EADDRINUSE

from tidegate_proxy.configuration.addresses import host_of, port_of


def bind(address: str, *, reuse_port: bool = False) -> socket.socket:
    """A socket bound to HOST:PORT; a port of 0 is a free one. Raises OSError when the address cannot be bound.

    `reuse_port`: another process may have it, too.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(
        host_of(address).strip("[]"), port_of(address), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    port = socket.socket(family, kind, protocol)
    try:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(where)
    except OSError as error:
        port.close()
        why = "is the port taken?" if error.errno == EADDRINUSE else error.strerror or error
        raise OSError(f"cannot listen on {address}: {why}") from error
    return port
