"""Requests that are held back from the policy: found by their flow, or by what they could share a batch with."""

from collections import deque
from collections.abc import Iterable, Iterator

from tidegate.api import QueueKey, Request
from tidegate.engine.flows import Flow, Ranking


class HeldRequests:
    """The held requests of one model. What left stays in the queues until it surfaces, so that leaving is O(1)."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Request, Flow]] = {}
        self._passed_over: dict[int, None] = {}
        self._of_flow: dict[int, deque[Request]] = {}
        self._of_key: dict[QueueKey, deque[Request]] = {}
        self._flows = Ranking()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self._held.values())

    def add(self, request: Request, flow: Flow) -> None:
        """Hold a request, the youngest of its flow."""
        self._held[request.id] = request, flow
        self._of_flow.setdefault(flow.number, deque()).append(request)
        self._of_key.setdefault((request.model, request.shape, request.merge_key), deque()).append(request)
        self._flows.add(flow)
        self._entries += 1
        if self._entries > 2 * len(self._held) + 64:
            self._tidy()

    def remove(self, request_id: int) -> Request | None:
        """A request is held no more; None if it was not."""
        request, _ = self._held.pop(request_id, (None, None))
        self._passed_over.pop(request_id, None)
        return request

    def pass_over(self, request: Request) -> None:
        """Let a request be found by `youngest_passed_over` only, from now on."""
        self._passed_over[request.id] = None

    def get(self, request_id: int) -> Request | None:
        """A held request by its id."""
        return self._held[request_id][0] if request_id in self._held else None

    def flow_of(self, request: Request) -> Flow:
        """Whose a held request is."""
        return self._held[request.id][1]

    @property
    def first(self) -> tuple[Flow, Request] | None:
        """The flow that was served least of those that have something here, and its oldest request."""
        while flow := self._flows.first:
            if request := self._head(self._of_flow.get(flow.number)):
                return flow, request
            self._of_flow.pop(flow.number, None)
            self._flows.drop_first()
        return None

    def oldest_of_key(self, key: QueueKey) -> Request | None:
        """The oldest request of a key, whose flow may be any."""
        return self._head(self._of_key.get(key))

    @property
    def youngest_passed_over(self) -> Request | None:
        """The request that was last among those that were passed over."""
        return self._held[next(reversed(self._passed_over))][0] if self._passed_over else None

    @property
    def keys(self) -> Iterable[QueueKey]:
        """The keys of the queues of which something is, or was, held."""
        return self._of_key

    def _head(self, requests: deque[Request] | None) -> Request | None:
        while requests:
            if requests[0].id in self._held and requests[0].id not in self._passed_over:
                return requests[0]
            requests.popleft()
        return None

    def _tidy(self) -> None:
        """Forget what left: behind what is held for long it would not surface."""
        for requests in (*self._of_flow.values(), *self._of_key.values()):
            kept = [request for request in requests if request.id in self._held]
            requests.clear()
            requests.extend(kept)
        self._of_flow = {number: requests for number, requests in self._of_flow.items() if requests}
        self._of_key = {key: requests for key, requests in self._of_key.items() if requests}
        self._entries = len(self._held)
