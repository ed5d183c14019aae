"""Reader of a deployment's folder: workers and their ports."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.schemas import PROXY_FILE, RUN_FOLDER, DeployedWorker, read_deployment
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import ListenConfig, ServeConfig
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.tritons import TritonAddress

_LOCAL = ("127.0.0.1", "localhost")


class DeploymentError(Exception):
    """Error: a deployment cannot be started or stopped here; the message says the problem, the place and the remedy."""


class WorkerNotStarted(Exception):
    """Error: the process of a worker failed to start; the message gives the cause. Nothing of it is left."""


@dataclass(frozen=True)
class WorkerPlan:
    """Worker to start. Port 0 picks a free one."""

    worker: DeployedWorker
    repository: Path
    log: Path
    grpc_port: int
    http_port: int
    metrics_port: int

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self.worker.name


@dataclass(frozen=True)
class DeploymentPlan:
    """Processes of a deployment that are to be started."""

    folder: Path
    config: ServeConfig
    workers: tuple[WorkerPlan, ...]
    left_out: tuple[str, ...]
    """Workers of the deployment that the configuration does not name."""
    free_ports: bool

    def reread(self, tritons: Mapping[str, TritonAddress]) -> ServeConfig:
        """Return the current configuration in the folder, with the given Triton addresses. Raises ConfigError."""
        return placed(read_config(self.folder / PROXY_FILE), tritons, free_ports=self.free_ports)


def read_plan(folder: Path, *, free_ports: bool = False) -> DeploymentPlan:
    """Return the processes to start for a folder. Raises DeploymentError, DocumentError, ConfigError."""
    deployment = read_deployment(folder)
    if deployment.deploy_target != "embedded":
        raise DeploymentError(
            f"{folder} was generated for full Tritons (--deploy-target {deployment.deploy_target}), "
            f"and `tidegate up` starts "
            "embedded ones, which have none of its backends: run the launch files in workers/ on their nodes, or "
            "generate it again with --deploy-target embedded"
        )
    config = read_config(folder / PROXY_FILE)
    known = {worker.name: worker for worker in deployment.workers}
    plans = []
    for triton in config.tritons:
        name = triton.worker or ""
        where = f"{folder / PROXY_FILE}: the Triton at {triton.grpc}"
        if name not in known:
            raise DeploymentError(
                f"{where} is worker {name or 'none'!r}, which {folder} has no repository for; it has {', '.join(known)}"
            )
        if host_of(triton.grpc) not in _LOCAL:
            raise DeploymentError(
                f"{where} is worker {name!r} on another machine, and `tidegate up` starts Tritons on this one: start "
                f"it there with {known[name].launch} and the proxy with `tidegate serve`, or generate without --host"
            )
        repository = folder / known[name].repository
        if not repository.is_dir():
            raise DeploymentError(f"worker {name!r} has no repository: {repository} is gone; generate {folder} again")
        plans.append(
            WorkerPlan(
                known[name],
                repository,
                folder / RUN_FOLDER / f"{Path(known[name].repository).name}.log",
                *((0, 0, 0) if free_ports else _ports(triton)),
            )
        )
    left_out = tuple(name for name in known if name not in {plan.name for plan in plans})
    return DeploymentPlan(folder, config, tuple(plans), left_out, free_ports)


def placed(config: ServeConfig, tritons: Mapping[str, TritonAddress], *, free_ports: bool) -> ServeConfig:
    """Return a configuration with the addresses of started Tritons; others are unchanged.

    `tritons`: addresses by worker; `free_ports`: whether the proxy listens on free ports instead of the configured
    ones.
    """
    moved = tuple(
        triton.model_copy(
            update={"grpc": now.grpc, "http": now.http, "metrics": now.metrics}
            if (now := tritons.get(triton.worker or ""))
            else {}
        )
        for triton in config.tritons
    )
    update: dict[str, object] = {"tritons": moved}
    if free_ports:
        update["listen"] = ListenConfig(grpc="127.0.0.1:0", http="127.0.0.1:0", metrics="127.0.0.1:0")
    return config.model_copy(update=update)


def port_remedy(error: str) -> str:
    """Return the remedy if an error says that a port is in use; otherwise an empty text."""
    taken = "already in use" in error or "is the port taken" in error
    return f"\n({PROXY_FILE} says which ports to take; --free-ports takes any that are free)" if taken else ""


def _ports(triton: TritonAddress) -> tuple[int, int, int]:
    """gRPC, HTTP, metrics; 0 for those that the configuration does not name."""
    return tuple(port_of(address) if address else 0 for address in (triton.grpc, triton.http, triton.metrics))  # type: ignore[return-value]  # three of them
