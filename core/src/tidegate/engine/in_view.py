"""What the policy sees of the requests that wait for the same workers, and how full that makes each kind of batch."""

from collections.abc import Mapping

from tidegate.api import QueueKey, Request
from tidegate.engine.batch_costs import BatchCosts
from tidegate.engine.flows import Flow
from tidegate.engine.timers import Timers

NOTHING: Mapping[QueueKey, int] = {}


class InView:
    """Counts what is shown to the policy: requests by flow, rows by kind of batch."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._shown: dict[tuple[int, str], int] = {}
        """How many requests, by flow and model, the policy sees."""
        self._rows: dict[str, dict[QueueKey, int]] = {}
        """The rows, by model and key, of what the policy sees and can still be in a batch of full size."""
        self._counted: dict[int, Request] = {}
        """What is among those rows, by id."""
        self._stale = Timers()
        """When what of it has a deadline ceases to be."""

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
        if self._costs.counts_time_of(request):
            stale_ns = self._costs.stale_ns(request)
            if stale_ns <= now_ns:
                return
            self._stale.set(request.id, stale_ns)
        self._counted[request.id] = request
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
        if self._stale.earliest_ns <= now_ns:
            for _, request_id in self._stale.pop_due(now_ns):
                if isinstance(request_id, int):
                    self._discount(request_id)

    def _discount(self, request_id: int) -> None:
        """Count a request no more: it fills no batch."""
        request = self._counted.pop(request_id, None)
        if request is None:
            return
        self._stale.cancel(request.id)
        model = request.model
        rows, key = self._rows[model], (model, request.shape, request.merge_key)
        left = rows[key] - request.rows
        if left:
            rows[key] = left
            return
        del rows[key]
        if not rows:
            del self._rows[model]
