"""Addresses in the form HOST:PORT, with brackets around an IPv6 host."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_EVERY_HOST: Final = frozenset({"0.0.0.0", "[::]"})
_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_LOOPBACK: Final = re.compile(r"127(\.\d{1,3}){3}")


def _listen_address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if not found or int(found["port"]) > 65535:
        remedy = "leave out the part up to ://" if "://" in text else "an IPv6 host stands in brackets"
        raise ValueError(f"{text!r} is not HOST:PORT with a port up to 65535 ({remedy})")
    return text


def _address(text: str) -> str:
    if port_of(_listen_address(text)) == 0:
        raise ValueError(f"{text!r}: port 0 is nowhere to be found")
    return text


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""HOST:PORT to listen on; port 0 picks a free one."""
Address = Annotated[str, AfterValidator(_address)]
"""HOST:PORT of another server."""


def host_of(address: str) -> str:
    """Return the host, in brackets if it is an IPv6 address."""
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    """Return the port, or -1 if it is no address."""
    found = _ADDRESS.fullmatch(address)
    return int(found["port"]) if found else -1


def with_port(address: str, port: int) -> str:
    """Return an address with the same host and another port."""
    return f"{host_of(address)}:{port}"


def listens_on(address: str, other: str) -> bool:
    """Return whether a server that listens on `address` is reachable at `other`."""
    if port_of(address) != port_of(other):
        return False
    if host_of(address) in _EVERY_HOST:
        return host_of(other) in _THIS_HOST | _EVERY_HOST
    return host_of(address) == host_of(other) or {host_of(address), host_of(other)} <= _THIS_HOST


def is_local(address: str) -> bool:
    """Return whether a server that listens there is reachable from this machine only."""
    host = host_of(address)
    return host in _THIS_HOST or bool(_LOOPBACK.fullmatch(host))


def names_this_machine(host: str) -> bool:
    """Return whether the `Host` header of a request names this machine in a form that is always its own.

    Without a token, a page of another site could read the data by DNS rebinding: under its own name that resolves to
    this machine.
    """
    return is_local(host.lower() if port_of(host) >= 0 else f"{host.lower()}:80")
