"""The catalog follows the Tritons: configs that change under the same version are taken up, and little is asked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.fake_answers import echo

Make = Callable[..., Any]
Change = Callable[[model_config_pb2.ModelConfig], object]


def _instances(config: model_config_pb2.ModelConfig) -> None:
    config.instance_group[0].count = 4


def _consent(config: model_config_pb2.ModelConfig) -> None:
    config.parameters["tidegate_scheduling"].string_value = "unbatched"


def _decoupled(config: model_config_pb2.ModelConfig) -> None:
    config.model_transaction_policy.decoupled = True


def _rows(config: model_config_pb2.ModelConfig) -> None:
    config.max_batch_size = 2


def _slo(config: model_config_pb2.ModelConfig) -> None:
    config.parameters["slo_ms"].string_value = "30"


def _tensor(config: model_config_pb2.ModelConfig) -> None:
    config.input[0].name = "Z"


CHANGES: dict[Change, Callable[[Any], object]] = {
    _instances: lambda catalog: len(catalog.workers) == 4,
    _consent: lambda catalog: catalog.consents["echo"].scheduling == "unbatched",
    _decoupled: lambda catalog: catalog.consents["echo"].scheduling == "bypass" and "echo" not in catalog.models,
    _rows: lambda catalog: catalog.models["echo"].max_rows == 2,
    _slo: lambda catalog: catalog.models["echo"].slo_ns == 30_000_000,
    _tensor: lambda catalog: "Z" in catalog.signatures["echo"].inputs,
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_config_that_changes_under_the_same_version_is_taken_up(
    change: Change, start_fake: Make, serve_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 0.1)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    directory = proxy.serving._directory
    assert not CHANGES[change](directory.catalog)
    answer = service_pb2.ModelConfigResponse.FromString(fake.answers["ModelConfig"])
    change(answer.config)
    fake.answers["ModelConfig"] = answer.SerializeToString()
    eventually(lambda: CHANGES[change](directory.catalog), "the new config to be taken up")


def test_a_refresh_asks_for_no_config_of_models_that_stay(
    start_fake: Make, serve_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 1000.0)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    discovery = proxy.serving._discovery
    (backend,) = discovery.backends
    (known,) = proxy.serving._directory.catalog.loaded[backend]

    async def ask_again() -> None:
        before = fake.asked["ModelConfig"]
        assert (await backend.models([known]))[0] is known
        assert fake.asked["ModelConfig"] == before
        assert (await backend.models([known], {"echo"}))[0] is known, "it was asked, and is the same"
        await discovery.refresh()
        assert fake.asked["ModelConfig"] == before + 1

    proxy.run(ask_again())


def test_callers_that_wait_share_one_refresh(
    start_fake: Make, serve_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 1000.0)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    discovery = proxy.serving._discovery

    async def refresh_often() -> None:
        async with discovery.one_at_a_time:
            before = fake.asked["RepositoryIndex"]
            waiting = [asyncio.create_task(discovery.refresh()) for _ in range(20)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert fake.asked["RepositoryIndex"] == before + 1

    proxy.run(refresh_often())


def test_a_look_asks_for_some_configs_and_all_are_asked_in_their_turn(
    start_fake: Make, serve_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 1000.0)
    monkeypatch.setattr("tidegate_proxy.service.discovery.CONFIGS_PER_LOOK", 2)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    discovery = proxy.serving._discovery
    (backend,) = discovery.backends
    asked: list[str] = []

    async def config(name: str) -> model_config_pb2.ModelConfig:
        asked.append(name)
        return next(model.config for model in loaded if model.config.name == name)

    model = proxy.serving._directory.catalog.loaded[backend][0]
    loaded = []
    for name in "abcde":
        copy = model_config_pb2.ModelConfig()
        copy.CopyFrom(model.config)
        copy.name = name
        loaded.append(type(model)(copy, model.versions))
    monkeypatch.setattr(backend, "config", config)
    monkeypatch.setitem(proxy.serving._directory.catalog.loaded, backend, loaded)
    monkeypatch.setattr("tidegate_proxy.service.discovery.LOOKS_PER_REFRESH", 1)
    for _ in range(4):
        proxy.run(discovery._compare_configs(backend))
    assert asked == ["a", "b", "c", "d", "e", "a", "b"]
