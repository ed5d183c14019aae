"""What the policy sees of the requests that wait for the same workers, and how full that makes each kind of batch."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.api import NEVER, QueueKey, Request
from tidegate.engine.batch_costs import BatchCosts
from tidegate.engine.flows import Flow


@dataclass(frozen=True, slots=True)
class _Counted:
    """A request that the policy sees and that can still be in a batch of full size."""

    request: Request
    stale_ns: int
    """From when on it cannot."""


class InView:
    """Counts what is shown to the policy: requests by flow, rows by kind of batch."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._shown: Counter[tuple[int, str]] = Counter()
        """How many requests, by flow and model, the policy sees."""
        self._rows: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: dict[int, _Counted] = {}
        """What is among those rows, by request."""
        self._stale: deque[_Counted] = deque()
        """What of it has a deadline, about in order; what ceased to count before stays until it surfaces."""

    @property
    def models(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """The rows, by model and key, of what can still be in a batch of full size."""
        return self._rows

    def rows_of(self, model: str) -> Mapping[QueueKey, int]:
        """The rows by key of what can still be in a batch of full size."""
        return self._rows.get(model, {})

    def shows(self, flow: Flow, model: str) -> bool:
        """Whether the policy sees any request of a flow for a model."""
        return self._shown[flow.number, model] > 0

    def show(self, now_ns: int, request: Request, flow: Flow) -> None:
        """The policy sees a request from now on."""
        self._shown[flow.number, request.model] += 1
        if self._costs.counts_time_of(request):
            stale_ns = self._costs.stale_ns(request)
            if stale_ns <= now_ns:
                return
            counted = _Counted(request, stale_ns)
            self._stale.append(counted)
        else:
            counted = _Counted(request, NEVER)
        self._counted[request.id] = counted
        rows = self._rows.setdefault(request.model, {})
        key = (request.model, request.merge_key)
        rows[key] = rows.get(key, 0) + request.rows

    def hide(self, request: Request, flow: Flow) -> None:
        """The policy sees it no more."""
        shown = (flow.number, request.model)
        self._shown[shown] -= 1
        if not self._shown[shown]:
            del self._shown[shown]
        self._discount(request.id)

    def pass_time(self, now_ns: int) -> None:
        """What leaves no time for a batch of full size any more counts for none."""
        while stale := self._stale:
            request_id = stale[0].request.id
            counts = self._counted.get(request_id) is stale[0]  # it may have gone, and come back as another kind
            if counts and stale[0].stale_ns > now_ns:
                return
            stale.popleft()
            if counts:
                self._discount(request_id)

    def _discount(self, request_id: int) -> None:
        """It fills no batch any more."""
        if counted := self._counted.pop(request_id, None):
            request = counted.request
            rows, key = self._rows[request.model], (request.model, request.merge_key)
            rows[key] -= request.rows
            if not rows[key]:
                del rows[key]
            if not rows:
                del self._rows[request.model]
