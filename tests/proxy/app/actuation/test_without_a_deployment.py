"""A controller before Tritons that somebody else starts: it may say what it would do, and does nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.proxy.app.actuation.deployment import TOLD, Plugin, layout, tell, write_deployment
from tests.proxy.fixtures.here import ProxyHere
from tidegate.host import PluginError, Plugins
from tidegate.schemas import PROXY_FILE
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.folder import placed


def plugins() -> Plugins:
    """What is installed, and the controller that does as it is told."""
    found = Plugins.installed()
    found.register(Plugin, "told")
    return found


def config(folder: Path, **choice: Any) -> ServeConfig:
    write_deployment(folder, layout(0), controller={**TOLD, **choice})
    return read_config(folder / PROXY_FILE)


def test_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"use `tidegate up DIR`, or set controller\.dry_run"):
        ProxyHere(config(tmp_path / "deployment"), plugins())


def test_a_worker_without_a_triton_is_named(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0, 1), controller={**TOLD, "dry_run": True})
    serve = read_config(folder / PROXY_FILE)
    with pytest.raises(PluginError, match=r"worker 'gpu1' of .* is not among `tritons`"):
        ProxyHere(serve.model_copy(update={"tritons": serve.tritons[:1]}), plugins())


def test_in_a_dry_run_it_says_what_it_would_do(
    tmp_path: Path, start_triton: Callable[..., Any], at_the_end: Callable[..., None]
) -> None:
    tell(tmp_path, layout(1))
    serve = config(tmp_path / "deployment", dry_run=True, options={"folder": str(tmp_path)})
    triton = start_triton([tmp_path / "deployment" / "workers" / "gpu0"])
    address = TritonAddress(
        grpc=triton.grpc_address, http=triton.http_address, metrics=triton.metrics_address, worker="gpu0"
    )
    proxy = ProxyHere(placed(serve, {"gpu0": address}, free_ports=True), plugins())
    at_the_end(proxy.stop)
    actuator = proxy.serving.actuator
    assert actuator is not None
    eventually(lambda: bool(actuator.report()["events"]), "a proposal")
    told = actuator.report()["events"][0]
    assert (told["state"], told["starts"], told["stops"]) == ("proposed", ("gpu1",), ("gpu0",))
    assert [worker.name for worker in proxy.serving.catalog.workers] == ["gpu0"]
