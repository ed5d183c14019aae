"""The links between nodes, simulated: what the rows of a batch cost on their way from one leg to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.api import Batch, Network
from tidegate.engine import StartLeg


@dataclass
class Links:
    """An uplink and a downlink for each node, each with one transfer at a time, in the order of sending."""

    network: Network
    node: Mapping[int, str]
    """Of each worker, by its id."""
    _uplink_free_ns: dict[str, int] = field(default_factory=dict)
    _downlink_free_ns: dict[str, int] = field(default_factory=dict)
    _sent: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By batch: to which node, and when it is there."""

    def send(self, now_ns: int, batch: Batch, leg: int, rows: int) -> None:
        """A leg has finished: its output sets out for the worker of the next one."""
        sender, receiver = self.node[batch.legs[leg].worker_id], self.node[batch.legs[leg + 1].worker_id]
        if sender == receiver:
            self._sent[batch.id] = receiver, now_ns
            return
        starts_ns = max(now_ns, self._uplink_free_ns.get(sender, 0), self._downlink_free_ns.get(receiver, 0))
        ends_ns = starts_ns + self.network.transfer_ns(batch.legs[leg].partition, rows)
        self._uplink_free_ns[sender] = self._downlink_free_ns[receiver] = ends_ns
        self._sent[batch.id] = receiver, ends_ns + self.network.latency_ns

    def arrival_ns(self, now_ns: int, effect: StartLeg) -> int:
        """When the input of a leg that is about to start is there; asked once for each leg."""
        if effect.leg == 0:
            return now_ns
        batch = effect.batch
        if self._sent[batch.id][0] != self.node[batch.legs[effect.leg].worker_id]:  # it was rerouted meanwhile
            self.send(now_ns, batch, effect.leg - 1, effect.rows)
        return self._sent.pop(batch.id)[1]
