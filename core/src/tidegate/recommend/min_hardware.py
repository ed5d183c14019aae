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


def least_around(keeps: Callable[[int], bool], start: int, most: int) -> int | None:
    """The same as `least_count`, where it may be near `start`: in steps from there that double, then between two."""
    start = min(start, most)
    if start < 1:
        return None
    step = 1
    if keeps(start):
        good = start
        while (bad := max(0, good - step)) and keeps(bad):
            good, step = bad, 2 * step
    else:
        bad = start
        while True:
            if bad == most:
                return None
            good = min(bad + step, most)
            if keeps(good):
                break
            bad, step = good, 2 * step
    between = least_count(lambda count: bad + count >= good or keeps(bad + count), good - bad)
    assert between is not None, "all of it keeps the goal"
    return bad + between


def first_enough(keeps: Callable[[int], bool], most: int) -> int | None:
    """A number that keeps the goal and is at most twice the least one; None: not even `most` does."""
    count = 1
    while not keeps(count):
        if count >= most:
            return None
        count = min(2 * count, most)
    return count
