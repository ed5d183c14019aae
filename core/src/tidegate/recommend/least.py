"""The least hardware that keeps the goal, by bisection."""

from collections.abc import Callable


def least_count(keeps: Callable[[int], bool], most: int) -> int | None:
    """The least number from 1 to `most` that keeps the goal, as far as more never keep less; None: `most` does not."""
    if most < 1 or not keeps(most):
        return None
    bad, good = 0, most
    while good - bad > 1:
        middle = (good + bad) // 2
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good


def first_enough(keeps: Callable[[int], bool], most: int) -> int | None:
    """A number that keeps the goal and is at most twice the least one; None: not even `most` does."""
    count = 1
    while not keeps(count):
        if count >= most:
            return None
        count = min(2 * count, most)
    return count
