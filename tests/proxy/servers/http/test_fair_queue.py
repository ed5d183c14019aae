"""Few places for many: small work first, and nobody waits for ever."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.servers.http.json_worker_pool import FairQueue


def _order(asked: list[tuple[str, int]]) -> list[int]:
    """In which order they have the one place, when all come while it is taken."""

    async def ask() -> list[int]:
        turns = FairQueue(["place"])
        await turns.take("", 0)
        order: list[int] = []

        async def have(number: int) -> None:
            place = await turns.take(*asked[number])
            order.append(number)
            turns.give_back(place)

        waiting = [asyncio.create_task(have(number)) for number in range(len(asked))]
        await asyncio.sleep(0)
        turns.give_back("place")
        await asyncio.gather(*waiting)
        return order

    return asyncio.run(ask())


def test_small_ones_go_first_and_owners_in_turn() -> None:
    assert _order([("a", 5), ("b", 1)]) == [1, 0]
    assert _order([("a", 5), ("a", 5), ("a", 5), ("b", 6), ("b", 6)]) == [0, 3, 1, 4, 2]
    assert _order([("", 5), ("", 5), ("", 1)]) == [2, 0, 1]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 9)), max_size=20))
def test_every_client_has_a_turn(asked: list[tuple[str, int]]) -> None:
    order = _order(asked)
    assert sorted(order) == list(range(len(asked)))
    mine = [number for number in order if asked[number][0] == "a"]
    assert mine == sorted(mine)


def test_a_large_one_is_not_passed_over_for_ever() -> None:
    async def ask() -> int:
        turns = FairQueue([0])
        place = await turns.take("", 0)
        large = asyncio.create_task(turns.take("large", 100))
        for number in range(1000):
            small = asyncio.create_task(turns.take(f"small {number}", 1))
            await asyncio.sleep(0)
            turns.give_back(place)
            await asyncio.wait([small, large], return_when=asyncio.FIRST_COMPLETED)
            if large.done():
                return number
            place = small.result()
        return 1000

    assert asyncio.run(ask()) <= 300


def test_a_small_one_that_comes_later_waits_for_few_of_a_crowd() -> None:
    async def ask() -> int:
        turns = FairQueue([0])
        place = await turns.take("", 100)
        crowd = [asyncio.create_task(turns.take(str(number), 100)) for number in range(20)]
        await asyncio.sleep(0)
        for _ in range(2):
            turns.give_back(place)
            await asyncio.sleep(0)
        small = asyncio.create_task(turns.take("small", 5))
        for _ in crowd:
            await asyncio.sleep(0)
            if small.done():
                break
            turns.give_back(place)
        for task in crowd:
            task.cancel()
        return sum(not task.cancelled() and task.done() for task in crowd)

    assert asyncio.run(ask()) <= 3


async def test_who_leaves_takes_no_place_and_is_forgotten() -> None:
    turns = FairQueue([0])
    place = await turns.take("a", 1)
    crowd = [asyncio.create_task(turns.take(str(number), 1)) for number in range(100)]
    await asyncio.sleep(0)
    turns.give_back(place)
    for task in crowd:  # one of them has just been given its place
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert await turns.take("b", 1000) == 0
    assert len(turns._waiting) == 0
    assert len(turns._due) <= 1
