"""Statistics of several Tritons, and the counts that clients see in their place."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tidegate_proxy.observability.model_statistics import (
    ModelStatistics,
    RequestCounts,
    merge_statistics,
    statistics_json,
)


def _declared() -> ModelStatistics:
    statistics = ModelStatistics()
    statistics.declare("m", ["2", "10"])
    return statistics


def _model(name: str, version: str = "1", count: int = 1, batch: int = 4) -> service_pb2.ModelStatistics:
    """What a Triton says that has answered `count` requests, in batches of this size."""
    duration = service_pb2.StatisticDuration(count=count, ns=count * 10)
    stats = service_pb2.ModelStatistics(
        name=name,
        version=version,
        last_inference=count,
        inference_count=count,
        execution_count=count,
        inference_stats=service_pb2.InferStatistics(
            success=duration, queue=duration, fail=service_pb2.StatisticDuration()
        ),
        batch_stats=[service_pb2.InferBatchStatistics(batch_size=batch, compute_infer=duration)],
        memory_usage=[service_pb2.MemoryUsage(type="GPU", id=0, byte_size=count * 100)],
    )
    stats.response_stats["0"].success.CopyFrom(duration)
    return stats


def _response(*models: service_pb2.ModelStatistics) -> service_pb2.ModelStatisticsResponse:
    return service_pb2.ModelStatisticsResponse(model_stats=models)


def test_perf_analyzer_finds_the_version() -> None:
    """Without a version it takes the one whose queue count moves, and fails where none does."""
    statistics = _declared()
    listed = [_response(_model("m", "2", count=50), _model("m", "10", count=50))]
    before = merge_statistics(listed, statistics.snapshot())
    statistics.answered("m", "", 1, at_ms=9, total_ns=30, queue_ns=0, infer_ns=30)
    after = merge_statistics(listed, statistics.snapshot())
    moved = [
        later.version
        for earlier, later in zip(before.model_stats, after.model_stats, strict=True)
        if later.inference_stats.queue.count > earlier.inference_stats.queue.count
    ]
    assert moved == ["10"]


def test_of_scheduled_models_the_requests_are_ours_and_the_batches_tritons() -> None:
    statistics = _declared()
    statistics.answered("m", "10", 3, at_ms=99, total_ns=50, queue_ns=5, infer_ns=8)
    whole = merge_statistics(
        [_response(_model("m", "10", count=5)), _response(_model("m", "10", count=7))], statistics.snapshot()
    )
    [model] = whole.model_stats
    assert (model.last_inference, model.inference_count, model.execution_count) == (99, 3, 0)
    stats = model.inference_stats
    assert (stats.success.count, stats.success.ns, stats.queue.ns, stats.compute_infer.ns) == (1, 50, 5, 8)
    assert stats.HasField("fail") and stats.HasField("cache_hit")
    assert [(batch.batch_size, batch.compute_infer.count) for batch in model.batch_stats] == [(4, 12)]
    assert [(usage.type, usage.id, usage.byte_size) for usage in model.memory_usage] == [("GPU", 0, 1200)]


def test_a_model_that_no_triton_lists_is_not_invented() -> None:
    whole = merge_statistics([_response(_model("other"))], _declared().snapshot())
    assert [model.name for model in whole.model_stats] == ["other"]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(0, 9), st.sampled_from((1, 2, 8)))))
def test_other_models_are_summed(parts: list[tuple[str, int, int, int]]) -> None:
    whole = merge_statistics(
        [_response(_model(name, str(version), count, batch)) for name, version, count, batch in parts], {}
    )
    keys = [(model.name, int(model.version)) for model in whole.model_stats]
    assert keys == sorted({(name, version) for name, version, _, _ in parts})
    for model, key in zip(whole.model_stats, keys, strict=True):
        counts = [count for name, version, count, _ in parts if (name, version) == key]
        assert model.inference_count == model.execution_count == sum(counts)
        assert model.last_inference == max(counts)
        assert model.inference_stats.success.ns == model.response_stats["0"].success.ns == 10 * sum(counts)
        assert model.inference_stats.queue.count == sum(counts)
        assert sum(usage.byte_size for usage in model.memory_usage) == 100 * sum(counts)
        sizes = [batch.batch_size for batch in model.batch_stats]
        assert sizes == sorted({size for name, version, _, size in parts if (name, version) == key})
        for batch in model.batch_stats:
            ran = [part[2] for part in parts if part[:2] == key and part[3] == batch.batch_size]
            assert (batch.compute_infer.count, batch.compute_infer.ns) == (sum(ran), 10 * sum(ran))


def test_the_parts_stay_as_they_are() -> None:
    parts = [_response(_model("a")), _response(_model("a"))]
    merge_statistics(parts, {("a", "1"): RequestCounts(rows=9)})
    assert parts == [_response(_model("a")), _response(_model("a"))]


def test_json_has_every_field_and_numbers_as_numbers() -> None:
    large = 2**63
    printed = json.loads(statistics_json(_response(service_pb2.ModelStatistics(name="m", last_inference=large))))
    [model] = printed["model_stats"]
    assert model["last_inference"] == large
    assert model["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
    assert (model["batch_stats"], model["memory_usage"], model["response_stats"]) == ([], [], {})


def test_json_of_responses_is_as_tritons_extension_describes_it() -> None:
    [model] = json.loads(statistics_json(_response(_model("m"))))["model_stats"]
    assert list(model["response_stats"]) == ["0"]
    names = ["compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"]
    assert list(model["response_stats"]["0"]) == names
    assert model["memory_usage"] == [{"type": "GPU", "id": 0, "byte_size": 100}]
