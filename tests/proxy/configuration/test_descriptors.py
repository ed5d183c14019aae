"""Connections within the limit of open files, so that no port stops accepting without a word."""

import logging
import resource

import pytest

from tidegate_proxy.configuration.config import ServeConfig, within_descriptors

LISTEN = dict.fromkeys(("grpc", "http", "metrics"), "127.0.0.1:0")


def _config(**fields: object) -> ServeConfig:
    return ServeConfig.model_validate({"tritons": ("h:1",), "listen": LISTEN, **fields})


@pytest.mark.parametrize(
    ("files", "connections"), [(512, 128), (1024, 298), (100, 1), (40_000, 10_000), (resource.RLIM_INFINITY, 10_000)]
)
def test_each_port_has_its_own(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (files, files))
    with caplog.at_level(logging.WARNING):
        asked = _config(limits={"max_connections": 10_000})
        assert within_descriptors(asked).limits.max_connections == connections
    assert len(caplog.records) == (connections < 10_000)
    assert all("ulimit -n" in record.getMessage() for record in caplog.records)
    assert caplog.text.count(f"open_files={files},") == len(caplog.records)


def test_the_default_is_as_many_as_there_can_be_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (1024, 1024))
    with caplog.at_level(logging.INFO):
        assert within_descriptors(_config()).limits.max_connections == 298
    assert caplog.records == []


def test_a_lower_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (512, 512))
    config = _config(limits={"max_connections": 20})
    assert within_descriptors(config) is config
