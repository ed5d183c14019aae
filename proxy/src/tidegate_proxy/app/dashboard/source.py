"""Sources of the dashboard: a running Tidegate or a recorded run."""

from typing import Literal

import msgspec


class PageHello(msgspec.Struct, frozen=True):
    """First message to the page."""

    kind: Literal["live", "recording"]
    policy: str
    version: str
    """Tidegate's version."""
    name: str = ""
    """File name of the event log."""
    length_ms: float = 0.0
    """Duration of the recorded run."""
