"""What the policy sees of the requests that wait for the same workers, and how full that makes each kind of batch."""

from collections import deque
from collections.abc import Mapping

from tidegate.api import NEVER, QueueKey, Request
from tidegate.engine.batch_costs import BatchCosts
from tidegate.engine.flows import Flow

Counted = tuple[int, Request]
"""A request that the policy sees and that can still be in a batch of full size; and from when on it cannot."""
NOTHING: Mapping[QueueKey, int] = {}


class InView:
    """Counts what is shown to the policy: requests by flow, rows by kind of batch."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._shown: dict[tuple[int, str], int] = {}
        """How many requests, by flow and model, the policy sees."""
        self._rows: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: dict[int, Counted] = {}
        """What is among those rows, by request."""
        self._stale: deque[Counted] = deque()
        """What of it has a deadline, about in order; what ceased to count before stays until it surfaces."""

    @property
    def models(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """The rows, by model and key, of what can still be in a batch of full size."""
        return self._rows

    def rows_of(self, model: str) -> Mapping[QueueKey, int]:
        """The rows by key of what can still be in a batch of full size."""
        return self._rows.get(model, NOTHING)

    def shows(self, flow: Flow, model: str) -> bool:
        """Whether the policy sees any request of a flow for a model."""
        return (flow.number, model) in self._shown

    def show(self, now_ns: int, request: Request, flow: Flow) -> None:
        """The policy sees a request from now on."""
        model = request.model
        shown = (flow.number, model)
        self._shown[shown] = self._shown.get(shown, 0) + 1
        stale_ns = NEVER
        if self._costs.counts_time_of(request):
            stale_ns = self._costs.stale_ns(request)
            if stale_ns <= now_ns:
                return
        counted = self._counted[request.id] = (stale_ns, request)
        if stale_ns < NEVER:
            self._stale.append(counted)
        rows = self._rows.get(model)
        if rows is None:
            rows = self._rows[model] = {}
        key = (model, request.shape, request.merge_key)
        rows[key] = rows.get(key, 0) + request.rows

    def hide(self, request: Request, flow: Flow) -> None:
        """The policy sees it no more."""
        shown = (flow.number, request.model)
        count = self._shown[shown] - 1
        if count:
            self._shown[shown] = count
        else:
            del self._shown[shown]
        self._discount(request.id)

    def pass_time(self, now_ns: int) -> None:
        """What leaves no time for a batch of full size any more counts for none."""
        stale = self._stale
        while stale:
            stale_ns, request = stale[0]
            counts = self._counted.get(request.id) is stale[0]  # it may have gone, and come back as another kind
            if counts and stale_ns > now_ns:
                return
            stale.popleft()
            if counts:
                self._discount(request.id)

    def _discount(self, request_id: int) -> None:
        """Count a request no more: it fills no batch."""
        counted = self._counted.pop(request_id, None)
        if counted is None:
            return
        request = counted[1]
        model = request.model
        rows, key = self._rows[model], (model, request.shape, request.merge_key)
        left = rows[key] - request.rows
        if left:
            rows[key] = left
            return
        del rows[key]
        if not rows:
            del self._rows[model]
