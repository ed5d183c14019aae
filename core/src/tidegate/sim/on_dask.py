"""Parallel runs on a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from logging import CRITICAL, getLogger
from os import cpu_count
from typing import Any, TypeVar

from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.cluster_version_check import check_versions, what_is_installed

Task = TypeVar("Task")
Result = TypeVar("Result")
TIMEOUT_S = 10
"""Time limit in seconds for a scheduler to answer and to have a worker."""


def run_on_dask(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int, address: str | None
) -> Iterator[Result]:
    """Apply a function to every task on a Dask cluster; yield the results in the order of the tasks.

    `address`: of the scheduler, `HOST:PORT` or a Dask address; None: start a cluster of `jobs` processes here. If a
    worker dies, another one runs its task; a task that three workers died of ends the run. Raises ParallelBackendError,
    and whatever the function raises.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise ParallelBackendError(f'--backend dask: {error}; pip install "tidegate[dask]"') from error
    cluster = f"Dask at {address}" if address else "Dask on this machine"
    getLogger("distributed.client").setLevel(CRITICAL)  # what it has to say is in the errors below
    with ExitStack() as stack:
        client = stack.enter_context(_client(distributed, stack, cluster, jobs, address))
        agreement = check_versions(cluster, client.run(what_is_installed()))
        futures = client.map(function, tasks, pure=False, batch_size=None)
        stack.callback(client.cancel, futures)
        with agreement.explained():
            for future in futures:
                try:
                    yield future.result()
                except distributed.KilledWorker as error:
                    why = "several workers died of one run: give them more memory, and look at their logs"
                    raise ParallelBackendError(f"{cluster}: {why}") from error
                except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as error:
                    why = "the scheduler went while runs were in flight: start it, and run again"
                    raise ParallelBackendError(f"{cluster}: {why}") from error
                future.release()


def _client(distributed: Any, stack: ExitStack, cluster: str, jobs: int, address: str | None) -> Any:  # noqa: ANN401
    """A client of a cluster that has workers."""
    try:
        if address is None:
            processes = jobs if jobs > 0 else cpu_count()
            options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": CRITICAL}
            return distributed.Client(stack.enter_context(distributed.LocalCluster(n_workers=processes, **options)))
        client = distributed.Client(address, timeout=TIMEOUT_S)
    except (OSError, ValueError) as error:
        remedy = "start one with `dask scheduler`, or name another --address"
        raise ParallelBackendError(f"{cluster}: no scheduler answers ({error}): {remedy}") from error
    try:
        client.wait_for_workers(1, timeout=TIMEOUT_S)
    except TimeoutError as error:
        client.close()
        remedy = f"start one with `dask worker {address} --nthreads 1`"
        raise ParallelBackendError(f"{cluster}: the scheduler has no worker: {remedy}") from error
    return client
