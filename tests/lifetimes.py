"""Whatever a test starts ends with it, and whatever a wider fixture starts ends with that fixture's scope."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

_owners: list[pytest.FixtureRequest] = []
"""Of what is started now: the last one. The test's own is below those of the wider fixtures that are being set up."""


@pytest.fixture(scope="session")
def at_the_end() -> Callable[[Callable[[], object]], None]:
    """`at_the_end(finish)`: call `finish` when this test ends or, while a wider fixture is set up, its scope."""

    def remember(finish: Callable[[], object]) -> None:
        _owners[-1].addfinalizer(finish)

    return remember


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """A fixture that outlives a test owns what is started while it is set up."""
    if fixturedef.scope == "function":
        return (yield)
    _owners.append(request)
    try:
        return (yield)
    finally:
        _owners.pop()


@pytest.fixture(autouse=True)
def _test_is_owner(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before a test's other fixtures, so that what a test starts ends after all of them have been torn down."""
    _owners.append(request)
    yield
    _owners.pop()
