"""How requests end, each exactly once (invariant 1), and how often those were tried whose workers failed."""

from tidegate.api import Request
from tidegate.engine.books import Tally
from tidegate.engine.effects import Fail


class Outcomes:
    """Counts every end in the tally, and forgets the request's tries with it."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._tries: dict[int, int] = {}
        """By request, of those that were tried more than once."""

    def answer(self, requests: list[Request], ended_ns: int) -> None:
        """These have their answers, late after their deadlines."""
        if self._tries:
            for request in requests:
                self._tries.pop(request.id, None)
        self.tally.answered += len(requests)
        self.tally.late += sum(ended_ns > request.deadline_ns for request in requests)

    def fail(self, request: Request, reason: str) -> Fail:
        """A request has no answer; its client is to be told so."""
        self.tally.failed += 1
        self._tries.pop(request.id, None)
        return Fail(request.id, reason)

    def drop(self, request: Request, reason: str) -> None:
        """A request was given up."""
        self.tally.dropped[reason] += 1
        self._tries.pop(request.id, None)

    def cancel(self, request_id: int) -> None:
        """Its client does not wait any more."""
        self.tally.cancelled += 1
        self._tries.pop(request_id, None)

    def count_try(self, request: Request) -> int:
        """A request was tried in vain, and would be tried again: which try that would be."""
        tries = self._tries[request.id] = self._tries.get(request.id, 1) + 1
        return tries
