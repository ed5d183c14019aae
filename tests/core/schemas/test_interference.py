"""The interference file: what it promises of shares and neighbors, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.schemas import (
    DocumentError,
    InterferenceModel,
    NonDecreasingLine,
    Sensitivity,
    ShareTable,
    SharingModel,
    Tenant,
    read_document,
    write_document,
)

heights = st.floats(0, 10)
lines = st.builds(NonDecreasingLine, base=heights, slope=heights)


@st.composite
def tables(draw: st.DrawFn) -> ShareTable:
    """What falls with the share and rises with rows, and is otherwise arbitrary."""
    rows = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=4)))
    percents = sorted(draw(st.sets(st.integers(5, 100).map(float), min_size=1, max_size=4)))
    steps = st.floats(1, 3)
    ups, downs = [draw(steps) for _ in rows], [draw(steps) for _ in percents]
    taken_ms, height = [], 1.0
    for up in ups:
        height *= up
        line = [height]
        for down in downs[1:]:
            line.insert(0, line[0] * down)
        taken_ms.append(tuple(line))
    return ShareTable(rows=tuple(rows), percents=tuple(percents), taken_ms=tuple(taken_ms))


sharing = st.builds(
    SharingModel,
    gpu_ms=tables(),
    transfer_ms=lines,
    cache_percent=lines,
    dram_percent=lines,
    sensitivity=st.builds(Sensitivity, cache=st.floats(0, 0.1), dram=st.floats(0, 0.1), neighbor=st.floats(0, 1)),
)
fitted = st.builds(InterferenceModel, gpu=st.just("V100"), models=st.fixed_dictionaries({"a": sharing, "b": sharing}))
tenants = st.builds(Tenant, st.sampled_from("ab"), st.integers(1, 100), st.integers(1, 100))


@given(fitted, tenants, st.lists(tenants, max_size=4), tenants)
def test_a_further_neighbor_makes_nobody_quicker(
    model: InterferenceModel, tenant: Tenant, neighbors: list[Tenant], further: Tenant
) -> None:
    slowdown = model.slowdown(tenant, neighbors)
    assert slowdown >= 1
    assert model.slowdown(tenant, [*neighbors, further]) >= slowdown * (1 - 1e-12)


@given(fitted, tenants)
def test_nobody_is_slowed_by_nobody(model: InterferenceModel, tenant: Tenant) -> None:
    assert model.slowdown(tenant, ()) == 1
    assert model.expected_ms(tenant, ()) == model.alone(tenant).taken_ms


@given(fitted, tenants, st.integers(1, 100), st.integers(1, 100))
def test_more_rows_and_smaller_shares_take_no_less(
    model: InterferenceModel, tenant: Tenant, rows: int, percent: int
) -> None:
    larger = Tenant(tenant.partition, max(rows, tenant.rows), min(percent, tenant.percent))
    assert model.alone(larger).taken_ms >= model.alone(tenant).taken_ms * (1 - 1e-12)


@given(fitted, tenants)
def test_nothing_is_negative(model: InterferenceModel, tenant: Tenant) -> None:
    alone = model.alone(tenant)
    assert min(alone) >= 0
    assert alone.gpu_ms > 0


@given(tables(), st.data())
def test_what_was_measured_is_said_and_what_lies_between_is_between(table: ShareTable, data: st.DataObject) -> None:
    at, where = (data.draw(st.integers(0, len(axis) - 1)) for axis in (table.rows, table.percents))
    assert table.at(table.rows[at], table.percents[where]) == pytest.approx(table.taken_ms[at][where])
    later = min(where + 1, len(table.percents) - 1)
    between = (table.percents[where] + table.percents[later]) / 2
    low, high = table.taken_ms[at][later], table.taken_ms[at][where]
    assert low * (1 - 1e-9) <= table.at(table.rows[at], between) <= high * (1 + 1e-9)


TABLE = ShareTable(rows=(1, 8), percents=(20, 80), taken_ms=((4.0, 1.0), (16.0, 4.0)))
PLAIN = InterferenceModel(
    gpu="V100",
    models={
        "m": SharingModel(
            gpu_ms=TABLE,
            transfer_ms=NonDecreasingLine(base=0.5, slope=0.25),
            cache_percent=NonDecreasingLine(base=1, slope=0.01),
            dram_percent=NonDecreasingLine(slope=0.001),
            sensitivity=Sensitivity(cache=0.01, dram=0.02, neighbor=0.1),
        )
    },
)


def test_a_neighbor_slows_computing_down_by_what_it_uses_and_the_bus_not_at_all() -> None:
    """Eight rows take 4 ms of computing and 2.5 of transfer; a row on a fifth computes 250 rows/s."""
    tenant, neighbor = Tenant("m", 8, 80), Tenant("m", 1, 20)
    assert PLAIN.alone(tenant) == pytest.approx((2.5, 4.0, 1 + 20, 2.0))
    assert PLAIN.alone(neighbor) == pytest.approx((0.75, 4.0, 3.5, 0.25))
    assert PLAIN.expected_ms(tenant, [neighbor]) == pytest.approx(2.5 + 4 * (1 + 0.035 + 0.005 + 0.1))
    assert PLAIN.expected_ms(tenant, [neighbor] * 2) == pytest.approx(2.5 + 4 * (1 + 0.28))


@pytest.mark.parametrize(
    ("rows", "percent", "taken_ms"),
    [(1, 40, 2.0), (1, 100, 1.0), (1, 10, 8.0), (16, 80, 8.0), (16, 10, 64.0)],
    ids=["between shares", "a larger share", "a smaller share", "a larger batch", "both"],
)
def test_beyond_the_table_nothing_is_promised_that_was_not_measured(rows: int, percent: int, taken_ms: float) -> None:
    assert TABLE.at(rows, percent) == pytest.approx(taken_ms)


def test_it_makes_profiles_of_shares() -> None:
    beside = [Tenant("m", 1, 20)]
    profile = PLAIN.profile("m", 80, max_rows=8, device_class="V100/mps-80", neighbors=beside)
    assert (profile.device_class, profile.max_rows) == ("V100/mps-80", 8)
    assert profile.expected_ns(8) == round(1e6 * PLAIN.expected_ms(Tenant("m", 8, 80), beside))


@given(fitted)
def test_a_written_file_says_the_same(tmp_path_factory: pytest.TempPathFactory, model: InterferenceModel) -> None:
    path = tmp_path_factory.mktemp("interference") / "v100.json"
    write_document(path, model)
    assert read_document(path, InterferenceModel) == model


def test_models_that_are_not_in_it_are_named() -> None:
    assert PLAIN.lacks(["m", "n", "a"]) == ("a", "n")
    with pytest.raises(KeyError, match="n"):
        PLAIN.slowdown(Tenant("m", 1), [Tenant("n", 1)])


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"version": 2}, "version", "1"),
        ({"models": {}}, "models", "at least 1"),
        ({"gpu": ""}, "gpu", "at least 1"),
        ({"taken_ms": [[4, -1], [16, 4]]}, "models.m.gpu_ms.taken_ms.0.1", "must be more than 0"),
        ({"taken_ms": [[4, 1]]}, "models.m.gpu_ms", "must be 2 lists (one for each of rows) of 2"),
        ({"taken_ms": [[1, 4], [16, 4]]}, "models.m.gpu_ms", "a larger share must not take longer"),
        ({"taken_ms": [[4, 1], [3, 1]]}, "models.m.gpu_ms", "a larger batch must not take less"),
        ({"rows": [8, 1]}, "models.m.gpu_ms", "rows: must rise"),
        ({"percents": [20, 120]}, "models.m.gpu_ms.percents.1", "must be at most 100, not 120"),
        ({"sensitivity": {"cache": -0.1}}, "models.m.sensitivity.cache", "must be at least 0, not -0.1"),
        ({"cache": 1}, "models.m.cache", "there is no such field"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], where: str, what: str) -> None:
    document = json.loads(PLAIN.model_dump_json())
    for name, value in changes.items():
        model = document["models"]["m"]
        place = document if name in document else model["gpu_ms"] if name in model["gpu_ms"] else model
        place[name] = value
    path = tmp_path / "v100.json"
    path.write_text(json.dumps(document))
    with pytest.raises(DocumentError) as refused:
        read_document(path, InterferenceModel)
    assert f"{path}: {where}: " in str(refused.value)
    assert what in str(refused.value)
