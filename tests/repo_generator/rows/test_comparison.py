"""How far a row's answer may move."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tidegate_repo_generator.rows.comparison import OutputComparison, excess, is_far


@pytest.mark.parametrize(
    ("kind", "move", "is_more"), [("f4", 1e-5, False), ("f4", 1e-3, True), ("f2", 5e-3, False), ("f2", 1e-1, True)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_slack_goes_with_the_row_and_its_type(kind: str, move: float, is_more: bool, scale: float) -> None:
    row = (np.array([[1.0, 0.5, -0.25]]) * scale).astype(kind)
    moved = (row.astype(np.float64) + np.array([0, 0, move * scale])).astype(kind)
    assert (excess(row, moved) > 1) is is_more


@pytest.mark.parametrize(
    ("one", "other", "more"),
    [
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), False),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), False),
        (np.array([1.0, 1.0]), np.array([np.nan, 1.0]), True),
        (np.zeros(2), np.zeros(2), False),
        (np.zeros(2), np.full(2, 1e-9), True),
        (np.zeros(2), np.zeros(3), True),
    ],
)
def test_what_is_not_finite_or_not_there(one: NDArray[np.float64], other: NDArray[np.float64], more: bool) -> None:
    assert (excess(one, other) > 1) is more


def test_kernels_of_another_size_are_forgiven_and_company_is_not() -> None:
    alone = np.array([[1.0, 2.0]], np.float32)
    in_company = alone * np.float32(1.01)
    assert not OutputComparison().differs(alone, in_company, lambda: in_company)
    assert OutputComparison().differs(alone, in_company, lambda: alone)
    assert is_far(alone, alone * 2)
    assert OutputComparison().differs(alone, alone * 2, lambda: alone * 2)


@pytest.mark.parametrize(("wrong", "is_unequal"), [(0, False), (1, False), (5, True)])
def test_labels_are_compared_by_share(wrong: int, is_unequal: bool) -> None:
    seen = OutputComparison()
    for number in range(100):
        answer = np.array([[int(number < wrong)]])
        seen.differs(np.array([[0]]), answer, lambda: np.array([[0]]))
    assert seen.is_unequal is is_unequal
