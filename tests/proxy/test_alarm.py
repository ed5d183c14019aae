"""The alarm rings at the instant last set."""

import threading
import time
from collections.abc import Iterator

import pytest

from tidegate_proxy.alarm import Alarm

MS = 1_000_000


class Rings:
    """Counts them, and says when."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.rang = threading.Semaphore(0)

    def __call__(self) -> None:
        self.at_ns.append(time.monotonic_ns())
        self.rang.release()


@pytest.fixture
def rings() -> Rings:
    return Rings()


@pytest.fixture
def alarm(rings: Rings) -> Iterator[Alarm]:
    alarm = Alarm(rings)
    yield alarm
    alarm.close()


def test_rings_once_and_not_before(alarm: Alarm, rings: Rings) -> None:
    due_ns = time.monotonic_ns() + 5 * MS
    alarm.set(due_ns)
    assert rings.rang.acquire(timeout=120)
    assert rings.at_ns[0] >= due_ns
    assert not rings.rang.acquire(timeout=0.02)


def test_an_instant_in_the_past_rings_at_once(alarm: Alarm, rings: Rings) -> None:
    alarm.set(time.monotonic_ns() - MS)
    assert rings.rang.acquire(timeout=120)


def test_an_earlier_instant_replaces_a_later(alarm: Alarm, rings: Rings) -> None:
    alarm.set(time.monotonic_ns() + 3_600_000 * MS)
    alarm.set(time.monotonic_ns() + MS)
    assert rings.rang.acquire(timeout=120)


def test_a_later_instant_replaces_an_earlier(alarm: Alarm, rings: Rings) -> None:
    first_ns = time.monotonic_ns() + 20 * MS
    alarm.set(first_ns)
    alarm.set(first_ns + 20 * MS)
    assert rings.rang.acquire(timeout=120)
    assert rings.at_ns[0] >= first_ns + 20 * MS


def test_none_rings_not_at_all(alarm: Alarm, rings: Rings) -> None:
    alarm.set(time.monotonic_ns() + 20 * MS)
    alarm.set(None)
    assert not rings.rang.acquire(timeout=0.05)


def test_may_be_set_again_while_it_rings() -> None:
    rang = threading.Semaphore(0)

    def ring() -> None:
        rang.release()
        again.set(time.monotonic_ns() + MS)

    again = Alarm(ring)
    again.set(time.monotonic_ns())
    for _ in range(5):
        assert rang.acquire(timeout=120)
    again.close()


def test_closed_it_rings_no_more(rings: Rings) -> None:
    alarm = Alarm(rings)
    alarm.set(time.monotonic_ns() + 20 * MS)
    alarm.close()
    assert not rings.at_ns
