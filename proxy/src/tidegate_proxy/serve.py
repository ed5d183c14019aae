"""Puts the proxy together: Tritons, catalog, policy, engine, driver, front."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tidegate.api import Model, ModelProfile, Observer, Profile, Setup, read_profiles
from tidegate.engine import Engine, Recorder
from tidegate.host import Plugins
from tidegate_proxy.backend import Backend, BackendError
from tidegate_proxy.catalog import Catalog, discover
from tidegate_proxy.control import Control
from tidegate_proxy.driver import Driver
from tidegate_proxy.front import Front
from tidegate_proxy.inference import Inference
from tidegate_proxy.limits import Limits
from tidegate_proxy.probing import watch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """What `tidegate serve` takes."""

    tritons: Sequence[str]
    policy: str
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    slos_ms: Mapping[str, float] = field(default_factory=dict)
    profiles: Path | None = None
    record: Path | None = None
    observers: Sequence[str] = ()
    address: str = "127.0.0.1:0"
    wait_s: float = 10.0
    """How long a Triton may take to become ready before that is an error."""
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    drain_s: float = 10.0
    """How long requests under way may take to end once the proxy is to stop."""


@dataclass(frozen=True)
class Serving:
    """A proxy that answers."""

    address: str
    catalog: Catalog
    engine: Engine


@asynccontextmanager
async def serving(options: ServeOptions, plugins: Plugins) -> AsyncIterator[Serving]:
    """Serve until the block is left.

    Raises BackendError, PluginError, ProfileFileError or OSError, each with the remedy, before anything is served.
    """
    plugins.policy(options.policy)  # a wrong name should not have to wait for Tritons
    measured = _measured(options.profiles)
    backends = [Backend(address) for address in options.tritons]
    record: BinaryIO | None = options.record.open("wb") if options.record else None
    try:
        await asyncio.gather(*(_await_ready(backend, options.wait_s) for backend in backends))
        catalog = await discover(backends, options.slos_ms)
        observers: list[Observer] = [plugins.observer(name).make() for name in options.observers]
        if record:
            observers.append(Recorder(record))
        engine = _engine(options, plugins, catalog, measured, observers)
        driver = Driver(engine, catalog, options.limits)
        control = Control(backends, catalog, driver)
        front = Front(Inference(catalog, driver), driver, control)
        port = front.listen(options.address)
        watches = [asyncio.create_task(watch(backend, driver)) for backend in backends]
        try:
            yield Serving(f"{options.address.rpartition(':')[0]}:{port}", catalog, engine)
        finally:
            control.draining = True
            await front.close(options.drain_s)
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await driver.close()
    finally:
        for backend in backends:
            await backend.close()
        if record:
            record.close()


def _engine(
    options: ServeOptions,
    plugins: Plugins,
    catalog: Catalog,
    measured: dict[tuple[str, str], ModelProfile],
    observers: Sequence[Observer],
) -> Engine:
    models = tuple(catalog.models.values())
    for model in models:
        if (model.name, "default") not in measured:
            log.warning("no profile of %r: starting from a guess, learning from what is observed", model.name)
    setup = Setup(
        models=models,
        workers=tuple(catalog.workers),
        profiles=tuple(starting_profile(model, measured) for model in models),
        seed=options.seed,
    )
    policy = plugins.make_policy(options.policy, setup, dict(options.policy_options))
    return Engine(policy, name=options.policy, observers=observers)


def _measured(path: Path | None) -> dict[tuple[str, str], ModelProfile]:
    profiles = read_profiles(path).profiles if path else []
    return {(profile.model, profile.kind): profile for profile in profiles}


def starting_profile(model: Model, measured: Mapping[tuple[str, str], ModelProfile]) -> Profile:
    """What to plan a model with at first: its measured profile, else a guess too small to drop anything by.

    Either is corrected online by what is observed.
    """
    entry = measured.get((model.name, "default"))
    if entry is not None:
        return entry.to_profile(model.max_rows)
    return Profile.linear(model.name, alpha_ms=0.05, beta_ms=0.5, max_rows=model.max_rows)


async def _await_ready(backend: Backend, wait_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + wait_s
    while not await backend.is_ready():
        if asyncio.get_running_loop().time() > deadline:
            raise BackendError(
                f"no Triton is ready at {backend.address} after {wait_s:g} s: does it run, and is this its gRPC port?"
            )
        await asyncio.sleep(0.1)
