"""What an operator says of padding is held against the model's config; what does not fit is said with its remedy."""

import json
import struct
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.messages.padding import FollowingOutputSize, PaddedAxis
from tidegate_proxy.tritons.batching_mode import consent_of
from tidegate_proxy.tritons.declared_padding import PaddingError, padding_of

BATCHED = 'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }'
X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 3, 48, -1 ] }'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 6625 ] }'
WORDS = 'input { name: "words" data_type: TYPE_STRING dims: [ -1 ] }'
SAID = 'output { name: "said" data_type: TYPE_STRING dims: [ -1 ] }'
FIXED = (
    'input { name: "fixed" data_type: TYPE_INT32 dims: [ 7 ] } output { name: "top" data_type: TYPE_INT64 dims: [ 5 ] }'
)
PICTURE = 'input { name: "x" data_type: TYPE_UINT8 dims: [ 3, -1, -1 ] }'
MAP = 'output { name: "map" data_type: TYPE_FP32 dims: [ -1, -1 ] }'


def padding(text: str, said: Any, batch: Any = None) -> tuple[PaddedAxis, ...]:
    """What is made of `merge.pad` as a file has it."""
    config = text_format.Parse(f'name: "m" {text}', model_config_pb2.ModelConfig())
    document = {"tritons": ["a:1"], "models": {"m": {"merge": {"pad": said}}}}
    told = ServeConfig.model_validate_json(json.dumps(document)).models["m"]
    return padding_of(config, consent_of(config, batch), told.merge.pad)


def test_what_goes_without_saying_is_found_in_the_models_config() -> None:
    eighth = FollowingOutputSize("y", 1, scale=1, offset=0, stride=8)
    expected = PaddedAxis("x", 3, (320, 640), 0, (eighth,))
    assert padding(BATCHED + X + Y + FIXED, {"sizes": [320, 640], "outputs": {"y": {"stride": 8}}}) == (expected,)
    in_full = {"input": "x", "axis": -1, "sizes": [320, 640], "value": 0, "outputs": {"y": {"axis": -2, "stride": 8}}}
    assert padding(BATCHED + X + Y, [in_full]) == (expected,)
    assert padding(BATCHED + X + FIXED, [320, 640]) == (PaddedAxis("x", 3, (320, 640), 0, ()),)
    assert padding(BATCHED + X + Y, {"sizes": [320], "outputs": {"y": None}}) == (PaddedAxis("x", 3, (320,), 0, ()),)
    assert padding(BATCHED + X + Y, []) == ()


def test_two_axes_of_one_input() -> None:
    said = [
        {"axis": 2, "sizes": [64], "outputs": {"map": {"axis": 1}}},
        {"axis": 3, "sizes": [96], "value": 255, "outputs": {"map": {"axis": 2, "scale": 2, "offset": 1, "stride": 3}}},
    ]
    assert padding(BATCHED + PICTURE + MAP, said) == (
        PaddedAxis("x", 2, (64,), 0, (FollowingOutputSize("map", 1, 1, 0, 1),)),
        PaddedAxis("x", 3, (96,), 255, (FollowingOutputSize("map", 2, 2, 1, 3),)),
    )


@pytest.mark.parametrize(("width", "steps"), [(320, 40), (313, 40), (312, 39), (8, 1), (1, 1)])
def test_a_size_that_follows_is_rounded_up(width: int, steps: int) -> None:
    assert FollowingOutputSize("y", 1, scale=1, offset=0, stride=8).size(width) == steps


