"""MPS: the workers that share a device or a MIG instance, and the control daemon for each of these."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.schemas import Device, LayoutWorker, Mig, Mps

MPS_FOLDER: Final = "mps"
MPS_PIPE_FOLDER: Final = "${TIDEGATE_MPS:-/tmp/tidegate-mps}"
"""Folder of the daemons' sockets on a node, as a shell expression; short, because socket paths have a length limit."""
MPS_PROBE_COMMAND: Final = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control > /dev/null 2>&1"
"""Shell command that succeeds if a daemon answers: its socket remains after the daemon was killed."""


@dataclass(frozen=True)
class MpsDomain:
    """Device or MIG instance that workers share through MPS, served by one control daemon."""

    device: Device
    instance: Mig | None

    @property
    def name(self) -> str:
        """Name for files, unique within its node."""
        number = self.device.id if isinstance(self.device.id, str) else f"gpu-{self.device.id}"
        place = f"-{self.instance.profile}-{self.instance.start}" if self.instance else ""
        return f"{number}{place}".replace("/", "-")

    @property
    def script(self) -> str:
        """Path of the script that starts and stops the daemon, relative to the deployment."""
        return f"{MPS_FOLDER}/{self.name}.sh"

    @property
    def pipe_directory(self) -> str:
        """CUDA_MPS_PIPE_DIRECTORY of the daemon and its workers, as a shell expression."""
        return f"{MPS_PIPE_FOLDER}/{self.name}"


def domain_of(worker: LayoutWorker) -> MpsDomain | None:
    """Return the domain in which a worker has an MPS share, or None if it has no share."""
    return MpsDomain(worker.device, worker.slice.instance) if isinstance(worker.slice, Mps) else None


def daemon_file(
    domain: MpsDomain, sharers: Sequence[LayoutWorker], launch_files: Iterable[str], bound: Iterable[str]
) -> str:
    """Return the script of a control daemon: `start`, `stop`, or `run`, with all its workers, until one of them ends.

    `start` does nothing if the daemon runs, `stop` does nothing if it does not.

    `launch_files`: those of the sharers, in the folder `workers`. `bound`: shell lines that make the device or instance
    visible to CUDA. Daemon and sharers must run as the same user.
    """
    instance = domain.instance
    where = f"instance {instance.profile} at {instance.start} of " if instance else ""
    names = ", ".join(" ".join(worker.name.split()) for worker in sharers)
    return "\n".join(
        [
            "#!/bin/bash",
            f"# The MPS control daemon of {where}GPU {domain.device.id},",
            f"# which the workers {names} share. In node {' '.join(domain.device.node.split())}, as their user:",
            f"#     {domain.script} start | stop | run",
            "set -eu",
            'here=$(cd "$(dirname "$0")/../workers" && pwd)',
            f'export CUDA_MPS_PIPE_DIRECTORY="{domain.pipe_directory}"',
            'export CUDA_MPS_LOG_DIRECTORY="$CUDA_MPS_PIPE_DIRECTORY/log"',
            "answers() {",
            f"  {MPS_PROBE_COMMAND}",
            "}",
            "start() (",
            "  if answers; then",
            '    echo "it runs already" >&2',
            "    exit 0",
            "  fi",
            *(f"  {line}" for line in bound),
            '  mkdir -p "$CUDA_MPS_LOG_DIRECTORY"',
            "  nvidia-cuda-mps-control -d",
            ")",
            "stop() {",
            "  if answers; then echo quit | nvidia-cuda-mps-control; fi",
            "}",
            "run() {",
            "  start",
            "  trap 'kill $(jobs -p) 2>/dev/null || true; wait; stop' EXIT",
            "  trap 'exit 143' TERM",
            *(f'  "$here/{script}" & # a worker' for script in launch_files),
            "  wait -n || true",
            '  echo "error: one of the workers ended, and so do the others: see what it said above" >&2',
            "  exit 1",
            "}",
            'case "${1:-}" in',
            'start | stop | run) "$1" ;;',
            "*)",
            f'  echo "error: {domain.script} start | stop | run" >&2',
            "  exit 2",
            "  ;;",
            "esac",
            "",
        ]
    )
