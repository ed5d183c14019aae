"""Tritons of a deployment that ended by themselves: `tidegate up` starts them again, and its state says how often."""

from collections.abc import Iterator
from pathlib import Path

from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.deployed.state import read_state


def restarted_tritons(folder: Path) -> Iterator[Finding]:
    """Each worker of the deployment in a folder, if one is up there, whose Triton was started again."""
    state = read_state(folder)
    for worker in state.workers if state else ():
        if worker.restarts:
            times = "once" if worker.restarts == 1 else f"{worker.restarts} times"
            yield Finding(
                "warning",
                "triton-restarted",
                f"worker {worker.name}",
                f"its Triton ended by itself and was started again {times}",
                f"see why in {worker.log}, and update Triton or take the model out that ends it",
            )
