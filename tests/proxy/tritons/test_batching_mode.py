"""Nothing is merged that Triton would not merge, and the operator's word goes before what a config says."""

from dataclasses import replace
from typing import get_args

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.section import SchedulingMode
from tidegate_proxy.tritons.backend import BackendError
from tidegate_proxy.tritons.batching_mode import BatchingDecision, consent_of, lines_of, most_careful

ONNX = 'backend: "onnxruntime" max_batch_size: 8 '
PYTHON = 'backend: "python" max_batch_size: 8 '
BATCHING = "dynamic_batching { }"
X = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] %s }'


def config_of(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse('name: "m" ' + text, model_config_pb2.ModelConfig())


def consents(text: str, told: SchedulingMode | None = None, *, has_slo: bool = False) -> BatchingDecision:
    return consent_of(config_of(text), told, has_slo=has_slo)


def says(word: str) -> str:
    return f'parameters {{ key: "tidegate_scheduling" value: {{ string_value: "{word}" }} }}'


def test_dynamic_batching_is_consent() -> None:
    assert consents(ONNX + BATCHING) == BatchingDecision("batched", "dynamic_batching")


@pytest.mark.parametrize("text", [ONNX, PYTHON], ids=["onnx", "python"])
@pytest.mark.parametrize("has_slo", [False, True])
def test_without_it_requests_run_alone(text: str, has_slo: bool) -> None:
    consent = consents(text, has_slo=has_slo)
    assert (consent.scheduling, consent.merge_limit) == ("unbatched", 1)
    assert "no dynamic_batching" in consent.why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PYTHON + BATCHING, "backend python"),
        ('backend: "mine" max_batch_size: 8 ' + BATCHING, "backend mine"),
        ('runtime: "model.py" backend: "pytorch" max_batch_size: 8 ' + BATCHING, "backend model.py"),
        (ONNX + BATCHING + X % "allow_ragged_batch: true", "allow_ragged_batch"),
        (ONNX + BATCHING + 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" }', "strategy of its own"),
        (ONNX + BATCHING + "response_cache { enable: true }", "response_cache"),
    ],
    ids=["python", "unknown", "python-runtime", "ragged", "strategy", "cache"],
)
def test_where_the_request_is_the_unit_triton_batches_unless_a_config_says_so(text: str, why: str) -> None:
    assert consents(text).scheduling == "bypass"
    assert why in consents(text).why
    with_slo = consents(text, has_slo=True)
    assert with_slo.scheduling == "bypass", "one by one it would be slower than in Triton"
    assert with_slo.is_left_to_triton
    assert "its SLO has no effect" in with_slo.warning
    assert why in with_slo.warning
    assert consents(text, "unbatched", has_slo=True) == BatchingDecision("unbatched", "the configuration says so", 1)
    assert consents(text, "batched") == BatchingDecision("batched", "the configuration says so")


@pytest.mark.parametrize("asked", ["default_queue_policy { max_queue_size: 8 }", "preserve_ordering: true"])
def test_what_only_tritons_batcher_does_is_left_to_it_unless_there_is_an_slo(asked: str) -> None:
    text = f"{ONNX} dynamic_batching {{ {asked} }}"
    name = asked.removeprefix("default_queue_policy { ").partition(":")[0]
    assert consents(text).scheduling == "bypass"
    assert f"dynamic_batching asks for {name}, which" in consents(text).why
    assert consents(text, has_slo=True).scheduling == "batched"
    assert consents(text, "batched").scheduling == "batched"


def test_batches_are_no_larger_than_the_largest_that_triton_prefers() -> None:
    text = ONNX + "dynamic_batching { preferred_batch_size: [ 2, 4 ] }"
    assert consents(text) == BatchingDecision("batched", "dynamic_batching", 4)
    assert lines_of({"m": consents(text)}) == [
        "batched: m (dynamic_batching; up to 4 rows, its largest preferred size)"
    ]
    assert consents(text, has_slo=True).merge_limit is None
    assert consents(text, "batched").merge_limit is None


@pytest.mark.parametrize("has_slo", [False, True])
def test_a_delay_that_every_batch_pays_is_not_paid_unless_a_config_says_so(has_slo: bool) -> None:
    text = ONNX + "dynamic_batching { max_queue_delay_microseconds: 100000 }"
    consent = consents(text, has_slo=has_slo)
    assert (consent.scheduling, consent.warning) == ("bypass", "")
    assert "max_queue_delay_microseconds: 100000" in consent.why
    for word in ("batched", "unbatched"):
        consent = consents(text, word, has_slo=has_slo)
        assert consent.scheduling == word
        assert "drop `max_queue_delay_microseconds: 100000` from dynamic_batching in m/config.pbtxt" in consent.warning


def test_a_delay_is_not_all_that_keeps_a_python_model_from_being_merged() -> None:
    """Who drops the delay, as he is told to, must not find the model passed through for a second reason."""
    delayed = consents(PYTHON + "dynamic_batching { max_queue_delay_microseconds: 100000 }")
    assert "backend python: its unit is the request" in delayed.why
    assert "say scheduling: batched or unbatched" in delayed.why
    assert "or say" not in delayed.why, "to drop the delay does not do"


@given(
    text=st.sampled_from([ONNX, PYTHON, ONNX + BATCHING, PYTHON + BATCHING, "max_batch_size: 0", ONNX + X % ""]),
    in_config=st.sampled_from([None, *get_args(SchedulingMode)]),
    told=st.sampled_from([None, *get_args(SchedulingMode)]),
    has_slo=st.booleans(),
)
def test_the_configuration_goes_before_the_config(
    text: str, in_config: SchedulingMode | None, told: SchedulingMode | None, has_slo: bool
) -> None:
    consent = consents(f"{text} {says(in_config) if in_config else ''}", told, has_slo=has_slo)
    word = told or in_config
    if text == "max_batch_size: 0":
        assert consent.scheduling == "bypass"
        assert bool(consent.warning) == (word not in (None, "bypass"))
    elif word in ("expanded", "auto"):
        assert consent == replace(consents(text, has_slo=has_slo), warning=consent.warning)
        assert f"scheduling: {word} is for ensembles" in consent.warning
    elif word:
        assert consent.scheduling == word
        assert ("configuration" in consent.why) == (told is not None)
    assert (consent.merge_limit == 1) == (consent.scheduling == "unbatched")


def test_a_word_that_is_none() -> None:
    with pytest.raises(
        BackendError,
        match=r"'m': its config's parameter 'tidegate_scheduling' is 'yes': say batched, unbatched, bypass",
    ):
        consents(ONNX + says("yes"))


def test_several_agree_on_the_most_careful() -> None:
    free, limited, alone = (
        BatchingDecision("batched", ""),
        BatchingDecision("batched", "", 4),
        BatchingDecision("unbatched", "", 1),
    )
    assert most_careful([free, limited]) is limited
    assert most_careful([limited, alone, free]) is alone


def test_models_are_told_of_by_reason() -> None:
    every = {"a": consents(ONNX + BATCHING), "b": consents("max_batch_size: 0"), "c": consents(ONNX + BATCHING)}
    assert lines_of(every) == [
        "batched: a, c (dynamic_batching)",
        "bypassed: b (max_batch_size is 0: the model has no batch dimension)",
    ]
