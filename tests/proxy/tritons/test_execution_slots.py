"""Which models of a Triton run in turn, and on how many workers."""

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.tritons.workers import ExecutionSlot, execution_slots_of


def _config(count: int = 1, *resources: str, gpus: str = "") -> model_config_pb2.ModelConfig:
    needs = " ".join(f"resources {{ {resource} count: 1 }}" for resource in resources)
    limiter = f"rate_limiter {{ {needs} }}" if needs else ""
    return text_format.Parse(
        f"instance_group {{ count: {count} {gpus} {limiter} }}", model_config_pb2.ModelConfig(max_batch_size=8)
    )


def _lanes(
    *turns: str, serialize_models: bool | None = None, **configs: model_config_pb2.ModelConfig
) -> list[ExecutionSlot]:
    return list(execution_slots_of(configs, serialize_models=serialize_models, turns=frozenset(turns)))


def test_models_run_side_by_side_each_on_its_instances() -> None:
    assert _lanes(b=_config(2), a=_config()) == [
        ExecutionSlot("a/0", ("a",), takes_turns=False),
        ExecutionSlot("b/0", ("b",), takes_turns=False),
        ExecutionSlot("b/1", ("b",), takes_turns=False),
    ]


def test_those_that_need_a_resource_of_each_others_run_in_turn() -> None:
    gpu, bus = 'name: "gpu"', 'name: "bus"'
    lanes = _lanes(
        a=_config(1, gpu), b=_config(2, gpu, bus), c=_config(1, bus), d=_config(1, 'name: "other"'), e=_config()
    )
    assert [(lane.name, lane.models) for lane in lanes] == [
        ("a+2/0", ("a", "b", "c")),
        ("a+2/1", ("b",)),
        ("d/0", ("d",)),
        ("e/0", ("e",)),
    ]


def test_a_resource_is_one_for_each_gpu_unless_it_is_global() -> None:
    own, shared = 'name: "gpu"', 'name: "gpu" global: true'
    assert len(_lanes(a=_config(1, own, gpus="gpus: [0]"), b=_config(1, own, gpus="gpus: [1]"))) == 2
    assert len(_lanes(a=_config(1, own, gpus="gpus: [0]"), b=_config(1, own, gpus="gpus: [0]"))) == 1
    assert len(_lanes(a=_config(1, shared, gpus="gpus: [0]"), b=_config(1, shared, gpus="gpus: [1]"))) == 1


def test_what_the_configuration_says_goes_before_resources_and_what_was_learned() -> None:
    gpu = _config(1, 'name: "gpu"')
    assert [lane.models for lane in _lanes(serialize_models=True, a=_config(), b=_config(2))] == [("a", "b"), ("b",)]
    assert [lane.models for lane in _lanes("a", "b", serialize_models=False, a=gpu, b=gpu)] == [
        ("a",),
        ("b",),
    ]


def test_those_that_take_turns_are_in_one_lane_of_another_kind() -> None:
    lanes = _lanes("a", "c", "gone", a=_config(), b=_config(), c=_config())
    assert lanes == [
        ExecutionSlot("a+1/0", ("a", "c"), takes_turns=True),
        ExecutionSlot("b/0", ("b",), takes_turns=False),
    ]
