"""What could be bought: who is asked at all."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.recommend.assess import Assessment, Assessor
from tidegate.recommend.candidates import Candidate, HardwareSite
from tidegate.recommend.recommendation import assess_offers


@dataclass
class Offer:
    """Stands for a site: a GPU of some price, of which it takes so many."""

    name: str
    price: float
    needs: int | None
    least: int | None = None
    question: Any = field(default_factory=lambda: SimpleNamespace(goal=0.99))

    def cost(self, count: int) -> float:
        return count * self.price

    def words(self, count: int) -> str:
        return f"{count}x{self.name}"


@dataclass
class Known:
    """Stands for an assessor, and notes what it was asked."""

    assessed: list[str] = field(default_factory=list)
    tried: list[tuple[str, int]] = field(default_factory=list)

    def enough(self, site: Offer) -> int | None:
        return site.needs

    def keeps(self, site: Offer, count: int, others: list[Candidate]) -> bool:
        assert others, "who was best elsewhere is asked, too"
        self.tried.append((site.name, count))
        return site.least is not None and count >= site.least

    def assess(self, site: Offer, enough: int) -> Assessment:
        self.assessed.append(site.name)
        its: Any = Assessment.__new__(Assessment)
        for name, value in {
            "site": site, "least": site.least or enough, "tritons_least": None, "candidate": site.name, "triton": None,
        }.items():  # fmt: skip
            object.__setattr__(its, name, value)
        return cast("Assessment", its)


@pytest.mark.parametrize(
    ("others", "assessed", "tried", "why"),
    [
        (Offer("big", 9, 1), ["small"], [], "one costs 9, and all that it takes can be had for 6"),
        (
            Offer("big", 2, 4),
            ["small"],
            [("big", 2)],
            "not even 2xbig for 4 answer 99 % of every model on time; 6 will do",
        ),
        (Offer("big", 2, 4, least=2), ["small", "big"], [("big", 2)], ""),
        (Offer("big", 2, 2), ["big"], [], "one costs 6"),
        (Offer("big", 2, None), ["small"], [], "not even 2xbig for 4"),
    ],
)
def test_what_is_sure_to_be_dearer_is_not_assessed(
    others: Offer, assessed: list[str], tried: list[tuple[str, int]], why: str
) -> None:
    known = Known()
    small = Offer("small", 6 if why == "one costs 6" else 1, 6)
    found, unfit = assess_offers(cast("Assessor", known), cast("list[HardwareSite]", [others, small]))
    assert known.assessed == assessed
    assert known.tried == tried
    assert [each.why[: len(why)] for each in unfit] == ([why] if why else [])
    assert len(found) == len(assessed)


def test_nothing_will_do() -> None:
    found, unfit = assess_offers(cast("Assessor", Known()), cast("list[HardwareSite]", [Offer("old", 1, None)]))
    assert not found
    assert "not even 256xold answer 99 %" in unfit[0].why
