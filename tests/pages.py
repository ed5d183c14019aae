"""Reads what a report shows: its words, and where its charts have put their marks."""

import json
import re
from base64 import b64decode
from html import unescape
from typing import Any


def text_of(markup: str) -> str:
    """What a person reads."""
    return unescape(re.sub(r"<[^>]+>", "", markup))


def verdicts(page: str) -> list[str]:
    """The sentences at the top."""
    (block,) = re.findall(r'<div class="verdict">(.*?)</div>', page, re.DOTALL)
    return [text_of(each) for each in re.findall(r"<p>(.*?)</p>", block)]


def headings(page: str) -> list[str]:
    """The titles of charts and tables, in order."""
    return [text_of(each) for each in re.findall(r"<h2>(.*?)</h2>", page)]


def chart(page: str, title: str) -> str:
    """The markup of the chart of this title."""
    figures: list[str] = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    (found,) = [each for each in figures if headings(each) == [title]]
    return found


def facets(markup: str) -> dict[str, str]:
    """The parts of a chart, by name."""
    names = re.findall(r"<h3>(.*?)</h3>", markup)
    return dict(zip(map(text_of, names), re.split(r"<h3>.*?</h3>", markup)[1:], strict=True))


def bars(markup: str) -> dict[str, list[float]]:
    """The parts of each horizontal bar in percent of the axis, by name."""
    rows = re.findall(r'<tr><th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', markup, re.DOTALL)
    return {
        text_of(name): [float(width) for width in re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%"', row)]
        for name, row in rows
    }


def lines(markup: str) -> dict[str, list[tuple[float, float]]]:
    """The points of each line, by its name, as shares of the plot: to the right and upwards."""
    found = {}
    for height, path, name in re.findall(
        r'viewBox="0 0 1000 ([\d.]+)"[^>]*><path d="([^"]*)"[^>]*>(?:<title>(.*?)</title>)?', markup
    ):
        points = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)
        found[text_of(name)] = [(float(x) / 1000, 1 - float(y) / float(height)) for x, y in points]
    return found


def dots(markup: str) -> list[tuple[float, str]]:
    """Each dot: how far to the right, as a share, and what it says."""
    return [
        (float(x) / 100, text_of(said))
        for x, said in re.findall(r'<circle cx="([\d.]+)%"[^>]*>(?:<title>(.*?)</title>)?', markup)
    ]


def downloads(page: str) -> dict[str, str]:
    """The files that are in the page, by name."""
    return {
        name: b64decode(data).decode()
        for name, data in re.findall(r'<a download="(.*?)" href="data:[\w/]+;base64,(.*?)">', page)
    }


def document(page: str, name: str) -> dict[str, Any]:
    """One of them, read as JSON."""
    found: dict[str, Any] = json.loads(downloads(page)[name])
    return found


def check_alone(page: str, *, most: int = 500_000) -> None:
    """It loads nothing from elsewhere, fits telephones and both themes, and is no larger than `most` bytes."""
    assert page.startswith("<!doctype html>")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=|@import|url\(|https?://(?!www\.w3\.org)", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(page.encode()) < most
    for color in set(re.findall(r"var\(--([\w-]+)\)", page)):
        assert page.count(f"--{color}:") == 2, f"{color} has a look by day and one by night"
