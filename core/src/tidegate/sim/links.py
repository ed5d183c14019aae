"""The network between nodes: what the rows of a batch cost on their way from one leg to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.engine import StartLeg
from tidegate.workload.arrivals import NS_PER_S


@dataclass
class Links:
    """One link from each node to each other one; it carries one transfer at a time, in the order of sending.

    A transfer takes the latency and, on the link, rows x bytes per row / bandwidth. Within a node it takes no time.
    """

    node: Mapping[int, str]
    """Of each worker, by its id."""
    bytes_per_row: Mapping[str, int]
    """Of each partition's output; 0 where it is not named."""
    bytes_per_s: float
    """Bandwidth of each link, positive."""
    latency_ns: int = 0
    _free_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    _there_ns: dict[int, int] = field(default_factory=dict)

    def send(self, now_ns: int, effect: StartLeg) -> None:
        """A leg has finished: its output sets out for the worker of the next leg, if there is one."""
        legs = effect.batch.legs
        if effect.leg + 1 == len(legs):
            return
        leg, following = legs[effect.leg], legs[effect.leg + 1]
        link = self.node[leg.worker_id], self.node[following.worker_id]
        if link[0] == link[1]:
            return
        size = effect.rows * self.bytes_per_row.get(leg.partition, 0)
        sent_ns = max(now_ns, self._free_ns.get(link, 0)) + round(size / self.bytes_per_s * NS_PER_S)
        self._free_ns[link] = sent_ns
        self._there_ns[effect.batch.id] = sent_ns + self.latency_ns

    def arrival_ns(self, effect: StartLeg) -> int:
        """When the input of a leg that is about to start is there; asked once for each leg."""
        return self._there_ns.pop(effect.batch.id, 0)
