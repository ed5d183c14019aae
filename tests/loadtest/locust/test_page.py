"""Locust's web page, with the tab of SLO attainment."""

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import eventually
from tidegate.workload import draw_requests, read_scenario

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton
    from tests.loadtest.locust.conftest import StartLocust


def get(url: str, form: dict[str, object] | None = None) -> str:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(url, data, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def attainment(url: str) -> list[dict[str, Any]]:
    (table,) = json.loads(get(f"{url}/stats/requests"))["extended_stats"]
    assert table["key"] == "slo-attainment"
    lines: list[dict[str, Any]] = table["data"]
    return lines


def test_the_page_starts_a_schedule_and_shows_its_attainment_twice(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    path = scenario()
    sequence = draw_requests(read_scenario(path), 0)
    of_window = sum(at_ns >= 0.2 * 1e9 for at_ns in sequence.at_ns)
    load = ("--scenario", path)
    web = ("--web-host", "127.0.0.1", "--web-port", free_port)
    locust = start_locust("--host", triton.target, *web, *load)
    url = f"http://127.0.0.1:{free_port}"

    def answers() -> str:
        try:
            return get(url)
        except OSError:
            return ""

    eventually(answers, "the page")
    assert "SLO attainment" in get(url)
    assert triton.requests == []
    for run in (1, 2):
        assert json.loads(get(f"{url}/swarm", {"host": triton.target}))["success"]
        eventually(lambda run=run: len(triton.requests) == len(sequence) * run, "its requests")
        eventually(lambda run=run: locust.output.count("Shape test stopping") == run, "its end")
        (line,) = attainment(url)
        assert (line["name"], line["requests"], line["attainment"]) == ("echo", of_window, "100.00%")


@pytest.mark.slow
def test_the_page_says_what_is_wrong_with_a_host(
    triton: "FakeTriton", start_locust: "StartLocust", scenario: Callable[..., Path], free_port: int
) -> None:
    web = ("--web-host", "127.0.0.1", "--web-port", free_port)
    locust = start_locust("--scenario", scenario("absent"), *web)
    eventually(lambda: "Starting web interface" in locust.output, "the page")
    url = f"http://127.0.0.1:{free_port}"
    eventually(lambda: _swarmed(url, triton.target), "the page to take the form")
    eventually(lambda: "unknown model 'absent'" in locust.output, "the error")
    assert triton.requests == []


def _swarmed(url: str, target: str) -> bool:
    try:
        return "success" in get(f"{url}/swarm", {"host": target})
    except OSError:
        return False
