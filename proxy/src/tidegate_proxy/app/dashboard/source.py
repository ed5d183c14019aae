"""Sources of the dashboard: a running Tidegate or a recorded run."""

from typing import Literal

import msgspec


class PageHello(msgspec.Struct, frozen=True):
    """First message to the page."""

    kind: Literal["live", "recording"]
    policy: str
    version: str
    """The version of Tidegate."""
    name: str = ""
    """The name of the recording's file."""
    length_ms: float = 0.0
    """How long the recording is."""
