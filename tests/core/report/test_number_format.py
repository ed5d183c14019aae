"""No number says more than it knows."""

import pytest

from tidegate.report.number_format import listed, rate, share


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.0, "100.0 %"),
        (0.0, "0.0 %"),
        (0.987, "98.7 %"),
        (0.9996, "99.96 %"),
        (0.99996, "99.996 %"),
        (0.9999999, "over 99.999 %"),
        (0.0004, "0.04 %"),
        (1e-9, "under 0.001 %"),
        (1.075, "107.5 %"),
    ],
)
def test_nearly_all_is_not_all(value: float, said: str) -> None:
    assert share(value) == said


def test_words_are_listed_as_people_do() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert [rate(value) for value in (5344.4, 100, 62.25, 0.5)] == ["5,344", "100", "62.2", "0.5"]
