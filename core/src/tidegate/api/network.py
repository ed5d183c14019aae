"""The network between nodes, as far as schedulers plan with it."""

from collections.abc import Mapping

import msgspec

NS_PER_S = 1_000_000_000


class Network(msgspec.Struct, frozen=True):
    """Cost of moving the output of a stage to the node of the next stage.

    Each node has one uplink and one downlink. A transfer occupies the sender's uplink and the receiver's downlink at
    once, one transfer at a time on each (PPipe, section 5.4). Within a node a transfer takes no time.
    """

    bytes_per_row: Mapping[str, int]
    """Output bytes of one row, by partition; 0 for partitions not listed."""
    bytes_per_s: float
    """Bandwidth of each uplink and each downlink in bytes per second, positive."""
    latency_ns: int = 0
    """Latency in ns from the end of a transfer until its rows have arrived."""

    def transfer_ns(self, partition: str, rows: int) -> int:
        """Return how long, in ns, the output of `rows` rows of a partition occupies the links."""
        return round(rows * self.bytes_per_row.get(partition, 0) / self.bytes_per_s * NS_PER_S)
