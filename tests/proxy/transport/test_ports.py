"""What is said of an address that cannot be listened on."""

import os
import socket
from errno import EACCES

import pytest

from tidegate_proxy.transport.ports import bind, listen_error


def test_an_address_of_another_machine_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = r"; give an address of this machine, or 0\.0\.0\.0 for all of them"
    with pytest.raises(OSError, match=rf"^cannot listen on 192.0.2.1:0: Cannot assign requested address{remedy}"):
        bind("192.0.2.1:0")

    def unknown(*_given: object, **_named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match=rf"^cannot listen on gpu-1:8101: Name or service not known{remedy}"):
        bind("gpu-1:8101")


def test_a_port_for_root_is_named_with_the_remedy() -> None:
    error = listen_error("0.0.0.0:80", PermissionError(EACCES, os.strerror(EACCES)))
    assert str(error) == (
        "cannot listen on 0.0.0.0:80: Permission denied; ports below 1024 are for root: give another port"
    )
