"""gpulet's parts, worked out by hand.

`calm` takes (1.5 + 0.5 b) / share milliseconds alone; gpulet plans with a tenth more. Neighbors do not matter to it.
"""

import pytest

from tests.plugins.inss.problems import problem, tenant
from tidegate_inss.gpulet import Gpulets, plan_gpulets, regression
from tidegate_inss.prediction import AssignedShare, Predictor


def test_a_little_load_gets_the_smallest_part_in_which_it_is_on_time() -> None:
    """At 90/s a batch of b is gathered in 11.1 b ms, and runs 8.25 + 2.75 b ms on a fifth: three are on time."""
    assert plan_gpulets(Predictor(problem(tenant("calm", 90, 60)))) == ([AssignedShare(0, 0, 8, 3)], {})


def test_much_load_fills_the_most_efficient_part_and_the_rest_gets_what_is_left_of_the_gpu() -> None:
    """By parts 255, 623, 808, 989, 1330 and 1662 rows/s are borne: from 40 to 50 % it is most for each percent.

    24 rows take 29.7 ms on a half, twice that is on time. For the other 192/s a fifth would do, with batches of 6.
    """
    assert plan_gpulets(Predictor(problem(tenant("calm", 1000, 60)))) == (
        [AssignedShare(0, 0, 20, 24), AssignedShare(0, 0, 20, 6)],
        {},
    )


def test_the_third_takes_turns_with_another() -> None:
    """A GPU has two parts, and each of three models fills a fraction of one."""
    shares, missing = plan_gpulets(Predictor(problem(*(tenant(name, 20, 100) for name in ("quick", "slow", "calm")))))
    assert not missing
    processes = [share.process for share in shares if share.process]
    assert len(processes) == 2
    assert len(set(processes)) == 1
    assert len({share.units for share in shares if share.process}) == 1


def test_the_regression_says_what_pairs_do_on_average() -> None:
    predictor = Predictor(problem(tenant("quick", 20, 100), tenant("slow", 2, 100), tenant("calm", 20, 100)))
    gpulets = Gpulets(predictor)
    coefficients = regression(predictor.tables)
    assert coefficients[-1] == pytest.approx(1, abs=0.06)
    assert len(coefficients) == 5
    assert gpulets.run()[1] == {}


def test_what_finds_no_part_is_said() -> None:
    shares, missing = plan_gpulets(Predictor(problem(tenant("calm", 9000, 60))))
    assert shares
    assert "of its 9,000/s" in missing[0]
