"""Assembly of the proxy: Tritons, catalog, policy, engine, driver, servers."""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tidegate.api import Setup
from tidegate.control import ControlLoop
from tidegate.control.capacity import gpus_of
from tidegate.engine import FIRST_LEAD_NS, Engine
from tidegate.host import PluginError, Plugins, make_controller
from tidegate.observation import Observer, Recorder
from tidegate.schemas import Layout, ProfileFile, hardware_here, read_document, read_profiles
from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.app.actuation.actuator import Actuator
from tidegate_proxy.app.actuation.controller_process import ControllerProcess
from tidegate_proxy.app.discovered_tritons import DiscoveredTritons, with_first_tritons
from tidegate_proxy.app.doctor.diagnosis import AT_START, diagnose
from tidegate_proxy.app.doctor.facts import NotReady, facts_of
from tidegate_proxy.app.doctor.triton_queries import executions, not_ready, why_not_ready
from tidegate_proxy.app.metrics_page import MetricsPage
from tidegate_proxy.app.model_ownership import ModelOwnership, ServedModels, load_missing, planned_for
from tidegate_proxy.app.proxy import Proxy
from tidegate_proxy.app.triton_scaling import TritonScaling
from tidegate_proxy.app.tritons import Tritons, backend_of
from tidegate_proxy.app.tuning.policy_tuning import PolicyTuning
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ServeConfig, within_descriptors
from tidegate_proxy.configuration.config_file import assignment_of
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.tritons import RunningTritons
from tidegate_proxy.frontends.shard import GrpcOfFrontends, HttpOfFrontends, Shard, ShardServices
from tidegate_proxy.messages.request import ApplicationTags, PendingRequest
from tidegate_proxy.observability.metrics import Observability
from tidegate_proxy.observability.tracing import otlp_tracing
from tidegate_proxy.rollout.mode import RolloutMode
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.servers.grpc import GrpcService, NewServer
from tidegate_proxy.servers.http.interface import Application
from tidegate_proxy.servers.http.server import HttpListener, start_server
from tidegate_proxy.servers.http.service import HttpService, StartServer, http_limits
from tidegate_proxy.service.batch_verification import BatchVerifier
from tidegate_proxy.service.control import ControlPlaneCalls
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.inference import Inference
from tidegate_proxy.service.on_demand import OnDemandModels
from tidegate_proxy.service.passthrough import BypassedInferences, Routing
from tidegate_proxy.transport import Http2Server, RpcCall, RpcServer
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.liveness import Liveness
from tidegate_proxy.transport.ports import bind
from tidegate_proxy.transport.tls import server_context
from tidegate_proxy.tritons import restrictions as of_tritons
from tidegate_proxy.tritons.backend import Backend, BackendError, BackendSilent
from tidegate_proxy.tritons.batching_mode import drop_delays
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog, discover
from tidegate_proxy.tritons.gpus import gpus_here
from tidegate_proxy.tritons.initial_profiles import hosted, said_of_others, starting_profiles, unmatched_shapes
from tidegate_proxy.tritons.loop_detector import LoopDetector
from tidegate_proxy.tritons.shared_memory import SharedRegions

log = logging.getLogger(__name__)

WAKE_SLACK_NS = 30_000_000
"""Assumed wake-up delay of a sleeping thread until measured: 0.2 ms on an idle machine, this on a busy one."""


