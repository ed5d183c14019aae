"""Loop detector: finds Tritons of the configuration that are Tidegate itself, or lead back to it through another one.

A list of Tritons may hold the address of Tidegate by mistake: that of its own service instead of Triton's. It answers
every probe, so it would get requests, which come back, and keep every model in the index for good. So each probe
carries a token of its Triton, and a Tidegate that receives tokens of others passes them on with its own probes. A token
that comes back shows a loop. Probes of a Triton that does not take part carry no tokens of others: no request goes
there, so that no loop is closed.
"""

import re
import secrets
import time
from typing import Final

from tidegate_proxy.transport import Metadata

PROBE_HEADER: Final = "tidegate-probe"
MEMORY_S: Final = 10.0
"""Seconds for which a token counts after it was received; probes carry it every second."""
MAX_PASSED_ON: Final = 8
"""Number of tokens of others that a probe carries: those received last, as clients may send any."""
_TOKENS: Final = re.compile(r"[0-9a-f]{16}\.[0-9]{1,12}")


class LoopDetector:
    """Tokens of one Tidegate's probes. Use it only in the event loop."""

    def __init__(self) -> None:
        self._instance = secrets.token_hex(8)
        self._tokens = 0
        self._returned_s: dict[str, float] = {}
        """When each of its own tokens came back last."""
        self._others_s: dict[str, float] = {}
        """When each token of another Tidegate was received last, in this order."""

    def new_token(self) -> str:
        """Return a token for a Triton."""
        self._tokens += 1
        return f"{self._instance}.{self._tokens}"

    def metadata(self, token: str, *, takes_part: bool) -> Metadata:
        """Return the metadata of a probe of the Triton with this token. `takes_part`: whether it may get requests."""
        self._forget()
        return ((PROBE_HEADER, ",".join([token, *(reversed(self._others_s) if takes_part else ())])),)

    def receive(self, metadata: Metadata) -> None:
        """Take the tokens in the metadata of a call that was received."""
        for name, value in metadata:
            if name != PROBE_HEADER or not isinstance(value, str):
                continue
            self._forget()
            for token in reversed(_TOKENS.findall(value)):  # the last to be kept is that of the sender itself
                if token.startswith(self._instance):
                    self._returned_s[token] = time.monotonic()
                    continue
                self._others_s.pop(token, None)
                self._others_s[token] = time.monotonic()
                if len(self._others_s) > MAX_PASSED_ON:
                    del self._others_s[next(iter(self._others_s))]

    def leads_back(self, token: str) -> bool:
        """Return whether the probes of the Triton with this token come back."""
        self._forget()
        return token in self._returned_s

    def _forget(self) -> None:
        oldest_s = time.monotonic() - MEMORY_S
        for known in (self._returned_s, self._others_s):
            for token in [token for token, received_s in known.items() if received_s < oldest_s]:
                del known[token]
