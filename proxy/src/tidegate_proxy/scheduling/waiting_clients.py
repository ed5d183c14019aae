"""The clients that wait for an answer, and how they are told."""

from collections.abc import Iterable, Iterator, Sequence

from tidegate_proxy.base.faults import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, own_fault
from tidegate_proxy.configuration.queue_limits import Load, QueueLimits
from tidegate_proxy.messages.client import Client
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.scheduling.running_legs import LegRun


class WaitingClients:
    """The clients that wait, by request id."""

    def __init__(self, observability: Observability) -> None:
        self._observability = observability
        self._by_request: dict[int, Client] = {}
        self.numbered = 0
        """Requests that were given a number."""
        self._load = Load()
        self._load_of_owner: dict[str, Load] = {}
        self._load_of_model: dict[str, Load] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_request.values()))

    def __contains__(self, client: Client) -> bool:
        return client.request_id in self._by_request

    def number(self, client: Client) -> int:
        """Give a request the number by which it is known from now on."""
        client.request_id = number = self.numbered
        self.numbered += 1
        return number

    def of(self, request_ids: Iterable[int]) -> list[Client]:
        """The clients of a batch who still wait."""
        return [client for request_id in request_ids if (client := self._by_request.get(request_id))]

    @property
    def held_bytes(self) -> int:
        """The bytes of their requests."""
        return self._load.bytes

    def admit(self, client: Client, limits: QueueLimits) -> bool:
        """One more waits, unless too many do."""
        model = client.envelope.model
        of_owner = self._load_of_owner.get(client.owner) or Load()
        of_model = self._load_of_model.get(model) or Load()
        if refusal := limits.refusal(self._load, of_owner, of_model):
            self._observability.metrics.refused[model, refusal] += 1
            return False
        self._by_request[client.request_id] = client
        self._load_of_owner[client.owner], self._load_of_model[model] = of_owner, of_model
        for load in (self._load, of_owner, of_model):
            load.requests += 1
            load.bytes += len(client.envelope.message)
        return True

    def remove(self, request_id: int) -> Client | None:
        """The client of a request does not wait any more; None if it did not."""
        client = self._by_request.pop(request_id, None)
        if client:
            of_owner = self._load_of_owner[client.owner]
            for load in (self._load, of_owner, self._load_of_model[client.envelope.model]):
                load.requests -= 1
                load.bytes -= len(client.envelope.message)
            if not of_owner.requests:  # connections come and go
                del self._load_of_owner[client.owner]
        return client

    def fail(self, request_id: int, failure: RequestFailed) -> None:
        """One is told that there is no answer, if it still waits."""
        if client := self.remove(request_id):
            self.tell(client, failure)

    def settle(self, run: LegRun, outcomes: Sequence[Outcome], output_ns: int = 0) -> None:
        """All of a batch are told; `output_ns`: how long it took to divide the answer."""
        waiting = [self.remove(client.request_id) for client in run.clients]
        answered: list[Client] = []
        for client, outcome in zip(waiting, outcomes, strict=True):
            if client is None:
                continue
            if isinstance(outcome, RequestFailed):
                self.tell(client, outcome)
            else:
                self._give(client, outcome)
                answered.append(client)
        if answered:
            self._observability.answered(answered, run.execution, output_ns)

    def tell(self, client: Client, failure: RequestFailed) -> None:
        """The client first, then those who look on."""
        self._give(client, failure)
        self._observability.failed(client, failure.reason, failure.outcome)

    def _give(self, client: Client, outcome: Outcome) -> None:
        try:
            client.resolve(outcome)
        except Exception as error:
            faults.report("telling a client", error)
            try:
                client.resolve(own_fault())
            except Exception as another:
                faults.report("telling a client", another)
