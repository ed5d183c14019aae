"""Shapes in words: what is written is read again, and what is none is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.schemas import format_shape, read_shape

names = st.text(st.characters(exclude_characters=";", exclude_categories=["Cs"]), min_size=1, max_size=8)
sizes = st.lists(st.integers(0, 10**17), min_size=1, max_size=4).map(tuple)


@given(st.dictionaries(names, sizes, max_size=4))
def test_what_is_written_is_read_again(dimensions: dict[str, tuple[int, ...]]) -> None:
    assert read_shape(format_shape(dimensions)) == dimensions


def test_inputs_are_sorted_and_names_may_have_colons() -> None:
    assert format_shape({"y": (7,), "x:0": (3, 48, 320)}) == "x:0:3,48,320;y:7"
    assert read_shape("y:7;x:0:3,48,320") == {"x:0": (3, 48, 320), "y": (7,)}


@pytest.mark.parametrize(
    "text", ["x", "x:", ":3", "x=3", "x:3,", "x:3,-1", "x:3;", "x:3;;y:4", "x:1_0", "x:3,48,32#ab"]
)
def test_what_is_no_shape_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="is no shape: write NAME:3,48,320"):
        read_shape(text)


def test_an_input_has_one_size() -> None:
    with pytest.raises(ValueError, match="'x:3;x:4' names the input 'x' twice"):
        read_shape("x:3;x:4")
