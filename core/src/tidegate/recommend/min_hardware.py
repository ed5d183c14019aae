"""Bisection for the least hardware that meets the goal."""

from collections.abc import Callable


def least_count(keeps: Callable[[int], bool], most: int) -> int | None:
    """Return the least number from 1 to `most` for which `keeps` holds, if it is monotone; None if none does."""
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
    """Return the same as `least_count`, faster if the result is near `start`.

    `keeps`: monotone condition; `most`: largest number to try. Steps double from `start`, then bisection.
    """
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
    """Return a number for which `keeps` holds, at most twice the least one; None if none up to `most`."""
    count = 1
    while not keeps(count):
        if count >= most:
            return None
        count = min(2 * count, most)
    return count