def test_a_convolution_without_padding_can_be_said() -> None:
    """Its output has floor((size - kernel) / stride) + 1 steps."""
    kernel, stride = 5, 3
    follower = FollowingOutputSize("y", 1, scale=1, offset=1 - kernel, stride=stride)
    assert all(follower.size(size) == (size - kernel) // stride + 1 for size in range(kernel, 50))


@pytest.mark.parametrize(
    ("text", "said", "words"),
    [
        (X + Y, [320], r"models.m.merge.pad.0.outputs: output 'y' has the shape \[rows, -1, 6625\].*add `y: {}` if"),
        (FIXED, [320], "models.m.merge.pad.0: the model's config leaves no size of an input open.*leave it out"),
        (X + WORDS, [320], "models.m.merge.pad.0.input: say which one: 'words', 'x' have sizes that vary"),
        (X, {"input": "z", "sizes": [3]}, "models.m.merge.pad.0.input: the model has no input 'z'; it has 'x'"),
        (WORDS, [320], "models.m.merge.pad.0.input: 'words' is of strings, to which nothing can be added: leave it"),
        (
            X,
            {"axis": 2, "sizes": [64]},
            r"0.axis: 'x' has the shape \[rows, 3, 48, -1\]: axis 2 is none.*these are: \[3\]",
        ),
        (X, {"axis": 0, "sizes": [64]}, "models.m.merge.pad.0.axis: .*axis 0 is none that is open"),
        (X, {"axis": 4, "sizes": [64]}, "models.m.merge.pad.0.axis: .*axis 4 is none that is open"),
        (X, {"axis": -4, "sizes": [64]}, "models.m.merge.pad.0.axis: .*axis -4 is none that is open"),
        (PICTURE, [64], r"0.axis: 'x' has the shape \[rows, 3, -1, -1\]: axes 2, 3 are open: say which"),
        (
            PICTURE,
            [{"axis": 2, "sizes": [64]}, {"axis": -2, "sizes": [64]}],
            "merge.pad: axis 2 of 'x' is padded 2 times",
        ),
        (X + Y, {"sizes": [3], "outputs": {"z": {}}}, "0.outputs: the model has no output 'z'; it has 'y'"),
        (
            X + FIXED,
            {"sizes": [3], "outputs": {"top": {}}},
            r"0.outputs.top.axis: 'top' has the shape \[rows, 5\]: none is",
        ),
        (
            X + MAP,
            {"sizes": [3], "outputs": {"map": {}}},
            "0.outputs.map.axis: 'map' has .*: axes 1, 2 are open: say which",
        ),
        (X + SAID, {"sizes": [3], "outputs": {"said": {}}}, "0.outputs.said: it is of strings, which cannot be cut"),
        (
            PICTURE + Y,
            [{"axis": axis, "sizes": [64], "outputs": {"y": {}}} for axis in (2, 3)],
            "merge.pad: axis 1 of 'y' is said to follow 2 times: say it once",
        ),
        (PICTURE, {"axis": 2, "sizes": [64], "value": 256}, "0.value: 256 is no UINT8, of which 'x' is"),
        (PICTURE, {"axis": 2, "sizes": [64], "value": -1}, "0.value: -1 is no UINT8"),
        (PICTURE, {"axis": 2, "sizes": [64], "value": 0.5}, "0.value: 0.5 is no UINT8"),
        (X, {"sizes": [64], "value": 1e300}, r"0.value: 1e\+300 is no FP32"),
    ],
)
def test_what_does_not_fit_the_model(text: str, said: Any, words: str) -> None:
    with pytest.raises(PaddingError, match=words):
        padding(BATCHED + text, said)


@pytest.mark.parametrize(
    ("text", "batch", "words"),
    [
        (
            "max_batch_size: 8 sequence_batching { }",
            "batched",
            "sequence_batching: requests of one sequence.*: leave it out",
        ),
        (BATCHED + "model_transaction_policy { decoupled: true }", "batched", "decoupled: .*: leave it out"),
        (
            'platform: "ensemble" max_batch_size: 8 ensemble_scheduling { }',
            "batched",
            "ensemble: its steps.*: leave it out",
        ),
        ("max_batch_size: 0", None, "max_batch_size is 0: .*: leave it out"),
        (
            'backend: "python" max_batch_size: 8',
            None,
            "no dynamic_batching.*: say `scheduling: batched` if its rows may meet",
        ),
        (BATCHED, "unbatched", "the configuration says so.*: say `scheduling: batched`"),
        (BATCHED, "bypass", "the configuration says so.*: say `scheduling: batched`"),
    ],
)
def test_what_is_not_merged_is_not_padded(text: str, batch: str | None, words: str) -> None:
    with pytest.raises(PaddingError, match=f"models.m.merge.pad: its requests share no batches.*{words}"):
        padding(f"{text} {X}", [320], batch)


@pytest.mark.parametrize(
    ("datatype", "value", "element"),
    [
        ("FP32", -1.5, struct.pack("<f", -1.5)),
        ("FP64", 0.1, struct.pack("<d", 0.1)),
        ("FP16", -2.5, struct.pack("<e", -2.5)),
        ("BF16", -1.5, struct.pack("<f", -1.5)[2:]),
        ("INT8", -1, b"\xff"),
        ("UINT16", 513, b"\x01\x02"),
        ("INT64", -(2**53), (-(2**53)).to_bytes(8, "little", signed=True)),
        ("BOOL", 1, b"\x01"),
    ],
)
def test_what_is_added_is_of_the_inputs_type(datatype: str, value: float, element: bytes) -> None:
    text = BATCHED + f'input {{ name: "x" data_type: TYPE_{datatype} dims: [ -1 ] }}'
    (axis,) = padding(text, {"sizes": [3], "value": value})
    assert axis.fill.to_bytes(len(element), "little") == element


@pytest.mark.parametrize(
    ("datatype", "value"), [("BOOL", 2), ("FP16", 70_000), ("BF16", 1e39), ("INT8", 128), ("UINT64", -1)]
)
def test_what_is_no_number_of_the_inputs_type(datatype: str, value: float) -> None:
    text = BATCHED + f'input {{ name: "x" data_type: TYPE_{datatype} dims: [ -1 ] }}'
    with pytest.raises(PaddingError, match=f"models.m.merge.pad.0.value: .* is no {datatype}"):
        padding(text, {"sizes": [3], "value": value})
