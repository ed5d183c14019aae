"""A deployment that runs: its Tritons, and a proxy in this process before them, with a controller."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.proxy.app.actuation.deployment import TOLD, Plugin, write_deployment
from tests.proxy.app.actuation.live import Live, Load
from tests.proxy.fixtures.here import ProxyHere
from tidegate.host import Plugins
from tidegate.schemas import PROXY_FILE, Layout
from tidegate_proxy.deployed.folder import placed, read_plan
from tidegate_proxy.deployed.tritons import RunningTritons
from tidegate_proxy.tritons.embedded import EmbeddedTriton


@pytest.fixture
def start_live(
    tmp_path: Path, at_the_end: Callable[..., None], start_triton: object, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Live]:
    """`start_live(layout, **controller, config={...})`: a deployment on free ports, with a proxy in this process.

    In place of the layout the folder of a deployment will do.
    """
    del start_triton  # which says whether there is a tritonserver
    # Nobody asks those that end for anything: each would take its two seconds.
    monkeypatch.setitem(cast("dict[str, Any]", EmbeddedTriton.__init__.__kwdefaults__), "grace_s", 0)

    def start(first: Layout | Path, *, config: dict[str, Any] | None = None, **choice: Any) -> Live:
        folder = tmp_path / "deployment"
        section = {"controller": {**TOLD, "options": {"folder": str(tmp_path)}, **choice}}
        if isinstance(first, Path):
            folder = first
            document = yaml.safe_load((folder / PROXY_FILE).read_text())
            (folder / PROXY_FILE).write_text(yaml.safe_dump({**document, **section}))
        else:
            write_deployment(folder, first, **section, **(config or {}))
        plan = read_plan(folder, free_ports=True)
        tritons = RunningTritons(folder)
        at_the_end(tritons.stop_all)
        (folder / "run").mkdir()
        tritons.start_all(plan.workers, lambda name, triton: None)
        plugins = Plugins.installed()
        plugins.register(Plugin, "told")
        serve = placed(plan.config, tritons.addresses, free_ports=True)
        proxy = ProxyHere(serve, plugins, tritons)
        at_the_end(proxy.stop)
        return Live(folder, tmp_path, tritons, proxy)

    return start


@pytest.fixture
def start_load() -> Iterator[Callable[[Live], Load]]:
    """`start_load(live)`: clients, which end with the test."""
    loads: list[Load] = []

    def start(live: Live) -> Load:
        loads.append(Load(live.proxy.address))
        loads[-1].goes_on()
        return loads[-1]

    yield start
    for load in loads:
        load.end()
