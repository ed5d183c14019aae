"""Random requests fit the model as its server declares it, or the mismatch is said in one line."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import uvloop
from tritonclient.utils import deserialize_bytes_tensor
from typer import BadParameter

from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import RandomRequests, RandomValues
from tidegate_loadtest.profiler import accepted_values
from tidegate_loadtest.shapes import Shape, parse_shapes

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton


def requests_for(
    triton: "FakeTriton", model: str, *, rows: int = 1, shapes: dict[str, Shape] | None = None, seed: int = 0
) -> RandomRequests:
    async def ask() -> RandomRequests:
        async with Connection(triton.target) as connection:
            return await RandomRequests.for_model(connection, model, rows=rows, shapes=shapes or {}, seed=seed)

    return uvloop.run(ask())


def test_rows_and_open_dimensions_are_filled_in(triton: "FakeTriton") -> None:
    request = requests_for(triton, "image", rows=2, shapes={"IMAGE": (3, 4, 5)})(0)
    assert [(tensor.name, list(tensor.shape)) for tensor in request.inputs] == [("IMAGE", [2, 3, 4, 5])]
    values = np.frombuffer(request.raw_input_contents[0], np.float32)
    assert values.size == 2 * 3 * 4 * 5
    assert values.std() > 0


def test_dimensions_are_drawn_for_each_request(triton: "FakeTriton") -> None:
    requests = requests_for(triton, "image", shapes=parse_shapes(["IMAGE:3,48|96|96,160..163"]))
    shapes = [tuple(requests(index).inputs[0].shape) for index in range(128)]
    assert {shape[:2] for shape in shapes} == {(1, 3)}
    assert {shape[3] for shape in shapes} == {160, 161, 162, 163}
    heights = Counter(shape[2] for shape in shapes)
    assert heights.keys() == {48, 96}
    assert heights[96] > heights[48]  # listed twice: twice as likely
    assert len(requests(0).raw_input_contents[0]) == 3 * shapes[0][2] * shapes[0][3] * 4


@pytest.mark.parametrize("text", ["X", ":3", "X=3", "X:3,x", "X:-1", "X:5..4", "X:3|-1"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match=r"write NAME:3,48,320"):
        parse_shapes([text])


def test_every_type_is_encoded_as_triton_reads_it(triton: "FakeTriton") -> None:
    request = requests_for(triton, "text", rows=3)(0)
    assert [tensor.datatype for tensor in request.inputs] == ["BYTES", "BOOL", "INT64"]
    text, mask, ids = request.raw_input_contents
    assert deserialize_bytes_tensor(text).size == 6
    assert len(mask) == 6
    assert np.frombuffer(ids, np.int64).size == 6


def test_an_optional_input_is_sent_where_it_is_named(triton: "FakeTriton") -> None:
    request = requests_for(triton, "text", shapes={"EXTRA": ()})(0)
    assert request.inputs[3].name == "EXTRA"
    assert list(request.inputs[3].shape) == [1]


def test_a_model_without_a_batch_dimension_gets_none(triton: "FakeTriton") -> None:
    assert list(requests_for(triton, "unbatched")(0).inputs[0].shape) == [4]


def test_requests_differ_from_each_other_and_repeat_with_the_seed(triton: "FakeTriton") -> None:
    first, again, other = (requests_for(triton, "echo", seed=seed) for seed in (1, 1, 2))
    assert first(0) == again(0)
    assert first(0) != first(1)
    assert first(0) != other(0)


@pytest.mark.parametrize(
    ("model", "rows", "shapes", "message"),
    [
        ("nobody", 1, {}, "it has no model 'nobody'"),
        ("image", 1, {}, "input 'IMAGE' is 3,-1,-1: give its -1 a size with --shape IMAGE:..."),
        ("image", 1, {"IMAGE": (1, 4, 5)}, "'IMAGE' is 3,-1,-1 (rows not counted), which 1,4,5 does not fit"),
        ("image", 1, {"IMAGE": (3, 4)}, "which 3,4 does not fit"),
        ("image", 1, {"IMAGE": (range(1, 4), 4, 5)}, "which 1..3,4,5 does not fit"),
        ("echo", 1, {"Y": (4,)}, "model 'echo' has no input 'Y'; it has X"),
        ("echo", 9, {}, "takes at most 8 rows, not 9"),
        ("unbatched", 2, {}, "takes at most 1 rows, not 2"),
        ("strange", 1, {}, "data type INT4"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    triton: "FakeTriton", model: str, rows: int, shapes: dict[str, Shape], message: str
) -> None:
    with pytest.raises(LoadTestError) as caught:
        requests_for(triton, model, rows=rows, shapes=shapes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not triton.requests


def test_integers_stay_below_the_limits_of_the_models_config(triton: "FakeTriton") -> None:
    request = requests_for(triton, "bounded", rows=8)(0)
    word, kind = (
        np.frombuffer(content, dtype) for content, dtype in zip(request.raw_input_contents, ("i8", "i4"), strict=True)
    )
    assert 128 < word.max() < 300
    assert set(kind) == {0, 1}


@pytest.mark.parametrize(("model", "values"), [("echo", RandomValues.DRAWN), ("picky", RandomValues.ZEROS)])
def test_values_that_a_model_takes_are_found(triton: "FakeTriton", model: str, values: RandomValues) -> None:
    async def find() -> RandomValues:
        async with Connection(triton.target) as connection:
            return await accepted_values(connection, model, {})

    assert uvloop.run(find()) is values


def test_a_model_that_takes_none_says_what_it_said_of_the_first(
    triton: "FakeTriton", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_loadtest.profiler.RandomValues", [RandomValues.DRAWN, RandomValues.ONES])

    async def find(model: str) -> RandomValues:
        async with Connection(triton.target) as connection:
            return await accepted_values(connection, model, {})

    with pytest.raises(
        LoadTestError,
        match=r"out of data bounds; it refuses .*tidegate_input_limits in its config.*--inputs picky=FOLDER",
    ):
        uvloop.run(find("picky"))
    with pytest.raises(LoadTestError, match=r"no worker left$"):  # no matter of values
        uvloop.run(find("failing"))
