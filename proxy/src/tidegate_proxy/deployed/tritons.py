"""The workers of a deployment: several embedded Tritons, started and stopped together."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from tidegate_proxy.configuration.config import TritonAddress
from tidegate_proxy.deployed.folder import DeploymentError, WorkerPlan, port_remedy
from tidegate_proxy.embedded import EmbeddedTriton, TritonStartError

_AT_A_TIME = 4
"""Each is busy with all its cores while it loads its models."""
_LOOK_EVERY_S = 0.05


@contextmanager
def running_tritons(
    plans: Sequence[WorkerPlan], ready: Callable[[str, EmbeddedTriton], None]
) -> Iterator[dict[str, EmbeddedTriton]]:
    """Tritons by worker, until the block is left; `ready` is called as each becomes so.

    Raises DeploymentError for the first that does not start. Whatever is raised, here or in the block, has stopped all.
    """
    tritons = {
        plan.name: EmbeddedTriton(
            [plan.repository],
            log=plan.log,
            grpc_port=plan.grpc_port,
            http_port=plan.http_port,
            metrics_port=plan.metrics_port,
        )
        for plan in plans
    }
    try:
        _start(tritons, ready)
        yield tritons
    finally:
        _stop(tritons)


def address_of(name: str, triton: EmbeddedTriton) -> TritonAddress:
    """Where the worker is."""
    return TritonAddress(
        grpc=triton.grpc_address, http=triton.http_address, metrics=triton.metrics_address, worker=name
    )


def _start(tritons: dict[str, EmbeddedTriton], ready: Callable[[str, EmbeddedTriton], None]) -> None:
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        starting = {pool.submit(triton.start): name for name, triton in tritons.items()}
        try:
            pending = set(starting)
            while pending:
                # In slices, for a signal to be heard meanwhile.
                done, pending = wait(pending, _LOOK_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    name = starting[future]
                    try:
                        future.result()
                    except TritonStartError as error:
                        why = f"{error}{port_remedy(str(error))}"
                        raise DeploymentError(f"worker {name!r} did not start: {why}") from error
                    ready(name, tritons[name])
        except BaseException:
            _give_up(starting, tritons)
            raise


def _give_up(starting: dict[Future[EmbeddedTriton], str], tritons: dict[str, EmbeddedTriton]) -> None:
    """Have every start end soon: one that has not begun is cancelled, a server that is loading is killed."""
    pending = {future for future in starting if not future.cancel()}
    while pending := wait(pending, _LOOK_EVERY_S).not_done:
        for future in pending:
            with contextlib.suppress(RuntimeError, ProcessLookupError):  # not launched yet; ended by itself
                os.kill(tritons[starting[future]].pid, signal.SIGKILL)


def _stop(tritons: dict[str, EmbeddedTriton]) -> None:
    with ThreadPoolExecutor(max(1, len(tritons))) as pool:
        list(pool.map(EmbeddedTriton.stop, tritons.values()))
