"""How targets are written."""

import pytest

from tidegate_loadtest.comparison.targets import Target, parse_targets
from tidegate_loadtest.connection import LoadTestError

TWO = [Target("direct", "localhost:8001"), Target("tidegate", "10.0.0.7:8101")]


@pytest.mark.parametrize(
    "texts",
    [["direct=localhost:8001", "tidegate=10.0.0.7:8101"], ["direct=localhost:8001,tidegate=10.0.0.7:8101"]],
)
def test_one_by_one_or_with_commas(texts: list[str]) -> None:
    assert parse_targets(texts) == TWO


def test_an_address_may_be_of_ipv6_and_stand_twice() -> None:
    assert [target.address for target in parse_targets(["a=[::1]:8001", "b=[::1]:8001"])] == ["[::1]:8001"] * 2


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["direct=localhost:8001"], "two servers at least, 1 given"),
        ([""], "two servers at least, 0 given"),
        (["a=localhost:8001", "a=localhost:8101"], "'a' is named twice"),
        (["a=localhost:8001", "localhost:8101"], "'localhost:8101': write NAME=HOST:PORT"),
        (["a=localhost:8001", "b=localhost"], "'b=localhost': write NAME=HOST:PORT"),
        (["a=localhost:8001", "b=localhost:http"], "'b=localhost:http': write NAME=HOST:PORT"),
        (["a=localhost:8001", "=localhost:8101"], "'=localhost:8101': write NAME=HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said(texts: list[str], says: str) -> None:
    with pytest.raises(LoadTestError) as error:
        parse_targets(texts)
    assert says in str(error.value)
