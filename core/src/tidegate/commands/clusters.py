"""Options of commands that can run simulations on a cluster."""

from typing import Annotated

import typer

from tidegate.parallel_backend import Backend

BackendOption = Annotated[
    Backend,
    typer.Option(help="Backend that executes the runs: processes of this machine, or a cluster of Ray or Dask."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of Dask's scheduler or Ray's head (from other machines: ray://HOST:PORT). [default: a "
        "cluster on this machine]",
    ),
]
