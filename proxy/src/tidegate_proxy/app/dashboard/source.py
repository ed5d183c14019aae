"""What the page shows comes from one of two sources: a Tidegate that runs, or a recording of one."""

from typing import Literal

import msgspec


class PageHello(msgspec.Struct, frozen=True):
    """What the page is told first."""

    kind: Literal["live", "recording"]
    policy: str
    version: str
    """The version of Tidegate."""
    name: str = ""
    """The name of the recording's file."""
    length_ms: float = 0.0
    """How long the recording is."""
