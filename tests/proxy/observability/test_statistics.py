"""The counts that clients see."""

from tidegate_proxy.observability.model_statistics import FAILURE_REASONS, ModelStatistics, RequestCounts
from tidegate_proxy.tritons.model_graphs import GraphStage


def _declared() -> ModelStatistics:
    statistics = ModelStatistics()
    statistics.declare("m", ["2", "10"])
    return statistics


def test_requests_are_counted_one_by_one() -> None:
    statistics = _declared()
    statistics.executed("m", "")
    for rows, total_ns in ((1, 30), (3, 20)):
        statistics.answered(
            "m", "", rows, at_ms=1000 + rows, total_ns=total_ns, queue_ns=5, infer_ns=8, input_ns=2, output_ns=1
        )
    statistics.failed("m", "10", "REJECTED", 7)
    assert statistics.latest("m") == "10"
    assert statistics.snapshot() == {
        ("m", "2"): RequestCounts(),
        ("m", "10"): RequestCounts(
            rows=4,
            executions=1,
            last_ms=1003,
            successes=2,
            success_ns=50,
            queue_ns=10,
            input_ns=4,
            infer_ns=16,
            output_ns=2,
            failures=statistics.snapshot()["m", "10"].failures,
            failure_ns=7,
        ),
    }
    assert statistics.snapshot()["m", "10"].failures == {"REJECTED": 1}


def test_a_batch_counts_as_its_requests() -> None:
    statistics = _declared()
    statistics.answered("m", "2", 7, requests=3, at_ms=5, total_ns=90, queue_ns=30, infer_ns=60)
    counts = statistics.snapshot()["m", "2"]
    assert (counts.rows, counts.successes, counts.success_ns, counts.queue_ns, counts.infer_ns) == (7, 3, 90, 30, 60)


def test_what_was_passed_through_counts_as_well() -> None:
    statistics = _declared()
    statistics.passed_through("m", "2", ok=True, at_ms=5, total_ns=40, rows=2)
    statistics.passed_through("m", "2", ok=False, at_ms=6, total_ns=60)
    counts = statistics.snapshot()["m", "2"]
    assert (counts.rows, counts.executions, counts.successes, counts.success_ns) == (2, 2, 1, 40)
    assert (counts.infer_ns, counts.last_ms, counts.failures, counts.failure_ns) == (40, 5, {"BACKEND": 1}, 60)


def test_what_was_not_declared_is_not_counted() -> None:
    statistics = _declared()
    for model, version in (("other", ""), ("other", "1"), ("m", "3")):
        statistics.passed_through(model, version, ok=True, at_ms=5, total_ns=40)
        statistics.failed(model, version, "OTHER", 1)
    assert statistics.latest("other") is None
    assert set(statistics.snapshot()) == {("m", "2"), ("m", "10")}
    assert all(counts == RequestCounts() for counts in statistics.snapshot().values())


def test_what_ensembles_run_is_counted_without_its_time() -> None:
    statistics = _declared()
    statistics.declare_ensemble(
        "inner", [GraphStage("m", "", (), (("Y", "Y"),)), GraphStage("unscheduled", "", (), ())]
    )
    statistics.declare_ensemble(
        "outer", [GraphStage("inner", "", (), (("Y", "A"),)), GraphStage("m", "2", (), (("Z", "B"),))]
    )
    statistics.passed_through("outer", "", ok=True, at_ms=5, total_ns=40, rows=3)
    statistics.passed_through("outer", "", ok=False, at_ms=6, total_ns=40, rows=3)
    expected = RequestCounts(rows=3, executions=1, successes=1, last_ms=5)
    assert statistics.snapshot() == {("m", "2"): expected, ("m", "10"): expected}


def test_steps_that_an_ensemble_leaves_out_are_not_counted() -> None:
    """Those that make no output that the request names, directly or through others."""
    statistics = _declared()
    steps = [GraphStage("m", "2", (), (("Y", "between"),)), GraphStage("m", "10", (("X", "between"),), (("Y", "B"),))]
    statistics.declare_ensemble("chain", [*steps, GraphStage("m", "10", (), (("Y", "A"),))])
    for wanted, executions in (((), (1, 2)), (("B",), (1, 1)), (("A",), (0, 1))):
        before = [statistics.snapshot()["m", version].executions for version in ("2", "10")]
        statistics.passed_through("chain", "", ok=True, at_ms=5, total_ns=40, wanted=wanted)
        now = [statistics.snapshot()["m", version].executions for version in ("2", "10")]
        assert tuple(each - was for each, was in zip(now, before, strict=True)) == executions


def test_versions_come_and_go() -> None:
    statistics = _declared()
    statistics.executed("m", "2")
    statistics.executed("m", "10")
    statistics.declare("m", ["2", "3"])
    assert {key: counts.executions for key, counts in statistics.snapshot().items()} == {("m", "2"): 1, ("m", "3"): 0}
    assert statistics.latest("m") == "3"
    statistics.declare("m", [])
    statistics.executed("m", "")
    assert statistics.snapshot() == {}


def test_the_reasons_are_tritons() -> None:
    assert set(FAILURE_REASONS) == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}


def test_to_declare_a_model_takes_no_look_at_the_others() -> None:
    """With a look at each, every one of `n` loads would take `n` times `n` of them."""
    looks: list[str] = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            looks.append(self)
            return str.__eq__(self, other)

    statistics = ModelStatistics()
    for number in range(100):
        statistics.declare(Name(f"m{number}"), ["1"])
    looks.clear()
    statistics.declare(Name("m7"), ["1", "2"])
    assert len(looks) < 10
    assert statistics.latest("m7") == "2"
