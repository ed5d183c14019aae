"""Simulated links between nodes: transfer time of a batch between two stages."""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from tidegate.api import Batch, Network, StageFinished
from tidegate.engine import AnyEffect, AnyStimulus, Engine, StartStage


class _Link:
    """One way of a node's connection: one transfer at a time."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []
        """[start, end), by time, without overlap."""

    def earliest_ns(self, from_ns: int, duration_ns: int) -> int:
        """Return the first instant, not before `from_ns`, at which the link is free for `duration_ns`."""
        index = bisect_right(self._taken, from_ns, key=lambda span: span[1])
        for start_ns, end_ns in self._taken[index:]:
            if start_ns >= from_ns + duration_ns:
                break
            from_ns = end_ns
        return from_ns

    def take(self, now_ns: int, start_ns: int, end_ns: int) -> None:
        """Occupy the link from `start_ns` to `end_ns`; transfers that ended by now are forgotten."""
        del self._taken[: bisect_right(self._taken, now_ns, key=lambda span: span[1])]
        insort(self._taken, (start_ns, end_ns))


class NetworkLinks:
    """Uplink and downlink of each node; a transfer occupies both from the first time at which both are free.

    It starts no earlier than its policy planned (`Stage.sent_ns`).
    """

    def __init__(self, network: Network, node: Mapping[int, str]) -> None:
        """Create idle links. `node`: node of each worker, by worker id."""
        self.network = network
        self._node = node
        self._uplinks: defaultdict[str, _Link] = defaultdict(_Link)
        self._downlinks: defaultdict[str, _Link] = defaultdict(_Link)
        self._sent: dict[int, tuple[str, int]] = {}
        """The node that a batch's rows were sent to, and when they are there, by batch id."""

    def extend(self, network: Network, node: Mapping[int, str]) -> None:
        """Add partitions and workers with their nodes; the bandwidth stays, and transfers continue."""
        sizes = {**self.network.bytes_per_row, **network.bytes_per_row}
        self.network = msgspec.structs.replace(self.network, bytes_per_row=sizes)
        self._node = {**self._node, **node}

    def send(self, now_ns: int, batch: Batch, stage: int, rows: int) -> None:
        """Start the transfer of a finished stage's output to the worker of the next stage.

        `stage`: index of the finished stage; `rows`: rows of the batch.
        """
        following = batch.stages[stage + 1]
        sender, receiver = self._node[batch.stages[stage].worker_id], self._node[following.worker_id]
        if sender == receiver:
            self._sent[batch.id] = receiver, now_ns
            return
        duration_ns = self.network.transfer_ns(batch.stages[stage].partition, rows)
        start_ns = self._earliest_ns(sender, receiver, max(now_ns, following.sent_ns), duration_ns)
        end_ns = start_ns + duration_ns
        self._uplinks[sender].take(now_ns, start_ns, end_ns)
        self._downlinks[receiver].take(now_ns, start_ns, end_ns)
        self._sent[batch.id] = receiver, end_ns + self.network.latency_ns

    def arrival_ns(self, now_ns: int, effect: StartStage) -> int:
        """Return the time in ns at which the input of a starting stage arrives. Call it once for each stage."""
        if effect.stage == 0:
            return now_ns
        batch = effect.batch
        if self._sent[batch.id][0] != self._node[batch.stages[effect.stage].worker_id]:  # it was rerouted meanwhile
            self.send(now_ns, batch, effect.stage - 1, effect.rows)
        return self._sent.pop(batch.id)[1]

    def _earliest_ns(self, sender: str, receiver: str, from_ns: int, duration_ns: int) -> int:
        while True:
            start_ns = self._uplinks[sender].earliest_ns(from_ns, duration_ns)
            from_ns = self._downlinks[receiver].earliest_ns(start_ns, duration_ns)
            if from_ns == start_ns:
                return start_ns


class Forwarding:
    """Listener that starts a transfer when a stage ends, after the policy's last chance to change the next worker."""

    def __init__(self, engine: Engine, links: NetworkLinks) -> None:
        self._engine = engine
        self._links = links

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        """Start the transfer after a finished stage that another one follows."""
        del effects
        if type(event) is StageFinished and (flight := self._engine.flight(event.batch_id)):
            self._links.send(event.now_ns, flight.batch, event.stage, flight.rows)
