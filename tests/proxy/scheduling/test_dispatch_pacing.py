"""Stages for several instances of one Triton that has a batcher of its own: none is there while another one waits."""

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.proxy.scheduling.test_stages import HEAD, MS, Counted, Split, Triton, Waiting
from tidegate.api import Model, PolicyOptions, Profile, Setup, Worker
from tidegate.engine import Engine
from tidegate.toolkit import FirstComeFirstServed
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.messages.model_signature import ModelSignature
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.scheduling import stages as spacing
from tidegate_proxy.scheduling.driver import Driver, StableAdvice
from tidegate_proxy.tritons.backend import LoadedModel
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend
    from tidegate_proxy.tritons.shared_memory import SharedRegions

WHOLE = ModelSignature("m", HEAD.inputs, frozenset({"Z"}), 4)
MERGES = "name: 'm' max_batch_size: 4 dynamic_batching {}"
STEEP = Profile("m", "default", (1000 * MS, 2000 * MS, 3000 * MS, 4000 * MS))
FLAT = Profile("m", "default", (10 * MS, 11 * MS, 12 * MS, 13 * MS))
ANSWER = bytes(160_000)
BEGINS_WITHIN_NS = 50 * MS
"""So long that a busy machine makes no test fail."""


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacing, "BEGINS_WITHIN_NS", BEGINS_WITHIN_NS)
    monkeypatch.setattr(spacing, "MAX_NS", 60_000 * MS)


class Instances(Split):
    """A driver of one model, first come, first served, one request a stage, on some instances of one Triton."""

    def __init__(self, config: str = MERGES, profile: Profile = STEEP, count: int = 2) -> None:
        self.tritons = [Triton("triton")]
        (triton,) = backends = cast("list[Backend]", self.tritons)
        workers = tuple(Worker(number, f"w{number}", ("m",)) for number in range(count))
        model = Model("m", 4, merge_limit=1)
        loaded = LoadedModel(text_format.Parse(config, model_config_pb2.ModelConfig()), ("1",))
        catalog = Catalog(
            models={"m": model},
            signatures={"m": WHOLE},
            partitions={"m": WHOLE},
            workers=list(workers),
            backend_of=dict.fromkeys(range(count), triton),
            hosts={"m": backends},
            loaded={triton: [loaded]},
        )
        setup = Setup((model,), workers, (profile,))
        policy = FirstComeFirstServed(setup, PolicyOptions())
        engine = Engine(policy, name="fifs", strict=True, learn=False, first_lead_ns=1000 * MS)
        self.regions = Counted()
        in_force, regions = SettingsHolder(CurrentSettings()), cast("SharedRegions", self.regions)
        self.driver = Driver(engine, CurrentCatalog(catalog), in_force, Observability(setup, engine.reducer), regions)

    @property
    def there(self) -> int:
        """How many stages the Triton has."""
        return len(self.tritons[0].calls)

    async def until_there(self, stages: int) -> None:
        async with asyncio.timeout(60):
            while self.there < stages:
                await asyncio.sleep(0)


async def test_a_stage_for_an_idle_instance_is_sent_once_the_one_before_it_has_begun() -> None:
    instances = Instances(count=3)
    try:
        sent_ns = time.monotonic_ns()
        clients = [cast("Waiting", instances.send()) for _ in range(3)]
        assert instances.there == 1
        for stages in (2, 3):
            await instances.until_there(stages)
            assert time.monotonic_ns() - sent_ns >= (stages - 1) * BEGINS_WITHIN_NS
        started = sorted(stage.started_ns for stage in instances.driver.running)
        assert all(later - earlier >= BEGINS_WITHIN_NS for earlier, later in pairwise(started))
        for _ in clients:
            instances.tritons[0].answer("Z", ANSWER)
        assert all(isinstance(client.outcome, bytes) for client in clients)
    finally:
        await instances.driver.close()


@pytest.mark.parametrize(
    ("config", "profile"),
    [
        ("name: 'm' max_batch_size: 4", STEEP),
        (MERGES, FLAT),
        ("name: 'm' max_batch_size: 1 dynamic_batching {}", STEEP),
    ],
    ids=["a Triton that merges nothing", "merged, they take hardly longer", "together, they are too large"],
)
async def test_else_it_is_sent_at_once(config: str, profile: Profile) -> None:
    instances = Instances(config, profile)
    try:
        instances.send()
        instances.send()
        assert instances.there == 2
    finally:
        await instances.driver.close()


async def test_what_was_sent_in_advance_is_in_the_way_until_a_stage_ends() -> None:
    instances = Instances()
    try:
        for _ in range(4):  # what stages take on each of them has to be known
            instances.send()
            instances.send()
            await instances.until_there(2)
            instances.tritons[0].answer("Z", ANSWER)
            instances.tritons[0].answer("Z", ANSWER)
            await asyncio.sleep(0)
        for stages in (1, 2):
            instances.send()
            await instances.until_there(stages)
        await asyncio.sleep(BEGINS_WITHIN_NS / 1e9)  # by then they have begun
        for _ in range(2):
            instances.send()
        async with asyncio.timeout(60):  # both are for instances that run another stage
            while len(instances.driver.running) < 4:
                await asyncio.sleep(0)
        assert instances.there == 3
        instances.tritons[0].answer("Z", ANSWER)
        assert instances.there == 3  # one less, one more
    finally:
        await instances.driver.close()


async def test_nothing_is_sent_for_clients_that_left_meanwhile() -> None:
    instances = Instances()
    try:
        instances.send()
        assert instances.driver.leave(instances.send())
        async with asyncio.timeout(60):
            while instances.driver.engine.in_flight > 1:
                await asyncio.sleep(0)
        assert instances.there == 1
    finally:
        await instances.driver.close()


async def test_nor_for_an_instance_that_was_given_up() -> None:
    instances = Instances()
    try:
        clients = [cast("Waiting", instances.send()) for _ in range(2)]
        instances.driver.membership.give_up(cast("Backend", instances.tritons[0]), "it is gone")
        await asyncio.sleep(3 * BEGINS_WITHIN_NS / 1e9)
        assert instances.there == 1
        assert not len(instances.driver.running)
        assert instances.driver.engine.queued + sum(hasattr(client, "outcome") for client in clients) == 2
    finally:
        await instances.driver.close()


@pytest.mark.parametrize(
    ("recommended", "logged"),
    [
        ([(0, 2), (10, 3), (20, 2), (30, 4)], [2]),
        ([(0, 2), (10, -1), (20, 2), (30, -1), (40, 3), (50, -2)], []),  # it swings
        ([(0, 2), (40, 2), (80, 2)], []),  # it does not last
        ([(at_s, 2 if at_s < 100 else 5) for at_s in range(0, 1000, 10)], [2, 5]),
        ([(at_s, 2 if at_s < 100 else -3) for at_s in range(0, 1000, 10)], [2, -3]),
        ([(at_s, 0) for at_s in range(0, 100, 10)], []),
    ],
)
def test_a_recommendation_is_logged_when_it_lasts(recommended: list[tuple[int, int]], logged: list[int]) -> None:
    """Policies make one every few seconds."""
    advice = StableAdvice()
    found = [advice.lasting(at_s, workers) for at_s, workers in recommended]
    assert [workers for workers in found if workers is not None] == logged
