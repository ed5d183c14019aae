"""Which workers go on when the layout changes."""

from tests.core.control.layouts import layout, workers_of
from tidegate.control import LayoutRevision
from tidegate.schemas import LayoutNetwork, Mps


def test_a_worker_goes_on_where_it_is_under_whatever_name() -> None:
    first = LayoutRevision.of(layout(workers_of(3)))
    renamed = layout({"x": ["m"], "y": ["m"]}, on={"x": 2, "y": 7})
    after = first.followed_by(renamed, 3)
    assert after.ids == (2, 3)
    assert [worker.name for worker in after.layout.workers] == ["w2", "y"]


def test_one_that_hosts_something_else_or_has_another_share_or_batch_is_new() -> None:
    first = LayoutRevision.of(layout({"w0": ["m"]}))
    for other in (
        layout({"w0": ["m", "n"]}),
        layout({"w0": ["m"]}, slices={"w0": Mps(percent=50)}),
        layout({"w0": ["m"]}, batch=2),
    ):
        after = first.followed_by(other, 5)
        assert (after.ids, after.layout.workers[0].name) == ((5,), "w0~2")


def test_equal_workers_of_one_place_are_kept_one_by_one() -> None:
    twins = layout(workers_of(3), on={"w0": 0, "w1": 0, "w2": 0})
    first = LayoutRevision.of(twins)
    assert first.followed_by(twins, 3) == first
    fewer = first.followed_by(layout(workers_of(2), on={"w0": 0, "w1": 0}), 3)
    assert fewer.ids == (0, 1)
    more = first.followed_by(layout(workers_of(4), on={f"w{number}": 0 for number in range(4)}), 3)
    assert more.ids == (0, 1, 2, 3)


def test_slos_and_network_are_not_the_controllers() -> None:
    first = LayoutRevision.of(layout(workers_of(1)).model_copy(update={"network": LayoutNetwork(gbps=1)}))
    after = first.followed_by(layout(workers_of(2), slo_ms=5000), 1)
    assert after.layout.models[0].slo_ms == 100
    assert after.layout.network == LayoutNetwork(gbps=1)


def test_the_contract_has_the_ids() -> None:
    revision = LayoutRevision(layout(workers_of(2)), (4, 9))
    assert [(worker.id, worker.name) for worker in revision.contract()[1]] == [(4, "w0"), (9, "w1")]
