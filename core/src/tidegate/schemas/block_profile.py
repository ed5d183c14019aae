"""The block profile: latency of each block of a model, by device class, virtual share and batch size.

`tidegate profile-blocks` writes it; planners that partition models read it. A block is the smallest piece of a model
that a planner may place; consecutive blocks make a partition, whose latency is the sum of the latencies of its blocks
(PPipe, sections 5.1 and 5.2, L_{k,v,b,i} and S_i).
"""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidegate.api import VersionedDocument
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import DocumentError

Microseconds = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]


class BlockLatencies(DocumentSection):
    """Latency measured on one device class at one virtual share: a complete table of blocks by batch sizes."""

    device_class: str = Field(min_length=1)
    """Device class of the GPU or worker."""
    share: int = Field(ge=1)
    """Virtual share v: measured on 1/v of the device, with all v shares busy."""
    rows: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Measured batch sizes in rows, ascending."""
    latency_us: list[list[Microseconds]]
    """Latency in microseconds: `latency_us[block][i]` is that of a batch of `rows[i]` rows."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise(self.rows)):
            raise ValueError(f"rows {self.rows} must rise")
        for block, row in enumerate(self.latency_us):
            if len(row) != len(self.rows):
                raise ValueError(
                    f"latency_us.{block} has {len(row)} values for {len(self.rows)} batch sizes ({self.rows}): measure "
                    f"this block at each, for device class '{self.device_class}', share {self.share}"
                )
        return self

    def merged(self, newer: Self) -> Self:
        """Return the measurements with those of `newer`, of the same class and share; its values win."""
        rows = sorted({*self.rows, *newer.rows})
        table = [
            [dict(zip((*self.rows, *newer.rows), (*old, *new), strict=True))[size] for size in rows]
            for old, new in zip(self.latency_us, newer.latency_us, strict=True)
        ]
        return self.model_copy(update={"rows": rows, "latency_us": table})


class BlockProfile(VersionedDocument):
    """Measured latency of the blocks of one model."""

    kind: Literal["block_profile"] = "block_profile"
    model: str = Field(min_length=1)
    blocks: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Names of the blocks, in the order in which they run."""
    cut_bytes: list[Annotated[int, Field(ge=1)]]
    """Bytes of one row at each boundary between blocks, as transferred (halved if transferred as fp16)."""
    memory_mib: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """Device memory of each block in MiB: weights, and workspace if measured; None if not measured."""
    latencies: list[BlockLatencies]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        count = len(self.blocks)
        if len(set(self.blocks)) != count:
            raise ValueError("blocks: two have the same name")
        if len(self.cut_bytes) != count - 1:
            raise ValueError(f"cut_bytes has {len(self.cut_bytes)} values for the {count - 1} cuts between the blocks")
        if self.memory_mib is not None and len(self.memory_mib) != count:
            raise ValueError(f"memory_mib has {len(self.memory_mib)} values for {count} blocks")
        seen = set()
        for number, table in enumerate(self.latencies):
            if (table.device_class, table.share) in seen:
                raise ValueError(
                    f"latencies.{number}: a second table of device class '{table.device_class}', share {table.share}"
                )
            seen.add((table.device_class, table.share))
            if len(table.latency_us) != count:
                raise ValueError(
                    f"latencies.{number} (device class '{table.device_class}', share {table.share}): latency_us has "
                    f"{len(table.latency_us)} blocks, and the model has {count}"
                )
        return self

    @property
    def kinds(self) -> list[str]:
        """Measured device classes, sorted."""
        return sorted({table.device_class for table in self.latencies})

    def latency_us(self, device_class: str, share: int, rows: int, first: int, last: int) -> float:
        """Return the expected latency in microseconds of the blocks `first`..`last` - 1 for a batch of `rows` rows.

        `device_class`: device class; `share`: virtual share. Measured batch sizes are interpolated linearly. Raises
        DocumentError for a device class, share or batch size that was not measured, ValueError for blocks that the
        model lacks.
        """
        if not 0 <= first < last <= len(self.blocks):
            raise ValueError(f"blocks {first} to {last} (exclusive) of a model with {len(self.blocks)}")
        table = self._table(device_class, share)
        if table is None or not table.rows[0] <= rows <= table.rows[-1]:
            measured = "none" if table is None else f"batches of {table.rows[0]} to {table.rows[-1]}"
            raise DocumentError(
                f"the block profile of '{self.model}' has no latency of batch {rows} on device class '{device_class}', "
                f"share {share} (measured there: {measured}): measure it with "
                f"`tidegate profile-blocks --device-class {device_class} "
                f"--share {share} --rows {rows}`"
            )
        above = next(i for i, measured_rows in enumerate(table.rows) if measured_rows >= rows)
        below = max(0, above - 1)
        span = table.rows[above] - table.rows[below]
        weight = (rows - table.rows[below]) / span if span else 0.0
        return sum(row[below] + weight * (row[above] - row[below]) for row in table.latency_us[first:last])

    def missing(self, device_class: str, shares: list[int], rows: list[int]) -> list[tuple[int, int]]:
        """Return the pairs (share, batch size in rows) of a device class that were not measured.

        `device_class`: device class; `shares`, `rows`: values to check; the result has their order.
        """
        tables = {share: self._table(device_class, share) for share in shares}
        return [
            (share, size) for share, table in tables.items() for size in rows if table is None or size not in table.rows
        ]

    def merged(self, newer: Self) -> Self:
        """Return the measurements with those of `newer`: other classes, shares and batch sizes; its values win.

        Raises DocumentError if the blocks differ.
        """
        for field in ("model", "blocks", "cut_bytes"):
            if getattr(self, field) != getattr(newer, field):
                raise DocumentError(
                    f"two block profiles differ in '{field}': they are of different cuts of a model and cannot be "
                    "merged; write the new one to a file of its own"
                )
        tables = {(table.device_class, table.share): table for table in self.latencies}
        for table in newer.latencies:
            older = tables.get((table.device_class, table.share))
            tables[table.device_class, table.share] = table if older is None else older.merged(table)
        memory_mib = self.memory_mib if newer.memory_mib is None else newer.memory_mib
        update = {"latencies": [tables[key] for key in sorted(tables)], "memory_mib": memory_mib}
        return self.model_copy(update=update)

    def _table(self, device_class: str, share: int) -> BlockLatencies | None:
        return next(
            (table for table in self.latencies if (table.device_class, table.share) == (device_class, share)), None
        )
