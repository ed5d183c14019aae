"""`dynamic_batching` and the options of `triton` say the same of a model."""

from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tidegate.schemas import dynamic_batching_of, options_of, options_of_model, section_text, tuned_settings

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "preferred_batch_size": st.lists(st.integers(1, 64), max_size=3).map(tuple),
        "max_queue_delay_ms": st.integers(0, 10**6).map(lambda us: us / 1000),
        "max_queue_size": st.integers(0, 1000),
        "default_timeout_ms": st.integers(0, 10**6).map(lambda us: us / 1000),
        "timeout_action": st.sampled_from(["reject", "delay"]),
        "allow_timeout_override": st.booleans(),
    },
)
ASSUMED = {
    "preferred_batch_size": (),
    "max_queue_delay_ms": 0.0,
    "max_queue_size": 0,
    "default_timeout_ms": 0.0,
    "timeout_action": "reject",
    "allow_timeout_override": False,
}


@given(OPTIONS)
def test_what_triton_reads_is_what_was_meant(options: dict[str, object]) -> None:
    """As protobuf's JSON form, and as the text of a config.pbtxt; and back."""
    section = dynamic_batching_of(options, max_rows=64)
    read = text_format.Parse(section_text(section), ModelConfig())
    assert read.HasField("dynamic_batching")
    parsed = ModelConfig()
    parsed.dynamic_batching.SetInParent()
    ParseDict(section, parsed.dynamic_batching)
    assert parsed == read
    back = MessageToDict(read.dynamic_batching, preserving_proto_field_name=True)
    assert options_of(back) == options_of(section) == {**ASSUMED, **options}


def test_no_size_is_preferred_that_its_triton_would_refuse() -> None:
    assert dynamic_batching_of({"preferred_batch_size": (4, 8, 16)}, max_rows=8) == {"preferred_batch_size": [4, 8]}


def test_what_is_said_of_a_model_stands_in_place_of_what_is_said_of_all() -> None:
    options = {"max_queue_delay_ms": 2.0, "models": {"m": {"max_queue_delay_ms": 5.0, "default_timeout_ms": 9.0}}}
    assert options_of_model(options, "m") == {"max_queue_delay_ms": 5.0, "default_timeout_ms": 9.0}
    assert options_of_model(options, "n") == {"max_queue_delay_ms": 2.0}


def test_triton_is_tuned_with_a_delay_and_a_timeout_of_each_model() -> None:
    """The first is the plain batcher: claims against an untuned Triton can be told from those against a tuned one."""
    settings = tuned_settings({"quick": 10.0, "slow": 200.0})
    sections = [
        {model: dynamic_batching_of(options_of_model(options, model), max_rows=8) for model in ("quick", "slow")}
        for options in settings.values()
    ]
    assert sections[0] == {"quick": {}, "slow": {}}
    assert len({str(each) for each in sections}) == len(sections) == 16
    assert settings["delay 20%, timeout 50%"]["models"]["slow"] == {
        "max_queue_delay_ms": 40.0,
        "default_timeout_ms": 100.0,
    }
