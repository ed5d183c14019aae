"""However many readers there are, one page is rendered at a time, and one a second."""

import asyncio

import pytest

from tidegate_proxy.app.metrics_page import MAX_BURST_PAGES, SharedPage


class Pages:
    """Numbers pages, and renders one when it is let."""

    def __init__(self) -> None:
        self.begun = 0
        self.at_once = self.most_at_once = 0
        self.go_on = asyncio.Event()

    async def render(self) -> int:
        self.begun += 1
        number = self.begun
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.go_on.wait()
        self.at_once -= 1
        return number


async def test_all_who_ask_while_one_is_rendered_share_it() -> None:
    pages = Pages()
    shared = SharedPage(pages.render)
    readers = [asyncio.ensure_future(shared.read()) for _ in range(100)]
    await asyncio.sleep(0)
    pages.go_on.set()
    assert await asyncio.gather(*readers) == [1] * 100
    assert await shared.read() == 2, "a page is new to one who asks when none is rendered"


async def test_readers_without_end_have_a_page_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    pages = Pages()
    pages.go_on.set()
    shared = SharedPage(pages.render)
    for _ in range(1000):
        await shared.read()
    assert pages.begun == MAX_BURST_PAGES
    for second in range(1, 4):
        now_s = 100.0 + second
        for _ in range(100):
            await shared.read()
        assert pages.begun == MAX_BURST_PAGES + second
    assert pages.most_at_once == 1


async def test_a_reader_that_leaves_takes_the_page_from_no_other_and_a_fault_is_not_kept() -> None:
    pages = Pages()
    shared = SharedPage(pages.render)
    leaving, staying = (asyncio.ensure_future(shared.read()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    pages.go_on.set()
    assert await staying == 1

    async def broken() -> int:
        raise ValueError("broken")

    shared = SharedPage(broken)
    with pytest.raises(ValueError, match="broken"):
        await shared.read()
    shared._render = pages.render
    assert await shared.read() == 2