@asynccontextmanager
async def serving(  # noqa: PLR0915 - the list of all parts
    config: ServeConfig, plugins: Plugins, processes: RunningTritons | None = None, shard: Shard | None = None
) -> AsyncIterator[Proxy]:
    """Serve until the block is left; then calls in flight may end within `drain_timeout_s`.

    `processes`: starts and stops workers for a controller; None: not supported. `shard`: source of the requests from
    frontends, which hold the clients; None: this process holds them.
    Raises BackendError, DocumentError, PluginError, ProfileFileError, CredentialFileError, RestrictionError, TlsError,
    TracingError or OSError, each with the remedy, before anything is served.
    """
    # What can be wrong without any Triton is found first.
    plugins.validated_options(config.policy.name, dict(config.policy.options))
    controller = _controller(config, plugins, processes)
    measured = read_profiles(config.profiles) if config.profiles else ProfileFile(profiles=[])
    gate, served = AccessControl(config), config if shard else within_descriptors(config)
    tracing = otlp_tracing(config.tracing.endpoint) if config.tracing else None
    async with AsyncExitStack() as stack:
        observers = _observers(config, plugins, stack)
        in_force = SettingsHolder(settings_of(config))
        bounds, loops = ClientBounds(in_force), LoopDetector()

        # The Tritons, and what they serve.
        read = config
        config = await with_first_tritons(config, in_force, loops)
        backends = [backend_of(triton, config, in_force, loops) for triton in config.tritons]
        stack.push_async_callback(_close_all, backends)
        directory = CurrentCatalog(await _first_catalog(backends, config, measured, shard.number if shard else None))

        # What decides: the engine with its policy; and what counts.
        setup = _setup(config, directory.catalog, measured)
        engine = Engine(
            plugins.make_policy(config.policy.name, setup, dict(config.policy.options)),
            name=config.policy.name,
            observers=observers,
            max_tries=in_force.settings.max_tries,
            first_lead_ns=FIRST_LEAD_NS,
            priority_floors=config.priority_floors,
            policies=plugins.make_policy,
        )
        rollout = RolloutMode(config, in_force, directory, measured, engine)
        gpus = gpus_of(controller[1]) if controller else None
        observability = Observability(setup, engine.reducer, tracing, rollout.watchers(), gpus)
        observability.metrics.account(config.prices, gate.rejections)
        stack.callback(observability.close)

        # What is done: requests go to the engine, its batches to Tritons.
        def pass_on(client: PendingRequest) -> None:
            passages.take_over(client)  # which stands above the driver, and is notified by it

        async def look_again(backend: Backend) -> None:
            await discovery.look_at(backend)  # and so does this

        async def take_up_limits() -> None:
            await discovery.refresh()  # and so does this

        regions = await _regions_with(backends, in_force)
        stack.push_async_callback(regions.close)
        verifier = BatchVerifier(directory, in_force, observability.metrics)
        driver = Driver(
            engine,
            directory,
            in_force,
            observability,
            regions,
            gate.credential_headers,
            on_batch=verifier.answered,
            pass_on=pass_on,
            look_again=look_again,
            take_up_limits=take_up_limits,
            tenant_of=gate.tenant_of,
        )

        # Triton's API over all Tritons.
        served_models = ServedModels(shard, directory) if shard and shard.number is not None else None
        discovery = Discovery(
            backends,
            directory,
            driver,
            observability.statistics,
            measured,
            config,
            directory.catalog.layout,
            served_models.tell if served_models else lambda: None,
        )
        liveness = Liveness(in_force)
        driver.watch(liveness)
        routing = Routing(discovery.backends, directory, driver, observability, gate, in_force, discovery.sequences)
        passages = BypassedInferences(routing, observability)
        control = ControlPlaneCalls(discovery.backends, directory, discovery, routing, observability, liveness, loops)
        inference = Inference(
            directory,
            driver,
            ApplicationTags(config.app, config.feature),
            rollout.bypasses(),
            passages,
            observability,
            rollout.judged(),
        )
        on_demand = OnDemandModels(config, discovery, directory, driver, in_force)
        inference.load_on_demand(on_demand)
        stack.push_async_callback(on_demand.close)
        stack.push_async_callback(rollout.close)

        # What changes while it serves: the configuration, the layout, the plan of several shards.
        tritons = Tritons(config, in_force, loops, directory, driver, discovery)
        reconfiguring = asyncio.Lock()
        discovered = DiscoveredTritons(read, tritons, reconfiguring)
        stack.push_async_callback(discovered.close)
        scaling = TritonScaling(read, discovered, tritons, observability.metrics)
        stack.push_async_callback(scaling.close)
        actuator = _actuator(config, controller, engine, tritons, processes) if controller else None
        tuning = PolicyTuning(driver, plugins, config.policy)
        stack.push_async_callback(tuning.close)
        claims = ModelOwnership(served_models, discovery, engine) if served_models else None
        proxy = Proxy(
            directory,
            driver,
            discovery,
            control,
            passages,
            gate,
            bounds,
            in_force,
            rollout,
            inference,
            tritons,
            actuator,
            claims,
            tuning,
            discovered,
            scaling,
            reconfiguring,
            on_demand,
        )
        stack.push_async_callback(proxy.close)
        for work in (
            discovery.look_around(),
            discovered.run(),
            proxy.look_at_files(),
            proxy.control_layout(),
            rollout.run(driver),
            on_demand.run(),
            verifier.run(driver, discovery, gate),
        ):
            stack.push_async_callback(cancel, asyncio.create_task(work))

        # Clients come in, here or at frontends.
        page = http = None
        if config.listen.metrics:
            page = MetricsPage(
                lambda: engine.name,
                liveness,
                observability,
                driver,
                directory,
                discovery,
                gate,
                bounds,
                http_limits(served),
                rollout,
                tuning,
                on_demand,
                actuator,
                processes,
            )
            await proxy.show_metrics(page, config.listen.metrics, stack, shard.metrics_port if shard else None)
        grpc_service = GrpcService(
            inference,
            driver,
            control,
            routing,
            passages,
            gate,
            served,
            _grpc_servers(served, bounds, shard),
            rollout.versions,
        )
        await proxy.serve_grpc(grpc_service, stack)
        if config.listen.http and _serves_http(config, backends):
            http = HttpService(
                served,
                inference,
                directory,
                discovery,
                control,
                routing,
                gate,
                bounds,
                in_force,
                _http_servers(served, bounds, shard),
                rollout.versions,
            )
            await proxy.serve_http(http, config.listen.http, stack)
        if claims:
            stack.push_async_callback(claims.close)
            await claims.begin(assignment_of(config))
        if shard:
            pages = page.answer if page else None
            await shard.open(
                ShardServices(grpc_service.accept, http.application if http else None, pages, bounds, control.has)
            )
        stack.push_async_callback(_drain, proxy, control)
        yield proxy


