"""A layout parted among shards: what one engine has to know of stays together, and nothing is lost."""

import pytest

from tests.proxy.on_ray.deployment import layout
from tidegate.schemas import Device, Layout, LayoutWorker
from tidegate_proxy.on_ray.plan import split_layout

FOUR = ("ant", "bee", "cat", "dog")


def names(layouts: tuple[Layout, ...]) -> list[list[str]]:
    return [[model.name for model in each.models] for each in layouts]


@pytest.mark.parametrize(
    ("shards", "expected"), [(1, [[*FOUR]]), (2, [["ant", "cat"], ["bee", "dog"]]), (9, [[name] for name in FOUR])]
)
def test_models_are_parted_evenly(shards: int, expected: list[list[str]]) -> None:
    whole = layout(*FOUR)
    parts = split_layout(whole, shards, [worker.name for worker in whole.workers])
    assert names(parts) == expected
    assert all(Layout.model_validate(each.model_dump()) == each for each in parts), "each is a layout by itself"
    assert sorted(worker.name for each in parts for worker in each.workers) == [f"on-{name}" for name in FOUR]


def test_what_shares_a_device_or_a_model_stays_together() -> None:
    whole = layout(*FOUR)
    ant, bee, cat, dog = whole.workers
    beside_ant = bee.model_copy(update={"device": ant.device})
    another_dog = LayoutWorker(name="another", device=Device("there", 0), device_class="any", hosts=("dog",))
    shared = whole.model_copy(update={"workers": (ant, another_dog, beside_ant, cat, dog)})
    parts = split_layout(shared, 9, [worker.name for worker in shared.workers])
    assert sorted(names(parts)) == [["ant", "bee"], ["cat"], ["dog"]]


def test_a_model_none_of_whose_workers_is_started_is_in_no_layout() -> None:
    assert names(split_layout(layout("ant", "bee"), 2, ["on-bee"])) == [["bee"]]
