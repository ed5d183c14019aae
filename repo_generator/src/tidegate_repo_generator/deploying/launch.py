"""The launch file of a worker: a shell script that becomes its Triton."""

from tidegate.documents import LayoutWorker
from tidegate_repo_generator.deploying.places import DEFAULT_HOST, Place
from tidegate_repo_generator.model import Flavour

_WHOLE = 100
"""Per cent of a GPU."""


def launch_file(worker: LayoutWorker, place: Place, flavour: Flavour) -> str:
    """The script. It lies beside the folder of the worker's repository; further flags are handed to tritonserver."""
    part = "" if worker.share == 1 else f"1/{worker.share} of "
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Worker {_in_comment(worker.name)}: {part}GPU {_in_comment(worker.gpu)} ({_in_comment(worker.kind)}) "
            f"in node {_in_comment(worker.node)}.",
            f"# It hosts {', '.join(map(_in_comment, worker.hosts))}.",
            "set -eu",
            'here=$(cd "$(dirname "$0")" && pwd)',
            *(_device(worker, place) if flavour is Flavour.TRITON else ()),
            *(_triton(place) if flavour is Flavour.TRITON else _embedded(place)),
            "",
        ]
    )


def _device(worker: LayoutWorker, place: Place) -> list[str]:
    lines = [
        "# The device as its node knows it; set TIDEGATE_DEVICE to its number or UUID where that is another one.",
        f'export CUDA_VISIBLE_DEVICES="${{TIDEGATE_DEVICE:-{place.device}}}"',
    ]
    if worker.share > 1:
        lines += [
            f"# A share of the GPU, which {worker.share} workers divide: needs NVIDIA MPS, started once in this node "
            "with",
            "#     nvidia-cuda-mps-control -d",
            f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={_WHOLE // worker.share}",
        ]
    return lines


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