def _grpc_servers(config: ServeConfig, bounds: ClientBounds, shard: Shard | None) -> NewServer:
    """Make what has the clients over gRPC: this process, or frontends."""

    def new_server(accept: Callable[[RpcCall], None]) -> RpcServer:
        if shard:
            return GrpcOfFrontends(shard)
        return Http2Server(accept, config.limits, bounds, reuse_port=config.listen.reuse_port)

    return new_server


def _http_servers(config: ServeConfig, bounds: ClientBounds, shard: Shard | None) -> StartServer:
    """Make what has the clients over HTTP, likewise."""

    async def start(application: Application, address: str) -> HttpListener:
        if shard:
            return HttpOfFrontends(shard)
        return await start_server(
            application,
            bind(address, reuse_port=config.listen.reuse_port),
            tls=server_context(config.tls) if config.tls else None,
            limits=http_limits(config),
            bounds=bounds,
        )

    return start


async def _drain(proxy: Proxy, control: ControlPlaneCalls) -> None:
    control.drain()
    await proxy.drain()
    proxy.driver.dismiss()


def _controller(
    config: ServeConfig, plugins: Plugins, processes: RunningTritons | None
) -> tuple[ControllerProcess, Layout] | None:
    """Return the controller that the configuration names, and its first layout; None if it names none.

    Raises PluginError, DocumentError.
    """
    choice = config.controller
    if choice is None or config.layout is None:  # which it then has
        return None
    spec = plugins.controller(choice.name)
    if processes is None and not choice.dry_run:
        raise PluginError(
            f"controller {choice.name!r}: only a deployment that runs on this machine has workers that may be started "
            "and stopped: use `tidegate up DIR`, or set controller.dry_run, which only says what it would do"
        )
    layout = read_document(config.layout, Layout)
    lacking = {worker.name for worker in layout.workers} - {triton.worker for triton in config.tritons}
    if lacking:
        raise PluginError(
            f"controller {choice.name!r}: worker {min(lacking)!r} of {config.layout} is not among `tritons`: a "
            "controller has to know which workers there are, so name its Triton, or take it out of the layout"
        )
    slos_ms = {name: model.slo_ms for name, model in config.models.items() if model.slo_ms}
    models = tuple(
        model.model_copy(update={"slo_ms": slos_ms.get(model.name, model.slo_ms)}) for model in layout.models
    )
    layout = layout.model_copy(update={"models": models})
    make = partial(make_controller, spec, layout, choice.options, seed=config.seed, folder=choice.folder)
    make()  # what is wrong with its options is said here
    return ControllerProcess(make, choice.answer_timeout_s), layout


