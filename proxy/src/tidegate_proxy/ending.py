"""A fault of Tidegate's own ends the call that it met."""

from typing import Protocol

import grpc

from tidegate_proxy.client import own_fault
from tidegate_proxy.faults import faults


class Endable(Protocol):
    """A call of a client; ended a second time, nothing happens."""

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End it with a status."""


class ending:
    """What is raised in the block is reported and ends the call, and goes no further."""

    __slots__ = ("_call",)

    def __init__(self, call: Endable) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> bool:
        """End the call, if it has to be."""
        if not isinstance(raised, Exception):
            return False
        faults.report("a call", raised)
        failed = own_fault()
        self._call.end(failed.code, failed.details)
        return True
