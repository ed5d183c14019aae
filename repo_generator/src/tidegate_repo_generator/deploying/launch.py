"""Launch file of a worker, a shell script that executes its Triton; the configuration of the proxy before them."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.schemas import LAYOUT_FILE, LayoutWorker
from tidegate_repo_generator.deploying.places import DEFAULT_HOST, WorkerPlacement
from tidegate_repo_generator.deploying.slices import exports, words
from tidegate_repo_generator.model import DeployTarget

ALLOW_CLIENT_SHM: Final = "TIDEGATE_ALLOW_CLIENT_SHM"
"""Environment variable that allows a Triton to share memory with its clients, Tidegate among them."""
_CLIENT_SHM: Final = (
    "# Triton 26.04 (2.68) and later share no memory with clients by default; earlier ones refuse the flag.",
    f'if [ "${{{ALLOW_CLIENT_SHM}:-false}}" = true ]; then',
    '  case "${NVIDIA_TRITON_SERVER_VERSION:-unknown}" in',
    "    unknown | [01]?.* | 2[0-5].* | 26.0[0-3] | 26.0[0-3].*) ;;",
    '    *) set -- --allow-client-shm=true "$@" ;;',
    "  esac",
    "fi",
)


def launch_file(
    worker: LayoutWorker, place: WorkerPlacement, deploy_target: DeployTarget, plans: Sequence[str] = ()
) -> str:
    """Return the launch script of a worker.

    It lies beside the worker's repository and passes extra flags to tritonserver.

    `plans`: paths of the TensorRT engines, relative to the deployment; the script fails if one is missing.
    """
    lines = _embedded(place) if deploy_target is DeployTarget.EMBEDDED else _triton(worker, place, deploy_target, plans)
    return "\n".join([*_head(worker, f"It hosts {', '.join(map(_in_comment, worker.hosts))}."), *lines, ""])


def build_file(worker: LayoutWorker, engines: Sequence[str]) -> str:
    """Return the script that builds the engines of a worker on the worker's device; flags go to build_engine.py.

    `engines`: paths of the `engine.json` files, relative to the deployment.
    """
    specs = [f'"$here/../{engine}"' for engine in engines]
    return "\n".join(
        [
            *_head(worker, "It builds the engines of its partitions, before the worker starts for the first time."),
            *exports(worker),
            f'exec python3 "$here/../engines/build_engine.py" "$@" {" ".join(specs)}',
            "",
        ]
    )


def _head(worker: LayoutWorker, what: str) -> list[str]:
    device = worker.device
    return [
        "#!/bin/sh",
        f"# Worker {_in_comment(worker.name)}: GPU {device.id} ({_in_comment(worker.speed)}), {words(worker.slice)}, "
        f"in node {_in_comment(device.node)}.",
        f"# {what}",
        "set -eu",
        'here=$(cd "$(dirname "$0")" && pwd)',
    ]


def _triton(
    worker: LayoutWorker, place: WorkerPlacement, deploy_target: DeployTarget, plans: Sequence[str]
) -> list[str]:
    lines = exports(worker)
    for plan in plans:
        lines += [
            f'if [ ! -f "$here/../{plan}" ]; then',
            f'  echo "error: {plan} is not built: run workers/{place.folder}.build.sh on this device first" >&2',
            "  exit 1",
            "fi",
        ]
    if deploy_target is DeployTarget.TRITON_TENSORRT:
        lines += [
            "# ONNX Runtime keeps the engines that it builds where it was started.",
            f'mkdir -p "$here/../engines/{place.folder}"',
            f'cd "$here/../engines/{place.folder}"',
        ]
    return [
        *lines,
        *_CLIENT_SHM,
        "exec tritonserver \\",
        f'  --model-repository="$here/{place.folder}" \\',
        f"  --http-port={place.http_port} --grpc-port={place.grpc_port} --metrics-port={place.metrics_port} \\",
        '  "$@"',
    ]


def _embedded(place: WorkerPlacement) -> list[str]:
    address = DEFAULT_HOST if place.host in (DEFAULT_HOST, "localhost") else "0.0.0.0"
    return [
        "exec tidegate triton \\",
        f"  --http-port {place.http_port} --grpc-port {place.grpc_port} --metrics-port {place.metrics_port} "
        f"--host {address} \\",
        f'  "$here/{place.folder}" -- "$@"',
    ]


def _in_comment(text: str) -> str:
    """On one line, whatever it is."""
    return " ".join(text.split())


def proxy_config(places: Mapping[str, WorkerPlacement], policy: str) -> str:
    """Return the text of the YAML file. Strings are quoted as in JSON, which YAML reads."""
    lines = [
        "# Written by `tidegate generate`; `tidegate check --schema` prints every field.",
        "version: 1",
        f"layout: {LAYOUT_FILE}",
        f"policy: {json.dumps(policy)}",
        'listen: {grpc: "0.0.0.0:8101", http: "0.0.0.0:8100", metrics: "0.0.0.0:8102"}',
        "startup_timeout_s: 60",
        "tritons:",
    ]
    for name, place in places.items():
        ports = {"grpc": place.grpc_port, "http": place.http_port, "metrics": place.metrics_port}
        addresses = ", ".join(f'{service}: "{place.host}:{port}"' for service, port in ports.items())
        lines.append(f"  - {{worker: {json.dumps(name)}, {addresses}}}")
    return "\n".join([*lines, ""])