def _actuator(
    config: ServeConfig,
    controller: tuple[ControllerProcess, Layout],
    engine: Engine,
    tritons: Tritons,
    processes: RunningTritons | None,
) -> Actuator:
    choice, (process, layout) = config.controller, controller
    assert choice is not None, "there is a controller"
    loop = ControlLoop(choice, layout, engine.reducer.open.values, now_ns=time.monotonic_ns())
    engine.reducer.add_listener(loop.monitor)
    return Actuator(loop, process, tritons, processes, choice.startup_timeout_s)


def _serves_http(config: ServeConfig, backends: Sequence[Backend]) -> bool:
    """Whether HTTP is possible. Raises BackendError if it was asked for explicitly and is not."""
    unknown = [backend.address for backend in backends if not backend.http_url]
    if not unknown:
        return True
    words = (
        f"the HTTP port of Triton at {unknown[0]} is not known: give tritons.N.http, or --triton GRPC,http=HOST:PORT"
    )
    if "listen" in config.model_fields_set:
        raise BackendError(words)
    log.warning("HTTP not served", extra={"detail": words})
    return False


def _setup(config: ServeConfig, catalog: Catalog, measured: ProfileFile) -> Setup:
    for line in unmatched_shapes(catalog, measured):
        log.warning("profile does not fit", extra={"detail": line})
    for name, kind in hosted(catalog) if catalog.layout is None else ():
        model = catalog.models[name]
        if not measured.profiles_of(name, kind, model.max_rows):
            level = logging.INFO if model.slo_ns is None else logging.WARNING  # what else would a guess be wrong for?
            others = said_of_others(measured, name).strip() or "`tidegate profile` measures one"
            fields = {"model": name, "device_class": kind, "detail": others}
            log.log(level, "no profile, learning from a guess", extra=fields)
    return Setup(
        models=tuple(catalog.models.values()),
        workers=tuple(catalog.workers),
        profiles=starting_profiles(catalog, measured),
        seed=config.seed,
        timer_latency_ns=WAKE_SLACK_NS,
        network=catalog.network,
        no_slo_max_deferral_ns=round(config.limits.no_slo_max_deferral_s * 1e9),
    )


async def _tell_what_needs_attention(
    config: ServeConfig,
    catalog: Catalog,
    measured: ProfileFile,
    backends: Sequence[Backend],
    broken: Sequence[NotReady],
) -> None:
    """Log what a `tidegate doctor` finds that the other lines at start do not say."""
    facts = replace(
        facts_of(config, catalog, measured),
        not_ready=list(broken),
        executions=await executions(backends),
        hardware=await asyncio.to_thread(hardware_here) if measured.profiles else None,
    )
    for finding in diagnose(facts, AT_START):
        log.warning("configuration finding", extra={"rule": finding.rule, "detail": str(finding)})


