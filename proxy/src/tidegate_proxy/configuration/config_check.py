"""What can be wrong with a configuration beyond its fields: what it names cannot be used."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pydantic import BaseModel, ValidationError

from tidegate.documents import (
    DocumentError,
    Layout,
    ProfileFileError,
    WrongField,
    read_document,
    read_profiles,
    wrong_fields,
)
from tidegate.host import PluginError, Plugins
from tidegate_proxy.access import of_tritons
from tidegate_proxy.access.authentication import Authenticator, CredentialFileError
from tidegate_proxy.access.restrictions import RestrictionError, Restrictions, headers_of
from tidegate_proxy.access.tls import TlsError, channel_credentials, server_context
from tidegate_proxy.backend import Backend, BackendError
from tidegate_proxy.catalog import Catalog, discover
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import ServeConfig, TritonAddress
from tidegate_proxy.consent import Consent
from tidegate_proxy.starting_profiles import misfits

CONNECT_TIMEOUT_S: Final = 1.0
TRITON_PING_INTERVAL_S: Final = 300
"""Triton ends connections that ping it more often (--grpc-http2-min-recv-ping-interval-without-data)."""


def check_offline(config: ServeConfig, plugins: Plugins) -> list[WrongField]:
    """Everything that serving would stumble over before it asks a Triton."""
    problems = plugin_problems(config, plugins)
    if config.record is not None and not config.record.parent.is_dir():
        problems.append(WrongField("record", f"there is no folder {config.record.parent}"))
    if config.listen.http and "listen" in config.model_fields_set:
        problems += [
            WrongField(
                f"tritons.{index}.http", "is not known: give HOST:PORT of its HTTP service, or leave listen.http out"
            )
            for index, triton in enumerate(config.tritons)
            if not triton.http
        ]
    for where, use in _uses(config):
        try:
            use()
        except (ProfileFileError, TlsError, CredentialFileError, RestrictionError, OSError) as error:
            problems.append(WrongField(where, str(error)))
    return problems


def plugin_problems(config: ServeConfig, plugins: Plugins) -> list[WrongField]:
    """Policies, observers and controllers that there are not, or not for this layout, and options that they refuse."""
    problems = [*_policy_problems(config, plugins), *_observer_problems(config, plugins)]
    if config.layout is None:
        return problems
    try:
        layout = read_document(config.layout, Layout)
    except DocumentError as error:
        return [*problems, WrongField("layout", str(error))]
    if not problems:
        try:
            plugins.policy(config.policy.name).policy.check_models(layout.contract()[0])
        except ValueError as error:
            problems.append(WrongField("policy.name", f"{config.policy.name!r} does not serve this layout: {error}"))
    if config.controller is not None:
        try:
            plugins.make_controller(config.controller, layout, seed=config.seed)
        except PluginError as error:
            problems.append(WrongField("controller", str(error)))
    return problems


def _uses(config: ServeConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """What it takes to use the files that a field names, by field."""
    if config.profiles is not None:
        yield "profiles", partial(read_profiles, config.profiles)
    if config.tls is not None:
        yield "tls", partial(server_context, config.tls)
    if config.authentication is not None:
        yield "authentication", partial(Authenticator, config.authentication)
    for index, triton in enumerate(config.tritons):
        if triton.tls is not None:
            yield f"tritons.{index}.tls", partial(channel_credentials, triton.tls)
        yield f"tritons.{index}.headers", partial(headers_of, triton)
    for index, restriction in enumerate(config.restricted):
        yield f"restricted.{index}", partial(Restrictions, [restriction])


def warnings(config: ServeConfig) -> list[WrongField]:
    """What works, and is likely not what was meant."""
    found = []
    if config.limits.keepalive_s < TRITON_PING_INTERVAL_S:
        found.append(
            WrongField(
                "limits.keepalive_s",
                f"a Triton ends connections that are pinged more often than every {TRITON_PING_INTERVAL_S} s, unless "
                "it runs with --grpc-http2-min-recv-ping-interval-without-data",
            )
        )
    keys = any(restriction.header is not None for restriction in config.restricted)
    if config.tls is None and (keys or config.authentication is not None):
        found.append(WrongField("tls", "without it, credentials cross the network in the clear"))
    return found


def _model_warnings(reports: Sequence["TritonReport"]) -> list[WrongField]:
    """What the Tritons' configs make of the operator's words, and likely was not meant."""
    found = {
        (name, consent.warning): WrongField(f"models.{name}", consent.warning)
        for report in reports
        for name, consent in report.models.items()
        if consent.warning
    }
    return list(found.values())


@dataclass(frozen=True)
class TritonReport:
    """What one Triton answered."""

    address: str
    answers: bool
    problems: tuple[tuple[str, str], ...]
    """What cannot be reached (`grpc`, `http` or `metrics`), and why."""
    models: Mapping[str, Consent] = field(default_factory=dict)
    """What happens to the requests of each of its models, and why."""


async def ask_tritons(config: ServeConfig) -> tuple[list[TritonReport], list[WrongField], list[WrongField]]:
    """Ask every Triton, once, what it serves; what is wrong with that, and what is likely not what was meant."""
    backends = [_backend(triton) for triton in config.tritons]
    try:
        reports = await asyncio.gather(
            *(_report(backend, triton, config) for backend, triton in zip(backends, config.tritons, strict=True))
        )
        problems = [
            WrongField(f"tritons.{index}.{where}", what)
            for index, report in enumerate(reports)
            for where, what in report.problems
        ]
        notices = _model_warnings(reports)
        # What only shows over all of them: models that are not the same, an SLO of a model that nobody schedules.
        if all(report.answers for report in reports):
            try:
                layout = read_document(config.layout, Layout) if config.layout else None
                catalog = await discover(backends, config.models, layout=layout)
                problems += [WrongField("models", words) for words in catalog.disagreements]
                if config.profiles:
                    notices += [
                        WrongField("profiles", words) for words in misfits(catalog, read_profiles(config.profiles))
                    ]
            except (BackendError, DocumentError) as error:
                problems.append(WrongField("models", str(error)))
        return reports, problems, notices
    finally:
        for backend in backends:
            await backend.close()


async def _report(backend: Backend, triton: TritonAddress, config: ServeConfig) -> TritonReport:
    problems = [
        (name, f"nobody listens at {address}; null stands for a Triton without it")
        for name, address in (("http", triton.http), ("metrics", triton.metrics))
        if address is not None and not await _listens(address)
    ]
    over_http = config.listen.http is not None
    try:
        await of_tritons.require_key(backend)
        found = await of_tritons.find_restrictions(backend, over_http=over_http)
        refusals = list(of_tritons.problems(backend, found, config.restricted, over_http=over_http))
    except RestrictionError as error:
        refusals = [str(error)]
    if refusals:
        return TritonReport(triton.grpc, False, (*(("grpc", words) for words in refusals), *problems))
    if not await backend.is_ready():
        words = f"no Triton is ready at {triton.grpc}: does it run, and is this its gRPC port?"
        return TritonReport(triton.grpc, False, (("grpc", words), *problems))
    try:
        catalog = await discover([backend], config.models, Catalog())
    except BackendError as error:
        return TritonReport(triton.grpc, False, (("grpc", str(error)), *problems))
    return TritonReport(triton.grpc, True, tuple(problems), dict(sorted(catalog.consents.items())))


async def _listens(address: str) -> bool:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host_of(address).strip("[]"), port_of(address))
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True


def _backend(triton: TritonAddress) -> Backend:
    return Backend(
        triton.grpc,
        http=triton.http,
        tls=triton.tls,
        worker=triton.worker or "",
        kind=triton.kind or "",
        headers=headers_of(triton),
    )


def _policy_problems(config: ServeConfig, plugins: Plugins) -> list[WrongField]:
    try:
        kind = plugins.policy(config.policy.name).policy.Options
    except PluginError as error:
        return [WrongField("policy.name", str(error))]
    return _option_problems("policy.options", kind, config.policy.options)


def _observer_problems(config: ServeConfig, plugins: Plugins) -> list[WrongField]:
    problems = []
    for index, choice in enumerate(config.observers):
        try:
            kind = plugins.observer(choice.name).observer.Options
        except PluginError as error:
            problems.append(WrongField(f"observers.{index}.name", str(error)))
        else:
            problems += _option_problems(f"observers.{index}.options", kind, choice.options)
    return problems


def _option_problems(where: str, kind: type[BaseModel], options: Mapping[str, object]) -> list[WrongField]:
    """What a plugin does not like of the options that it is given."""
    try:
        kind.model_validate(options)
    except ValidationError as error:
        return [
            WrongField(f"{where}.{field.where}" if field.where else where, field.what)
            for field in wrong_fields(error, kind, whole="")
        ]
    return []
