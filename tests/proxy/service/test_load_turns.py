"""LoadTurns chooses the client whose model a Triton loads next."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from tidegate_proxy.service.load_turns import LoadTurns


class SimulatedLoads:
    """Loads of one second each, on a clock of its own; models wait in the order in which they are given."""

    def __init__(self, clients_of: Mapping[str, Collection[str]]) -> None:
        self.now_s = 0.0
        self.loaded: list[str] = []
        self.turns = LoadTurns(lambda model: clients_of[model], lambda: self.now_s)

    async def load(self, model: str) -> None:
        """Load a model in its turn."""
        async with self.turns.turn(model):
            await asyncio.sleep(0)
            self.now_s += 1.0
            self.loaded.append(model)

    async def load_all(self, models: Collection[str]) -> list[str]:
        """Ask for models at once; return them in the order of their loads."""
        await asyncio.gather(*(self.load(model) for model in models))
        return self.loaded


@pytest.mark.parametrize(
    ("clients_of", "order"),
    [
        ({"a": ["x"], "b": ["x"], "c": ["x"]}, "abc"),
        ({"a": ["x"], "b": ["x"], "c": ["x"], "d": ["y"], "e": ["y"]}, "adbec"),
        ({"a": ["x"], "b": ["x"], "c": ["x", "y"]}, "acb"),
        ({"a": ["x"], "b": [], "c": ["x"], "d": []}, "acbd"),
    ],
    ids=["one client, as they come", "two clients in turn", "a model that another client wants, too", "no client last"],
)
def test_clients_have_turns(clients_of: dict[str, list[str]], order: str) -> None:
    loads = SimulatedLoads(clients_of)
    assert "".join(asyncio.run(loads.load_all(clients_of))) == order
    assert not loads.turns.is_busy


def test_a_client_that_comes_late_has_no_turns_saved_up() -> None:
    clients_of = {**{f"x{number}": ["x"] for number in range(8)}, **{f"y{number}": ["y"] for number in range(3)}}

    async def run() -> list[str]:
        loads = SimulatedLoads(clients_of)
        first = asyncio.gather(*(loads.load(model) for model in clients_of if model[0] == "x"))
        while len(loads.loaded) < 4:
            await asyncio.sleep(0)
        await asyncio.gather(first, *(loads.load(model) for model in clients_of if model[0] == "y"))
        return loads.loaded

    loaded = asyncio.run(run())
    behind = [each[0] for each in loaded[loaded.index("y0") :]]
    assert behind[:6] == ["y", "x", "y", "x", "y", "x"]


def test_who_leaves_gives_the_turn_to_the_next() -> None:
    async def run() -> list[str]:
        loads = SimulatedLoads({"a": ["x"], "b": ["x"], "c": ["y"]})
        tasks = [asyncio.create_task(loads.load(model)) for model in "abc"]
        await asyncio.sleep(0)  # the first has its turn
        tasks[1].cancel()  # while it waits
        await tasks[0]
        tasks[2].cancel()  # once it has been given the turn
        await asyncio.gather(*tasks, return_exceptions=True)
        await loads.load("b")
        return loads.loaded

    assert asyncio.run(run()) == ["a", "b"]
