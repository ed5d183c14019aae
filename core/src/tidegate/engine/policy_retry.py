"""When a policy that broke decides again: after a back-off that doubles while it keeps breaking."""

from tidegate.api import NEVER, Policy, Setup

FIRST_BACKOFF_NS = 1_000_000_000
LONGEST_BACKOFF_NS = 300_000_000_000
"""A policy that decided for so long without a fault starts with the first back-off again."""


class PolicyRetry:
    """The back-off of the policy that an engine was given. It survives a restart of the engine.

    It needs no timer: the policy is tried again with the first event after the back-off. Without events nothing waits.
    """

    def __init__(self, policy: Policy) -> None:
        self.choose(0, policy)

    def choose(self, now_ns: int, policy: Policy) -> None:
        """Make `policy`, which has not broken yet, the one that is to decide."""
        self._class, self._options = type(policy), policy.options
        self._backoff_ns = 0
        self.decides(now_ns)

    def decides(self, now_ns: int) -> None:
        """Record that the chosen policy decides from now on."""
        self.at_ns = NEVER
        """The chosen policy is tried again with the first event from then on; NEVER: it decides."""
        self._since_ns = now_ns

    def broke(self, now_ns: int) -> int:
        """Record that the chosen policy, or a part of it, broke. Returns how long it is to wait from now."""
        if self.at_ns == NEVER:
            doubled_ns = 0 if now_ns - self._since_ns >= LONGEST_BACKOFF_NS else 2 * self._backoff_ns
            self._backoff_ns = min(max(FIRST_BACKOFF_NS, doubled_ns), LONGEST_BACKOFF_NS)
            self.at_ns = now_ns + self._backoff_ns
        return self.at_ns - now_ns

    def make(self, setup: Setup) -> Policy:
        """Make the chosen policy again, without anything that it knew. Raises whatever its class raises."""
        return self._class(setup, self._options)
