"""Block profiles: complete or refused, straight lines between what was measured, merged by kind and share."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidegate.schemas import BlockLatencies, BlockProfile, DocumentError, read_document, write_document

TABLE = {"device_class": "l4", "share": 1, "rows": [1, 4], "latency_us": [[10, 40], [20, 20]]}


def profile(*latencies: dict[str, Any], **fields: Any) -> BlockProfile:
    document = {"model": "m", "blocks": ["00", "01"], "cut_bytes": [256], "latencies": list(latencies), **fields}
    return BlockProfile.model_validate(document)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = profile(TABLE, memory_mib=[1.5, 2])
    write_document(tmp_path / "p.json", written)
    assert read_document(tmp_path / "p.json", BlockProfile) == written
    assert '"kind": "block_profile"' in (tmp_path / "p.json").read_text()


@pytest.mark.parametrize(
    ("rows", "first", "last", "us"), [(1, 0, 2, 30), (4, 0, 1, 40), (2, 0, 1, 20), (3, 0, 2, 50), (3, 1, 2, 20)]
)
def test_a_partition_takes_as_long_as_its_blocks(rows: int, first: int, last: int, us: float) -> None:
    assert profile(TABLE).latency_us("l4", 1, rows, first, last) == pytest.approx(us)


@given(st.data())
def test_partitions_add_up_and_lie_between_the_measured(data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.integers(1, 64), min_size=1, max_size=5)))
    values = st.lists(st.floats(0.1, 1e6), min_size=len(rows), max_size=len(rows))
    table = data.draw(st.lists(values, min_size=3, max_size=3))
    latencies = [BlockLatencies(device_class="k", share=2, rows=rows, latency_us=table)]
    measured = BlockProfile(model="m", blocks=["a", "b", "c"], cut_bytes=[1, 1], latencies=latencies)
    size = data.draw(st.integers(rows[0], rows[-1]))
    parts = [measured.latency_us("k", 2, size, block, block + 1) for block in range(3)]
    assert measured.latency_us("k", 2, size, 0, 3) == pytest.approx(sum(parts))
    for part, row in zip(parts, table, strict=True):
        assert min(row) - 1e-6 <= part <= max(row) + 1e-6
        if size in rows:
            assert part == pytest.approx(row[rows.index(size)])


@pytest.mark.parametrize(("kind", "share", "rows"), [("t4", 1, 1), ("l4", 2, 1), ("l4", 1, 5)])
def test_what_was_not_measured_is_an_error_with_the_command(kind: str, share: int, rows: int) -> None:
    with pytest.raises(DocumentError, match=f"--device-class {kind} --share {share} --rows {rows}"):
        profile(TABLE).latency_us(kind, share, rows, 0, 2)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (1, 1), (-1, 1)])
def test_blocks_that_are_none(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="of a model with 2"):
        profile(TABLE).latency_us("l4", 1, 1, first, last)


def test_what_is_missing() -> None:
    assert profile(TABLE).missing("l4", [1, 2], [1, 2, 4]) == [(1, 2), (2, 1), (2, 2), (2, 4)]
    assert profile(TABLE).missing("l4", [1], [4]) == []
    assert profile(TABLE).kinds == ["l4"]


def test_merging_adds_kinds_shares_and_batches_and_the_newer_wins() -> None:
    newer = profile(
        TABLE | {"device_class": "a100"},
        TABLE | {"rows": [2, 4], "latency_us": [[15, 41], [20, 21]]},
        memory_mib=[1, 1],
    )
    merged = profile(TABLE).merged(newer)
    assert [(table.device_class, table.rows) for table in merged.latencies] == [("a100", [1, 4]), ("l4", [1, 2, 4])]
    assert merged.latencies[1].latency_us == [[10, 15, 41], [20, 20, 21]]
    assert merged.memory_mib == [1, 1]
    assert merged.merged(profile(TABLE)).memory_mib == [1, 1]


def test_profiles_of_different_cuts_do_not_merge() -> None:
    with pytest.raises(DocumentError, match="differ in 'cut_bytes'"):
        profile(TABLE).merged(profile(TABLE, cut_bytes=[128]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"latencies": [TABLE | {"rows": [4, 1]}]}, "must rise"),
        ({"latencies": [TABLE | {"latency_us": [[10, 40], [20]]}]}, "latency_us.1 has 1 values for 2 batch sizes"),
        ({"latencies": [TABLE | {"latency_us": [[10, 40]]}]}, "share 1.: latency_us has 1 blocks, and the model has 2"),
        ({"latencies": [TABLE | {"latency_us": [[10, 40], [20, 0]]}]}, "greater than 0"),
        ({"latencies": [TABLE, TABLE]}, "a second table of device class 'l4', share 1"),
        ({"cut_bytes": []}, "cut_bytes has 0 values for the 1 cuts"),
        ({"blocks": ["00", "00"]}, "two have the same name"),
        ({"memory_mib": [1]}, "memory_mib has 1 values for 2 blocks"),
        ({"kind": "plan"}, "Input should be 'block_profile'"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        profile(TABLE, **fields)
