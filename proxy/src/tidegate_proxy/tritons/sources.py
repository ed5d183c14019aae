"""Lists of Tritons that come and go: those of a DNS name, of a file, or of a service of Kubernetes."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from tidegate.schemas import field_errors, format_yaml_error, parse_yaml
from tidegate_proxy.base.tasks import in_thread
from tidegate_proxy.configuration.triton_sources import SourceError, TritonSource
from tidegate_proxy.configuration.tritons import TritonAddress, check_workers
from tidegate_proxy.tritons.endpoint_slices import EndpointSlices

TritonList = tuple[TritonAddress, ...]

FILE_POLL_S: Final = 1.0
"""Interval in seconds at which a file is checked for changes, by its time, size and inode."""
RESOLVE_TIMEOUT_S: Final = 5.0
_ENTRIES: Final = TypeAdapter(
    tuple[
        Annotated[TritonAddress, BeforeValidator(lambda given: {"grpc": given} if isinstance(given, str) else given)],
        ...,
    ]
)


async def list_tritons(source: TritonSource) -> TritonList:
    """Return the Tritons that a source lists now. Raises SourceError."""
    if source.kubernetes:
        async with EndpointSlices(source, source.kubernetes) as slices:
            return await slices.list_tritons()
    if source.dns:
        return await _resolved(source, source.dns)
    assert source.file
    return _in_file(source.file)


async def watch_tritons(source: TritonSource) -> AsyncGenerator[TritonList | SourceError]:
    """Yield what a source lists, or why it cannot be read, now and whenever that may have changed. Never ends."""
    if source.kubernetes:
        async with EndpointSlices(source, source.kubernetes) as slices:
            async for answer in slices.watch():
                yield answer
    stamp: object = None
    while True:
        if source.dns or stamp != (stamp := _stamp(source.file)):
            try:
                yield await list_tritons(source)
            except SourceError as error:
                yield error
        await asyncio.sleep(source.interval_s if source.dns else FILE_POLL_S)


async def _resolved(source: TritonSource, name: str) -> TritonList:
    """The addresses of a name: IPv4 ones if there are any, since a Triton with both would otherwise count twice."""
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            # In a thread of its own: the event loop's threads delay the end of Tidegate while a DNS server is silent.
            found = await in_thread(lambda: socket.getaddrinfo(name, source.port, type=socket.SOCK_STREAM))
    except (OSError, TimeoutError, UnicodeError) as error:
        why = f"no answer in {RESOLVE_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
        remedy = "check the name, and that a Triton is ready behind it"
        raise SourceError(f"{source.label}: it does not resolve ({why}); {remedy}") from error
    hosts = {family: set[str]() for family in (socket.AF_INET, socket.AF_INET6)}
    for family, _, _, _, address in found:
        if family in hosts:
            hosts[family].add(str(address[0]))
    four, six = sorted(hosts[socket.AF_INET]), sorted(hosts[socket.AF_INET6])
    return tuple(source.address(host) for host in four or [f"[{host}]" for host in six])


def _in_file(path: Path) -> TritonList:
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
        given = json.dumps([] if document is None else document, default=str)
        tritons = _ENTRIES.validate_json(given, strict=True, context={"folder": path.parent})
        check_workers(tritons, None, "")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SourceError(f"file {path}: {why}; it has to be a YAML or JSON list of Tritons") from error
    except yaml.YAMLError as error:
        raise SourceError(f"file {path}: {format_yaml_error(error)}") from error
    except ValidationError as error:
        problems = "; ".join(map(str, field_errors(error, TritonAddress)))
        raise SourceError(f"file {path}: {problems}; an entry is HOST:PORT, or has the fields of `tritons`") from error
    except ValueError as error:
        raise SourceError(f"file {path}: {error}") from error
    return tritons


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        assert path
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
