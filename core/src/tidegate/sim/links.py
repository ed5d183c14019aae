"""The links between nodes, simulated: what the rows of a batch cost on their way from one leg to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.api import Network
from tidegate.engine import StartLeg


@dataclass
class Links:
    """An uplink and a downlink for each node, each with one transfer at a time, in the order of sending."""

    network: Network
    node: Mapping[int, str]
    """Of each worker, by its id."""
    _uplink_free_ns: dict[str, int] = field(default_factory=dict)
    _downlink_free_ns: dict[str, int] = field(default_factory=dict)
    _there_ns: dict[int, int] = field(default_factory=dict)
    """By batch."""

    def send(self, now_ns: int, effect: StartLeg) -> None:
        """A leg has finished: its output sets out for the worker of the next leg, if there is one."""
        legs = effect.batch.legs
        if effect.leg + 1 == len(legs):
            return
        leg, following = legs[effect.leg], legs[effect.leg + 1]
        sender, receiver = self.node[leg.worker_id], self.node[following.worker_id]
        if sender == receiver:
            return
        starts_ns = max(now_ns, self._uplink_free_ns.get(sender, 0), self._downlink_free_ns.get(receiver, 0))
        ends_ns = starts_ns + self.network.transfer_ns(leg.partition, effect.rows)
        self._uplink_free_ns[sender] = self._downlink_free_ns[receiver] = ends_ns
        self._there_ns[effect.batch.id] = ends_ns + self.network.latency_ns

    def arrival_ns(self, effect: StartLeg) -> int:
        """When the input of a leg that is about to start is there; asked once for each leg."""
        return self._there_ns.pop(effect.batch.id, 0)