async def _first_catalog(
    backends: Sequence[Backend], config: ServeConfig, measured: ProfileFile, shard: int | None
) -> Catalog:
    """Return the catalog; queries silent Tritons again until `startup_timeout_s` is over. Raises BackendError."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + config.startup_timeout_s
    while True:
        await _await_tritons(config, backends, give_up)
        try:
            return await _first_look(backends, config, measured, shard)
        except BackendSilent:
            if loop.time() > give_up:
                raise
        await asyncio.sleep(0.1)


async def _first_look(
    backends: Sequence[Backend], config: ServeConfig, measured: ProfileFile, shard: int | None
) -> Catalog:
    """Return the catalog once the Tritons are as configured, and log what needs attention.

    `shard`: number of the shard, if there are several.
    """
    if shard is not None:
        await load_missing(backends, planned_for(shard, assignment_of(config)))
    await drop_delays(backends, config.models)
    layout = read_document(config.layout, Layout) if config.layout else None
    gpus = () if layout else await asyncio.to_thread(gpus_here)
    broken = [each for backend in backends for each in await not_ready(backend)]
    catalog = await discover(
        backends,
        config.models,
        layout=layout,
        gpus=gpus,
        is_whole=shard is None,
        is_rollout=config.shadow or config.canary is not None,
        broken={each.model for each in broken},
        graphs=config.graphs,
    )
    await _tell_what_needs_attention(config, catalog, measured, backends, broken)
    return catalog


async def _regions_with(backends: Sequence[Backend], in_force: SettingsHolder) -> SharedRegions:
    regions = SharedRegions(in_force)
    for backend in backends:
        await regions.share_with(backend)
    return regions


async def _await_ready(backend: Backend, triton: TritonAddress, startup_timeout_s: float, give_up: float) -> None:
    """Until it serves and has loaded what it can; after `startup_timeout_s`, at this instant, while it loads, too."""
    while not await backend.serves(settled=True):
        if asyncio.get_running_loop().time() > give_up:
            if await backend.serves():
                return
            why = await why_not_ready(backend, triton)
            raise BackendError(f"no Triton is ready at {backend.address} after {startup_timeout_s:g} s: {why}")
        await asyncio.sleep(0.1)


async def _await_tritons(config: ServeConfig, backends: Sequence[Backend], give_up: float) -> None:
    """Until all serve, and it is known what they restrict. Raises BackendError, RestrictionError."""
    await asyncio.gather(
        *(
            _await_ready(backend, triton, config.startup_timeout_s, give_up)
            for backend, triton in zip(backends, config.tritons, strict=True)
        )
    )
    await of_tritons.log_restrictions(backends, config, over_http=config.listen.http is not None)


def _observers(config: ServeConfig, plugins: Plugins, stack: AsyncExitStack) -> list[Observer]:
    """The observers that were asked for. Raises PluginError, and OSError for an event log that cannot be written."""
    observers = [plugins.make_observer(choice.name, dict(choice.options)) for choice in config.observers]
    if config.event_log:
        record = _new_recording(config.event_log)
        stack.callback(_close_quietly, record)
        observers.insert(0, Recorder(record))
    return observers


def _new_recording(path: Path) -> BinaryIO:
    """An empty file for its owner alone. The recording of an earlier run, which may have crashed, is kept beside it."""
    if path.is_file() and path.stat().st_size:
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))
    # A pipe or /dev/stdout is opened unchanged; an empty file keeps its mode.
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _close_quietly(record: BinaryIO) -> None:
    """Close without raising: a full disk loses what is not in the file, and the observer that wrote it has reported
    it."""
    with suppress(OSError):
        record.close()


async def _close_all(backends: list[Backend]) -> None:
    for backend in backends:
        await backend.close()
