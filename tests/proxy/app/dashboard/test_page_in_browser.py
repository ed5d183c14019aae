"""The page itself, in a headless chromium: hostile names are text, and everything is done by keyboard and at 400 px."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.proxy.app.dashboard.browser import CHROMIUM, Tab, browser
from tidegate.sim.what_if import WhatIfAnswer
from tidegate_proxy.app.dashboard.history import History, OutcomeSeries
from tidegate_proxy.app.dashboard.latency_explanation import (
    BatchCompanion,
    LatencyExplanation,
    LatencyPart,
    StageFigures,
    StepLine,
)
from tidegate_proxy.app.dashboard.routes import LivePage
from tidegate_proxy.app.dashboard.snapshot import (
    BadRequestRow,
    DashboardSnapshot,
    DecisionRow,
    ModelRow,
    PageHello,
    RolloutRow,
    RolloutSection,
    RolloutSide,
    ShapeRow,
    StageBar,
    WorkerRow,
)
from tidegate_proxy.app.dashboard.viewers import Viewers
from tidegate_proxy.app.dashboard.what_if import WhatIf
from tidegate_proxy.servers.http.exchange import HttpExchange
from tidegate_proxy.servers.http.interface import Receive, Scope, Send
from tidegate_proxy.servers.http.server import start_server
from tidegate_proxy.transport.ports import bind

if TYPE_CHECKING:
    from tidegate_proxy.app.dashboard.live import LiveView

EVIL = "<img src=x onerror='document.title=1'><script>document.title=2</script>\"'`${1}"
LONG = "a-model-whose-name-does-not-end" * 5
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")


class Hostile:
    """Whatever has a name has an evil one."""

    def hello(self) -> PageHello:
        return PageHello("live", EVIL, EVIL)

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def tick(self, viewers: int) -> DashboardSnapshot:
        models = [
            ModelRow(name, 50.0, 12.5, share, 1, 2, 3, 4, 10.0, 60.0, 2.0, {1: 3, 2: 5})
            for name, share in ((EVIL, 0.5), (LONG, 0.999))
        ]
        workers = [WorkerRow(0, EVIL, EVIL, "up", 0.5, 1), WorkerRow(1, LONG, "k", "ejected", 0.0, 0)]
        shapes = [ShapeRow(EVIL, EVIL, EVIL, EVIL, 4, 9, 20.0, 25.0, 0.5)]
        stages = [StageBar(0, 0, 9_500_000, 100_000, 50_000, 4, 4, 1, 7)]
        decisions = [DecisionRow(9_900.0, "dispatch", EVIL, EVIL, EVIL, EVIL, 2, 7), DecisionRow(9_950.0, "lost", "")]
        worst = [
            BadRequestRow(7, EVIL, "late", 9_000.0, 70.0, 20.0, ""),
            BadRequestRow(8, EVIL, "dropped", 9_000.0, 70.0, None, EVIL),
            BadRequestRow(9, LONG, "on time", 9_000.0, 10.0, -40.0, ""),
        ]
        figures = (models, 1, workers, 1, shapes, [EVIL], stages, 1, decisions, 1, worst)
        return DashboardSnapshot(10_000.0, 10.0, *figures, viewers, 1.5, self._trial())

    @staticmethod
    def _trial() -> RolloutSection:
        sides = [RolloutSide(EVIL, 950, 0.9, 10.0, 60.0), RolloutSide(LONG, 50, None)]
        rows = [RolloutRow(EVIL, sides, (0.02, 0.05), ""), RolloutRow(LONG, sides, None, EVIL)]
        return RolloutSection("canary", EVIL, 0.05, None, rows, 1, EVIL)

    async def timeline(self, request_id: int) -> LatencyExplanation | None:
        steps = [StepLine(0.0, "arrived", EVIL)]
        stages = [StageFigures(EVIL, EVIL, 4, 5.0, 6.0, 50.0, 64.0)]
        return LatencyExplanation(
            request_id, EVIL, EVIL, EVIL, 1, 8_930.0, "late", 70.0, 50.0, f"Why: {EVIL}", EVIL,
            [LatencyPart("batch", 5.0), LatencyPart("worker", 1.0), LatencyPart("ran", 50.0), LatencyPart("longer",
            14.0)], 1, 4, [BatchCompanion(8, 1, 2.0)], 2, stages, [(EVIL, 3, 30.0)], steps,
        )  # fmt: skip

    async def what_if(self, at_ms: int | None) -> object:
        return WhatIf(40, 3.0, 0.1, 0.9, [WhatIfAnswer("unchanged", 0.9), WhatIfAnswer(EVIL, None, why=EVIL)])

    def at(self, at_ms: int) -> object:
        raise ValueError("none")

    def history(self, since: int) -> object:
        """Three points: the second one has no answers, in the third p99 is above the SLO."""
        nan = float("nan")
        evil = OutcomeSeries(
            50.0, [10.0, 0.0, 5.0], [0.0, 0.0, 5.0], [0.0, 2.0, 0.0], [0.0] * 3, [0.0, 0.0, 4.0], [40.0, nan, 80.0]
        )
        long = OutcomeSeries(None, [1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3, [7.0] * 3)
        total = OutcomeSeries(None, [11.0, 1.0, 6.0], evil.late, evil.dropped, [0.0] * 3, evil.bypassed, evil.p99_ms)
        at_s = [1_000_000.0, 1_000_005.0, 1_000_010.0]
        return History(0, at_s, total, {EVIL: evil, LONG: long}, 1, [0.1, 0.5, 0.9], [EVIL, LONG, EVIL], [0.1] * 3)


class Broken(Hostile):
    """A recording that can be read up to a line only."""

    def hello(self) -> PageHello:
        return PageHello("recording", "fifs", "1", "run.jsonl", 10_000.0)

    def at(self, at_ms: int) -> object:
        return self.tick(0)

    def history(self, since: int) -> object:
        nothing = OutcomeSeries(None, [], [], [], [], [], [])
        error = "byte 7 of the log begins no entry"
        return History(0, [], nothing, {}, 0, [], [], [], read_ms=3_000.0, done=True, error=error)


def in_browser(folder: Path, test: Callable[[Tab, str], Awaitable[None]], shown: Hostile | None = None) -> None:
    async def all_of_it() -> None:
        hostile = shown or Hostile()
        viewers = None if isinstance(shown, Broken) else Viewers(cast("LiveView", hostile))
        page = LivePage(hostile, viewers, lambda _headers: None)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await page.answer(HttpExchange(scope, receive, send), scope["query_string"])

        server = await start_server(answer, bind("127.0.0.1:0"))
        try:
            async with browser(folder) as tab:
                await test(tab, f"http://127.0.0.1:{server.port}/dashboard")
        finally:
            await page.close()
            await server.stop()

    asyncio.run(all_of_it())


def test_hostile_names_the_keyboard_and_a_telephone(tmp_path: Path) -> None:
    async def test(tab: Tab, address: str) -> None:
        await tab.look(400, 900, dark=True)
        await tab.open(address)
        await tab.until("document.querySelectorAll('#models tbody tr').length === 2")
        # By keyboard alone: to the requests, down to the second one, its timeline, and back.
        await tab.press("w")
        assert await tab.value("document.activeElement.id") == "worst"
        await tab.press("ArrowDown")
        assert await tab.value("document.querySelector('[aria-selected=true]').dataset.request") == "8"
        await tab.press("Enter")
        await tab.until("!document.getElementById('timeline').hidden")
        assert await tab.value("document.activeElement.id") == "timeline"
        assert (await tab.value("document.querySelector('#timeline .said').textContent")) == f"Why: {EVIL}"
        await tab.press("s")
        await tab.until("document.querySelectorAll('#answers .answer').length === 2")
        await tab.press("Escape")
        assert await tab.value("document.getElementById('timeline').hidden")
        assert await tab.value("document.activeElement.id") == "worst"
        await tab.press("p")
        assert await tab.value("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        # Names are text, whole and inert.
        assert await tab.value("document.querySelector('#models tbody td').textContent") == EVIL
        assert await tab.value("document.querySelectorAll('img, main script').length") == 0
        # The canary is one section among the others; its interval is said, and drawn right of zero.
        assert await tab.value("document.getElementById('rollout-title').textContent") == "Canary: 5 %"
        assert await tab.value("document.querySelector('#rollout-rows article b.on-time').textContent") == (
            f"{EVIL} changes attainment by +2.0 to +5.0 points"
        )
        assert await tab.value("parseFloat(document.querySelector('.gain i').style.left)") == 70
        assert EVIL in await tab.value("document.querySelectorAll('#rollout-rows article')[1].textContent")
        assert await tab.value("document.title") == "Tidegate, live"
        assert await tab.value("document.documentElement.scrollWidth <= 400")
        assert await tab.value(
            "document.querySelector('#lanes canvas').getContext('2d').getImageData(0, 8, 9999, 1).data.some(Boolean)"
        )
        # Curves: of all models, of one that has an evil name, and where its p99 exceeds the SLO, in words, too.
        over = "[...document.querySelectorAll('#charts .said')].map((said) => said.textContent)"
        await tab.until(f"{over}.length === 4")
        assert "▲ above the SLO in 33.3 % of the time" in await tab.value(over)
        await tab.value(
            f"by('shown-model').value = {json.dumps(EVIL)}; by('shown-model').dispatchEvent(new Event('change'))"
        )
        assert await tab.value("document.querySelectorAll('#charts .legend')[2].textContent") == f"{EVIL}80.0 ms"
        rates = await tab.value("document.querySelector('#charts .legend').textContent")
        assert rates == "on time5.0late5.0dropped0.0bypassed4.0", "what never happened has no entry"
        drawn = "[...document.querySelectorAll('#charts canvas')].map((canvas) => canvas.getContext('2d')"
        drawn += ".getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))"
        assert await tab.until(f"{drawn}.every(Boolean) && {drawn}.length") == 4
        elsewhere = "performance.getEntriesByType('resource').filter((each) => !each.name.startsWith(location.origin))"
        assert await tab.value(f"{elsewhere}.length") == 0
        fits = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
        assert await tab.value(fits) == 0, "on a phone each line of a table is a card"
        dark = await tab.value("getComputedStyle(document.documentElement).backgroundColor")
        await tab.look(1200, 900, dark=False)
        assert await tab.value("getComputedStyle(document.documentElement).backgroundColor") != dark
        unnamed = "[...document.querySelectorAll('button, input, select, [tabindex=\"0\"], canvas')]" + (
            ".filter((e) => !e.hidden && !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length"
            " || e.getAttribute('aria-labeledby'))).map((e) => e.outerHTML)"
        )
        assert await tab.value(unnamed) == []
        assert tab.said == []

    in_browser(tmp_path, test)


class InShadow(Hostile):
    """All requests bypass the scheduler."""

    @staticmethod
    def _trial() -> RolloutSection:
        rows = [RolloutRow("", [RolloutSide("as it passes", 1000, 0.97)], (0.01, 0.02), "")]
        return RolloutSection("shadow", "symphony", 1.0, 60.0, rows, 0, "")


def test_in_shadow_mode_nothing_is_shown_of_what_is_not_scheduled(tmp_path: Path) -> None:
    async def test(tab: Tab, address: str) -> None:
        await tab.open(address)
        await tab.until("document.querySelectorAll('#charts .said').length === 1")
        tiles = "[...document.querySelectorAll('.tile')].map((tile) => tile.textContent)"
        assert await tab.value(tiles) == [
            "Requests/s4.0all bypass the scheduler",
            "Workers up2 of 3some are away or ejected",
        ]
        assert await tab.value("document.getElementById('verdict').textContent") == (
            "97.0 % of the bypassed requests are on time"
        )
        shown = (
            "[...document.querySelectorAll('main h2')].filter((head) => head.offsetParent).map((h) => h.textContent)"
        )
        assert await tab.value(shown) == ["Over time", "Shadow", "Models"]

    in_browser(tmp_path, test, InShadow())


def test_a_recording_says_how_far_it_can_be_read(tmp_path: Path) -> None:
    async def test(tab: Tab, address: str) -> None:
        await tab.open(address)
        says = "recording, readable up to 0:03 only: byte 7 of the log begins no entry"
        await tab.until(f"document.getElementById('state')?.textContent === {says!r}")
        assert await tab.value("document.getElementById('title').textContent") == (
            "run.jsonl: policy fifs, read by Tidegate 1"
        )
        # Going to a part of the page leaves it as it is: only an address with another token is another visit.
        stays = "(resolve) => { addEventListener('hashchange', () => setTimeout(() => resolve(window.mark), 50), "
        stays += "{ once: true }); location.hash = '#why' }"
        assert await tab.value(f"window.mark = 1, new Promise({stays})") == 1
        assert tab.said == []

    in_browser(tmp_path, test, Broken())
