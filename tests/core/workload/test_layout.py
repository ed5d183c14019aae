"""The layout of a scenario: what its workers are short for, and a layout in their place."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.core.schemas.test_layout import LAYOUT
from tidegate.schemas import Device, Layout, Mps, Slice, WholeDevice
from tidegate.workload import Scenario, layout_of, read_scenario
from tidegate.workload.partitions import blocks_of

LINE = {"alpha_ms": 1, "beta_ms": 4}
SMALL: dict[str, Any] = {
    "duration_s": 5,
    "workers": [{"count": 2, "gpu": "A100"}],
    "models": [{"name": name, "max_batch": 4, "profile": LINE} for name in "ab"],
    "arrivals": {"rate_rps": 100},
}


def placed(workers: list[dict[str, Any]]) -> list[tuple[Device, Slice]]:
    layout = layout_of(Scenario.model_validate({**SMALL, "workers": workers}))
    return [(worker.device, worker.slice) for worker in layout.workers]


def test_each_worker_has_a_gpu_of_its_own_numbered_in_its_node() -> None:
    pools = [{"count": 2, "gpu": "A100"}, {"count": 1, "gpu": "T4"}, {"count": 1, "gpu": "T4", "node": "far"}]
    assert placed(pools) == [
        (Device("node0", 0, "A100"), WholeDevice()),
        (Device("node0", 1, "A100"), WholeDevice()),
        (Device("node0", 2, "T4"), WholeDevice()),
        (Device("far", 0, "T4"), WholeDevice()),
    ]


def test_workers_that_share_a_gpu_have_its_device_and_machines_have_whole_gpus() -> None:
    assert placed([{"count": 5, "gpu": "L4", "per_gpu": 2, "node": "n", "per_node": 4}]) == [
        (Device("n-0", 0, "L4"), Mps(50)),
        (Device("n-0", 0, "L4"), Mps(50)),
        (Device("n-0", 1, "L4"), Mps(50)),
        (Device("n-0", 1, "L4"), Mps(50)),
        (Device("n-1", 0, "L4"), Mps(50)),
    ]


def test_entries_that_name_a_device_share_it_and_others_pass_it_by() -> None:
    half = {"count": 1, "gpu": "L4", "per_gpu": 2, "device": 0}
    assert placed([{"count": 1, "gpu": "L4"}, {**half, "hosts": ["a"]}, {**half, "hosts": ["b"]}]) == [
        (Device("node0", 1, "L4"), WholeDevice()),
        (Device("node0", 0, "L4"), Mps(50)),
        (Device("node0", 0, "L4"), Mps(50)),
    ]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"count": st.integers(1, 9), "per_gpu": st.integers(1, 4)},
            optional={"device": st.integers(0, 3), "node": st.sampled_from("xy")},
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_gpu_has_no_more_workers_than_its_entry_says_unless_it_is_named(pools: list[dict[str, Any]]) -> None:
    devices = [device for device, _ in placed(pools)]
    assert len(devices) == sum(pool["count"] for pool in pools)
    named = {(pool.get("node", "node0"), pool["device"]) for pool in pools if "device" in pool}
    first = 0
    for pool in pools:
        own = devices[first : first + pool["count"]]
        first += pool["count"]
        for device in set(own):
            if (device.node, device.id) in named:
                assert device.id == pool.get("device"), "nobody comes to a named one unasked"
            else:
                assert devices.count(device) == own.count(device) <= pool["per_gpu"]


def test_a_share_has_the_profile_of_the_gpu_unless_it_has_its_own() -> None:
    workers = [{"count": 1, "gpu": "L4"}, {"count": 2, "gpu": "L4", "per_gpu": 2}]
    models = [
        {"name": "a", "max_batch": 1, "profiles": {"L4": LINE}},
        {"name": "b", "max_batch": 1, "profiles": {"L4": LINE, "L4/mps-50": {**LINE, "beta_ms": 9}}},
    ]
    _, told, profiles, _ = layout_of(
        Scenario.model_validate({**SMALL, "workers": workers, "models": models})
    ).contract()
    assert [worker.device_class for worker in told] == ["L4", "L4/mps-50", "L4/mps-50"]
    assert {(each.partition, each.device_class): each.expected_ns(1) / 1e6 for each in profiles} == {
        ("a", "L4"): 5,
        ("a", "L4/mps-50"): 5,
        ("b", "L4"): 5,
        ("b", "L4/mps-50"): 10,
    }


@given(st.lists(st.lists(st.integers(1, 11), max_size=5, unique=True).map(sorted), min_size=1, max_size=4))
def test_blocks_follow_each_other_whatever_the_cuts(pipelines: list[list[int]]) -> None:
    names = [[f"{first}-{end}" for first, end in pairwise([0, *cuts, 12])] for cuts in pipelines]
    blocks = blocks_of(names)
    assert blocks.keys() == {name for pipeline in names for name in pipeline}
    for pipeline in names:
        at = 0
        for first, end in map(blocks.__getitem__, pipeline):
            assert first == at < end
            at = end


def test_a_partition_after_itself_is_refused() -> None:
    part = {"name": "p", "profile": LINE}
    model = {"name": "m", "pipelines": [{"batch": 4, "partitions": [part, part]}]}
    with pytest.raises(ValidationError, match="'p' would come after itself"):
        Scenario.model_validate({**SMALL, "models": [model]})


# A layout in place of workers ----------------------------------------------------------------------------------------

LOAD: dict[str, Any] = {"duration_s": 1, "arrivals": {"rate_rps": 20}}


def test_a_layout_may_stand_in_the_scenario_which_then_needs_no_file(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(LAYOUT))
    (tmp_path / "scenario.yaml").write_text(json.dumps({**LOAD, "layout": "layout.json"}))
    scenario = read_scenario(tmp_path / "scenario.yaml")
    assert layout_of(scenario) == Layout.model_validate(LAYOUT)
    again = Scenario.model_validate(json.loads(json.dumps(scenario.model_dump(mode="json"))))
    assert again.model_dump() == scenario.model_dump()
    assert layout_of(again) == layout_of(scenario)
    (model,) = scenario.models
    assert (model.name, model.slo_ms, model.max_rows, model.weight) == ("m", 20, 2, 50)


def test_what_else_is_known_of_its_models_may_be_listed() -> None:
    said = {"name": "m", "weight": 2, "slo_ms": 35, "rows": 2}
    scenario = Scenario.model_validate({**LOAD, "layout": LAYOUT, "models": [said]})
    assert (scenario.models[0].weight, scenario.models[0].rows.bounds[1]) == (2, 2)
    assert layout_of(scenario).models[0].slo_ms == 35
    assert Scenario.model_validate(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"models": [{"name": "n"}]}, "models: 'n' is no model of the layout"),
        ({"models": [{"name": "m", "profile": LINE}]}, "profile of 'm' comes from the layout"),
        ({"models": [{"slo_ms": 5}]}, "name"),
        ({"network": {"gbps": 1}}, "network: comes from the layout"),
        ({"layout": "nowhere.json"}, "layout: nowhere.json: No such file"),
        ({"layout": {**LAYOUT, "workers": LAYOUT["workers"][:1]}}, "layout: .* no worker hosts 'b'"),
        ({"layout": {**LAYOUT, "worker": []}}, r"layout: worker: there is no such field"),
    ],
)
def test_what_does_not_fit_a_layout_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Scenario.model_validate({**LOAD, "layout": LAYOUT, **changes})
