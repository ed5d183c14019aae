"""Session on a Ray cluster: starts everything and serves until a signal."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.ray_cluster import check_versions, connect, import_ray, installed_on_nodes
from tidegate_proxy.deployed.background import Tell
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.state import RunningPart, RunningState, held, remove_state, write_state
from tidegate_proxy.on_ray.plan import RayPlan
from tidegate_proxy.on_ray.supervised_part import SupervisedPart
from tidegate_proxy.on_ray.supervisor import Supervisor

_OPTION: Final = "--ray"
_PROXY: Final = "tidegate-proxy"
_SECRET_BYTES: Final = 32


def serve_on_ray(plan: RayPlan, address: str, tell: Tell) -> None:
    """Start everything on the cluster, serve until KeyboardInterrupt, and stop everything.

    Raises DeploymentError and OSError, with nothing left running. `address`: of the cluster, HOST:PORT or `auto`;
    `tell`: called with each event to print.
    """
    folder = plan.deployment.folder

    def keep(supervisor: Supervisor) -> None:
        write_state(folder, _state_of(supervisor))

    with held(folder), _cluster(address) as (ray, cluster):
        supervisor = Supervisor(ray, cluster, plan, secrets.token_hex(_SECRET_BYTES), tell, keep)
        try:
            supervisor.start()
            keep(supervisor)
            tell({"event": "serving", "state": _state_of(supervisor).model_dump(mode="json")})
            with suppress(KeyboardInterrupt):
                supervisor.watch()
        finally:
            with _undisturbed():
                supervisor.stop()
            remove_state(folder)


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Any, str]]:
    """The cluster, and what messages call it. Raises DeploymentError."""
    cluster = f"Ray at {address}"
    try:
        ray = import_ray(f"{_OPTION} {address}")
        connect(ray, cluster, address, _OPTION)
    except ParallelBackendError as error:
        raise DeploymentError(str(error)) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has taken it for itself
    try:
        missing = check_versions(cluster, installed_on_nodes(ray, cluster)).missing
        for node, plugins in missing.items():
            if any(plugin.startswith(f"{_PROXY}==") for plugin in plugins):
                raise DeploymentError(f"{cluster}: node {node} lacks {', '.join(plugins)}: pip install them there")
        yield ray, cluster
    except ParallelBackendError as error:
        raise DeploymentError(str(error)) from error
    finally:
        with _undisturbed():
            ray.shutdown()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C and wait for the end: nothing is to be left running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _state_of(supervisor: Supervisor) -> RunningState:
    def running(part: SupervisedPart) -> RunningPart:
        assert part.place is not None, "it was started"
        assert part.started is not None, "so it was"
        return RunningPart(
            name=part.name, node=part.place.host, pid=part.started.pid, addresses=dict(part.started.addresses)
        )

    shards = tuple(running(part) for part in supervisor.parts if part.is_shard)
    frontends = tuple(running(part) for part in supervisor.parts if part.is_frontend)
    for_clients = frontends[0].addresses
    return RunningState(
        pid=os.getpid(),
        grpc=for_clients["grpc"],
        http=for_clients.get("http", ""),
        metrics=for_clients.get("metrics", ""),
        workers=tuple(
            worker.model_copy(update={"node": part.place.host})
            for part in supervisor.parts
            if part.device and part.started and part.place
            for worker in part.started.workers
        ),
        shards=shards,
        frontends=frontends,
    )
