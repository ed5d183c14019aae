"""A report in a headless chromium: at 400 px nothing is wider than the screen, and names keep their ends."""

from pathlib import Path

import pytest

from tests.proxy.app.dashboard.browser import CHROMIUM, Tab, browser
from tidegate.report import (
    BarSegment,
    Chart,
    HeatCell,
    LegendEntry,
    Page,
    PageOrigin,
    PageSection,
    PlotAxis,
    StackedBar,
    facets,
    heat_map,
    stacked_bars,
    table,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
LONG = "a-model-whose-name-differs-only-at-its-end" * 3
HEAD = ["model", "policy", *(f"figure {number} of many" for number in range(12)), "reason"]


def page() -> str:
    bars = [StackedBar(f"{LONG}-{number}", [BarSegment(0.5, "on-time", "half")], "50.0 % on time") for number in (1, 2)]
    cells = [[HeatCell("99.0 %", 1.0, "all")] * 6] * 2
    parts: list[Chart | PageSection] = [
        facets(
            "How?",
            [(f"{LONG}-{number}", stacked_bars(bars, PlotAxis.shares([], "share"), "How?")) for number in (1, 2)],
            legend=[LegendEntry(LONG, "model-0")],
        ),
        facets("Where?", [(LONG, heat_map("a", list("123456"), "b", ["1", "2"], cells, "Where?")), ("other", "x")]),
        PageSection("The figures", table(HEAD, [[LONG, "symphony", *range(12), "because of " + LONG]] * 2)),
    ]
    return Page("Title", ["Verdict."], PageOrigin("1", "today", "tidegate"), {}, {}, parts).html()


async def test_at_400_pixels_nothing_is_wider_than_the_screen(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    wider = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    shown = "getComputedStyle(document.querySelector('.figures td:nth-child(3)'), '::before').content"
    ends = (
        "[...document.querySelectorAll('.name span + span')].map((end) => end.getBoundingClientRect())"
        ".every((box) => box.width > 0 && box.right <= innerWidth)"
    )

    async def test(tab: Tab) -> None:
        for width in (400, 1200):
            await tab.look(width, 900, dark=False)
            assert await tab.value(f"document.documentElement.scrollWidth <= {width}")
            assert await tab.value(ends), "the end of each name is visible"
            assert (await tab.value(wider) == 0) == (width == 400), "a line is a card there, and may be scrolled here"
            assert (await tab.value(shown) == '"figure 0 of many"') == (width == 400)

    async with browser(tmp_path) as tab:
        await tab.open(f"file://{tmp_path}/page.html")
        await tab.until("document.readyState === 'complete' && document.querySelector('.figures') !== null")
        await test(tab)
