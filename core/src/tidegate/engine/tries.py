"""How often requests were tried whose workers failed."""

from collections.abc import Iterable

from tidegate.api import Request


class Tries:
    """Counts those of requests that were tried more than once, until they end."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        """How often a request was tried, by its id."""

    def count(self, request: Request) -> int:
        """A request was tried in vain, and would be tried again: which try that would be."""
        tries = self._tries[request.id] = self._tries.get(request.id, 1) + 1
        return tries

    def ended(self, request_id: int) -> None:
        """A request has ended, however it did."""
        self._tries.pop(request_id, None)

    def answered(self, requests: Iterable[Request]) -> None:
        """Requests have ended well, as most do at the first try."""
        if self._tries:
            for request in requests:
                self._tries.pop(request.id, None)
