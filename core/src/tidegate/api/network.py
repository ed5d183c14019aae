"""The network between nodes, as far as schedulers plan with it."""

from collections.abc import Mapping

import msgspec

NS_PER_S = 1_000_000_000


class Network(msgspec.Struct, frozen=True):
    """What it costs to carry the output of a stage to the node of the next one.

    Each node has one uplink and one downlink. A transfer occupies the uplink of its sender and the downlink of its
    receiver together, one transfer at a time on each (PPipe, section 5.4). Within a node nothing is transferred.
    """

    bytes_per_row: Mapping[str, int]
    """The bytes that a row of a partition's output has, by partition; 0 where it is not named."""
    bytes_per_s: float
    """Bandwidth of each uplink and of each downlink, positive."""
    latency_ns: int = 0
    """The time from the end of a transfer on the links until its rows are there."""

    def transfer_ns(self, partition: str, rows: int) -> int:
        """How long the output of so many rows of a partition occupies the links."""
        return round(rows * self.bytes_per_row.get(partition, 0) / self.bytes_per_s * NS_PER_S)
