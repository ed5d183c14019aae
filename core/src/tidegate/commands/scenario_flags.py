"""Options of commands that run scenarios: which policies, with which seeds and changes, and where simulations run."""

from typing import Annotated

import typer

from tidegate.parallel_backend import Backend

PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(help="Run only this policy, by name or label. Repeatable. [default: all of the scenario]"),
]
SeedsOption = Annotated[
    list[int] | None, typer.Option(min=0, help="Seed of a run. Repeatable. [default: the scenario's]")
]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Value of a field of the scenario, as in sweep. Repeatable."),
]
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
