"""Padding gains in simulation where batches pay."""

import pytest

from bench.padding import goodput_of, padded, scenario_of


def test_lines_keep_their_number_and_run_in_the_next_larger_width() -> None:
    assert padded({320: 3, 321: 1, 480: 2, 481: 1}, 160) == {320: 3, 480: 3, 640: 1}
    assert padded({320: 3, 321: 1}, None) == {320: 3, 321: 1}


@pytest.mark.slow
def test_few_widths_carry_more_than_many() -> None:
    widths = {320 + 8 * number: 1 for number in range(20)}
    many, few = (
        goodput_of(scenario_of(padded(widths, step), duration_s=1.5), seeds=1, precision=0.1) for step in (None, 160)
    )
    assert few.median_rps > 1.2 * many.median_rps
