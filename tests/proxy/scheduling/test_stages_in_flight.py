"""A stage that is sent behind another one: how both end, and what a Triton that hangs does to them."""

import asyncio
from typing import TYPE_CHECKING, cast

from tests.proxy.scheduling.test_stages import MS, WHOLE, Counted, Split, Triton, Waiting
from tidegate.api import Model, PolicyOptions, Profile, Setup, Worker
from tidegate.engine import Engine
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend
    from tidegate_proxy.tritons.shared_memory import SharedRegions

MODEL = Model("m", 1)
WORKERS = (Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",)))
HUNG_S = 2.0
"""From then on a stage counts as hung: long after a stage of this test is sent behind another one."""


class Whole(Split):
    """A driver of one model on two Tritons. Its stages are planned to take for ever, and take some milliseconds."""

    def __init__(self) -> None:
        self.tritons = [Triton(f"triton-{worker.name}") for worker in WORKERS]
        backends = cast("list[Backend]", self.tritons)
        catalog = Catalog(
            models={"m": MODEL},
            signatures={"m": WHOLE},
            partitions={"m": WHOLE},
            workers=list(WORKERS),
            backend_of=dict(enumerate(backends)),
            hosts={"m": backends},
        )
        setup = Setup((MODEL,), WORKERS, (Profile("m", "default", (1_000_000 * MS,)),))
        policy = FirstComeFirstServed(setup, PolicyOptions())
        engine = Engine(policy, name="fifs", strict=True, learn=False, first_lead_ns=1000 * MS)
        self.regions = Counted()
        in_force, regions = SettingsHolder(CurrentSettings(stage_s=HUNG_S)), cast("SharedRegions", self.regions)
        self.driver = Driver(engine, CurrentCatalog(catalog), in_force, Observability(setup, engine.reducer), regions)

    async def sent_behind(self) -> list[Waiting]:
        """Three clients: the first one's stage runs on the first Triton, the second one's on the other, the third one's
        was sent behind the first."""
        for _ in range(3):  # what stages take on the first one has to be known
            self.send()
            triton = await self.called(0)
            await asyncio.sleep(0.01)
            triton.answer("Z", bytes(160_000))
        clients = [cast("Waiting", self.send()) for _ in range(3)]
        async with asyncio.timeout(60):
            while len(self.tritons[0].calls) < 2:
                await asyncio.sleep(0.001)
        assert len(self.tritons[1].calls) == 1
        return clients


def test_both_are_answered_in_whatever_order_they_end() -> None:
    async def run(first: int) -> None:
        whole = Whole()
        try:
            clients = await whole.sent_behind()
            calls = whole.tritons[0].calls
            calls.insert(0, calls.pop(first))
            whole.tritons[0].answer("Z", bytes(160_000))
            whole.tritons[0].answer("Z", bytes(160_000))
            whole.tritons[1].answer("Z", bytes(160_000))
            assert all(isinstance(client.outcome, bytes) for client in clients)
            assert whole.nothing_is_left()
            await asyncio.sleep(0)  # the engine is told behind the answers
            assert whole.driver.engine.in_flight == 0
        finally:
            await whole.driver.close()

    asyncio.run(run(0))
    asyncio.run(run(1))


async def test_a_lone_caller_has_its_answer_before_the_engine_learns_from_the_stage() -> None:
    whole = Whole()
    try:
        client = cast("Waiting", whole.send())
        await whole.called(0)
        whole.tritons[0].answer("Z", bytes(160_000))
        assert isinstance(client.outcome, bytes)
        assert whole.driver.engine.in_flight == 1
        whole.send()  # what comes next is told after it
        assert whole.driver.engine.tally.answered == 1
        assert whole.driver.engine.in_flight == 1
    finally:
        await whole.driver.close()


async def test_behind_a_stage_that_hangs_it_is_given_up_with_it_and_run_again() -> None:
    whole = Whole()
    try:
        clients = await whole.sent_behind()
        stale, hung = whole.tritons[0].calls, cast("Backend", whole.tritons[0])
        whole.tritons[0].calls = []
        async with asyncio.timeout(60):
            while not whole.tritons[0].calls:
                whole.driver.membership.give_up_overdue(hung)
                await asyncio.sleep(0.01)
        assert whole.driver.engine.in_flight + whole.driver.engine.queued == 3
        whole.tritons[0].calls, again = stale, whole.tritons[0].calls
        for _ in range(2):  # too late: nobody is told
            whole.tritons[0].answer("Z", bytes(160_000))
        assert not hasattr(clients[0], "outcome")
        assert not hasattr(clients[2], "outcome")
        whole.tritons[0].calls = again
        async with asyncio.timeout(60):
            while not all(hasattr(client, "outcome") for client in clients):
                for triton in whole.tritons:
                    while triton.calls:
                        triton.answer("Z", bytes(160_000))
                await asyncio.sleep(0.001)
        assert all(isinstance(client.outcome, bytes) for client in clients)
        assert whole.nothing_is_left()
    finally:
        await whole.driver.close()
