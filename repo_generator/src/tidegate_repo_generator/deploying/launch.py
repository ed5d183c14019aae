"""The launch file of a worker: a shell script that becomes its Triton."""

from tidegate.documents import LayoutWorker
from tidegate_repo_generator.deploying.places import DEFAULT_HOST, Place
from tidegate_repo_generator.deploying.slices import exports
from tidegate_repo_generator.model import Flavour


def launch_file(worker: LayoutWorker, place: Place, flavour: Flavour) -> str:
    """The script. It lies beside the folder of the worker's repository; further flags are handed to tritonserver."""
    device = worker.device
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Worker {_in_comment(worker.name)}: GPU {device.id} ({_in_comment(worker.speed)}) "
            f"in node {_in_comment(device.node)}.",
            f"# It hosts {', '.join(map(_in_comment, worker.hosts))}.",
            "set -eu",
            'here=$(cd "$(dirname "$0")" && pwd)',
            *(exports(device, worker.slice) if flavour is Flavour.TRITON else ()),
            *(_triton(place) if flavour is Flavour.TRITON else _embedded(place)),
            "",
        ]
    )


def _triton(place: Place) -> list[str]:
    return [
        "exec tritonserver \\",
        f'  --model-repository="$here/{place.folder}" \\',
        f"  --http-port={place.http_port} --grpc-port={place.grpc_port} --metrics-port={place.metrics_port} \\",
        '  "$@"',
    ]


def _embedded(place: Place) -> list[str]:
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
