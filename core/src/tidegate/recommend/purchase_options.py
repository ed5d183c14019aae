"""Purchase options: assesses the probably cheapest first, and skips options that cannot be cheaper."""

from collections.abc import Sequence
from math import ceil

from tidegate.recommend.assess import MAX_BUNDLES, Assessment, Assessor
from tidegate.recommend.candidates import HardwareSite, UnfitCandidate
from tidegate.report.number_format import limit as limit_words


def assess_offers(assessor: Assessor, sites: Sequence[HardwareSite]) -> tuple[list[Assessment], list[UnfitCandidate]]:
    """Assess the options that may be the cheapest, in order; return the others with the reason. Raises TraceError."""
    needed = {number: assessor.enough(site) for number, site in enumerate(sites)}
    order = sorted(needed, key=lambda number: _cost(sites[number], needed[number]))
    assessed: dict[int, Assessment] = {}
    unfit: list[UnfitCandidate] = []
    for number in order:
        site, enough = sites[number], needed[number]
        costs = [_cost(each.site, count) for each in assessed.values() for count in (each.least, each.tritons_least)]
        limit = min(costs, default=float("inf"))
        most = MAX_BUNDLES if limit == float("inf") else min(MAX_BUNDLES, ceil(limit / site.cost(1)) - 1)
        if enough is None or enough > most:
            winners = [each for its in assessed.values() for each in (its.candidate, its.triton) if each is not None]
            if enough is None or most < 1 or not assessor.keeps(site, most, winners):
                unfit.append(UnfitCandidate((site.words(1),), _why(site, most, limit)))
                continue
        found = assessor.assess(site, enough)
        if isinstance(found, Assessment):
            assessed[number] = found
        else:
            unfit += found
    return [assessed[number] for number in sorted(assessed)], unfit


def _cost(site: HardwareSite, count: int | None) -> float:
    return float("inf") if count is None else site.cost(count)


def _why(site: HardwareSite, most: int, limit: float) -> str:
    goal = limit_words(site.question.goal)
    if limit == float("inf"):
        return f"not even {site.words(most)} answer {goal} of every model on time"
    if most < 1:
        return f"one costs {site.cost(1):g}, and all that it takes can be had for {limit:g}"
    return (
        f"not even {site.words(most)} for {site.cost(most):g} answer {goal} of every model on time; {limit:g} will do"
    )
