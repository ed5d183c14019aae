"""Options that several commands share.

Scenarios: which policies, with which seeds and changes, and where simulations run. Results: JSON in place of tables, a
file of JSON, a page. Servers: TLS of gRPC ports (`--tls-...`).
"""

import os
from pathlib import Path
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
    typer.Option(help="Backend that executes the runs: processes of this machine, or a Ray cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of Ray's head (from other machines: ray://HOST:PORT). [default: a cluster on this machine]",
    ),
]


def check_jobs(jobs: int) -> int:
    """Return a number of parallel runs. Raises BadParameter for 0, which would run nothing."""
    if jobs == 0:
        raise typer.BadParameter("0 runs nothing; give 1 or more, or -1 for one per core")
    return jobs


JobsOption = Annotated[int, typer.Option(help="Simulations at a time (-1 is one per core).", callback=check_jobs)]


def check_output_file(path: Path | None) -> Path | None:
    """Return the path of a file to write; before the work, not after it, raises BadParameter if it cannot be one."""
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a directory; name a file in it")
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}; make it first")
    if path not in (None, Path("-")) and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written; name a file in a folder of yours")
    return path


JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and no table.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the results to this file, as JSON.", callback=check_output_file
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a report to this file.", callback=check_output_file),
]


TlsFlag = Annotated[bool, typer.Option("--tls", help="Connect to gRPC with TLS, and trust the CAs of this system.")]
TlsCaFlag = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Connect to gRPC with TLS, and trust the CAs in this file (PEM)."),
]
TlsCertFlag = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate to present to the server (PEM), for mutual TLS."),
]
TlsKeyFlag = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert (PEM).")]
TlsServerNameFlag = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", help="Name in the server's certificate. [default: the host of its address]"
    ),
]


def tls_of(
    tls: bool, ca: Path | None, cert: Path | None, key: Path | None, server_name: str | None
) -> dict[str, Path | str] | None:
    """Return the TLS section that the flags describe (`tritons[].tls`), with absolute paths; None: no TLS.

    `tls`: whether TLS is used even without files. `ca`, `cert`, `key`: PEM files of the certificate authority, the
    client certificate and its key. `server_name`: host name expected in the server's certificate. None: not given.
    """
    files = {"ca": ca, "cert": cert, "key": key}
    found: dict[str, Path | str] = {name: path.absolute() for name, path in files.items() if path is not None}
    if server_name is not None:
        found["server_name"] = server_name
    return found if found or tls else None
