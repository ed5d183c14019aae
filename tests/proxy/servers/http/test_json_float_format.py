"""Numbers as RapidJSON prints them; `test_infer` compares them with those of a real Triton."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.servers.http.json_data import print_doubles


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_reads_back_as_itself(values: list[float]) -> None:
    array = np.array(values, np.float64)
    assert np.array([float(text) for text in print_doubles(array)], np.float64).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-1.5, "-1.5"), (100.0, "100.0"), (0.1, "0.1")),
        *((1e20, "100000000000000000000.0"), (1e21, "1e21"), (1.5e21, "1.5e21"), (1e-6, "0.000001"), (1e-7, "1e-7")),
        *((123.456, "123.456"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308")),
        # Where the last digit is not Python's:
        *((2.0409191213851825, "2.0409191213851827"), (0.30000001192092896, "0.30000001192092898")),
        *((float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")),
    ],
)
def test_known_numbers(value: float, text: str) -> None:
    assert print_doubles(np.array([value])) == [text]


def test_long_arrays_are_printed_in_order() -> None:
    values = np.arange(10_000, dtype=np.float64)
    values[::7] = np.nan
    texts = print_doubles(values)
    assert texts == ["NaN" if number % 7 == 0 else f"{number}.0" for number in range(10_000)]
