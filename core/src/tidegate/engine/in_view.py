"""What the policy sees of the requests that wait for the same workers, and how full that makes each kind of batch."""

from collections import Counter, deque
from collections.abc import Mapping

from tidegate.api import QueueKey, Request
from tidegate.engine.batch_costs import BatchCosts
from tidegate.engine.flows import Flow


class InView:
    """Counts what is shown to the policy: requests by flow, rows by kind of batch."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._shown: Counter[tuple[int, str]] = Counter()
        """How many requests, by flow and model, the policy sees."""
        self._rows: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: set[int] = set()
        """The requests that are among those rows."""
        self._stale: deque[tuple[int, Request]] = deque()
        """Those of them that have deadlines, each with when it ceases to count, about in order."""

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
            self._stale.append((stale_ns, request))
        self._counted.add(request.id)
        rows = self._rows.setdefault(request.model, {})
        key = (request.model, request.merge_key)
        rows[key] = rows.get(key, 0) + request.rows

    def hide(self, request: Request, flow: Flow) -> None:
        """The policy sees it no more."""
        shown = (flow.number, request.model)
        self._shown[shown] -= 1
        if not self._shown[shown]:
            del self._shown[shown]
        self._discount(request)

    def pass_time(self, now_ns: int) -> None:
        """What leaves no time for a batch of full size any more counts for none."""
        while self._stale and (self._stale[0][0] <= now_ns or self._stale[0][1].id not in self._counted):
            self._discount(self._stale.popleft()[1])

    def _discount(self, request: Request) -> None:
        """It fills no batch any more."""
        if request.id in self._counted:
            self._counted.remove(request.id)
            rows, key = self._rows[request.model], (request.model, request.merge_key)
            rows[key] -= request.rows
            if not rows[key]:
                del rows[key]
            if not rows:
                del self._rows[request.model]
