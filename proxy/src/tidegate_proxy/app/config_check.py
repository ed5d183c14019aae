"""Checks of a configuration beyond its fields: files, plugins and addresses that it names."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from pydantic import BaseModel, ValidationError

from tidegate.api import Setup
from tidegate.host import PluginError, Plugins
from tidegate.schemas import (
    DocumentError,
    FieldError,
    Layout,
    ProfileFileError,
    field_errors,
    read_document,
    read_profiles,
)
from tidegate_proxy.access.gate import Authenticator, CredentialFileError, RestrictionError, Restrictions, headers_of
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import assignment_of
from tidegate_proxy.frontends.address import secret_in
from tidegate_proxy.observability.tracing import TracingError, require_exporter
from tidegate_proxy.transport.tls import TlsError, channel_context, server_context

_UNUSABLE: Final = (
    ProfileFileError,
    DocumentError,
    TlsError,
    CredentialFileError,
    RestrictionError,
    TracingError,
    OSError,
)
TRITON_PING_INTERVAL_S: Final = 300
"""Shortest ping interval that Triton accepts, in seconds (--grpc-http2-min-recv-ping-interval-without-data)."""


def check_offline(config: ServeConfig, plugins: Plugins) -> list[FieldError]:
    """Return all errors that would stop serving before it contacts a Triton."""
    problems = plugin_problems(config, plugins)
    if config.event_log is not None and not config.event_log.parent.is_dir():
        problems.append(FieldError("event_log", f"there is no folder {config.event_log.parent}"))
    if (kept := config.rollouts.verdict_file) is not None and not kept.parent.is_dir():
        problems.append(FieldError("rollouts.verdict_file", f"there is no folder {kept.parent}"))
    if config.listen.http and "listen" in config.model_fields_set:
        named = [("", config.tritons)] if not config.shards else []
        named += [(f"shards.{number}.", shard.tritons) for number, shard in enumerate(config.shards)]
        problems += [
            FieldError(
                f"{where}tritons.{index}.http",
                "is not known: give HOST:PORT of its HTTP service, or leave listen.http out",
            )
            for where, tritons in named
            for index, triton in enumerate(tritons)
            if not triton.http
        ]
    for where, use in _uses(config):
        try:
            use()
        except _UNUSABLE as error:
            problems.append(FieldError(where, str(error)))
    return problems


def unknown_policy(document: object, plugins: Plugins) -> list[FieldError]:
    """Return the error of a policy that is not installed, from the document of a file that has other errors as well."""
    chosen = document.get("policy") if isinstance(document, dict) else None
    name = chosen.get("name") if isinstance(chosen, dict) else chosen
    if not isinstance(name, str):
        return []
    try:
        plugins.policy(name)
    except PluginError as error:
        return [FieldError("policy.name", str(error))]
    return []


def plugin_problems(config: ServeConfig, plugins: Plugins) -> list[FieldError]:
    """Return errors for missing or unsuitable policies, observers and controllers, and options that they reject."""
    problems = [*_policy_problems(config, plugins), *_observer_problems(config, plugins)]
    if config.layout is None:
        return problems
    try:
        layout = read_document(config.layout, Layout)
    except DocumentError as error:
        return [*problems, FieldError("layout", str(error))]
    if not problems:
        try:
            models, workers, profiles, network = layout.contract()
            setup = Setup(models, workers, profiles, config.seed, network=network)
            plugins.make_policy(config.policy.name, setup, dict(config.policy.options))
        except PluginError as error:
            problems.append(FieldError("policy.name", f"this layout is not served: {error}"))
    if config.controller is not None:
        try:
            plugins.make_controller(config.controller, layout, seed=config.seed)
        except PluginError as error:
            problems.append(FieldError("controller", str(error)))
    return problems


def _uses(config: ServeConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """Return the requirements of the files that a field names, by field."""
    yield "plan", partial(assignment_of, config)
    if config.shard_links.secret_file is not None:
        yield "shard_links.secret_file", partial(secret_in, config.shard_links.secret_file)
    if config.profiles is not None:
        yield "profiles", partial(read_profiles, config.profiles)
    if config.tls is not None:
        yield "tls", partial(server_context, config.tls)
    if config.authentication is not None:
        yield "authentication", partial(Authenticator, config.authentication)
    for index, triton in enumerate(config.tritons):
        if triton.tls is not None:
            yield f"tritons.{index}.tls", partial(channel_context, triton.tls)
        yield f"tritons.{index}.headers", partial(headers_of, triton)
    for index, restriction in enumerate(config.restricted):
        yield f"restricted.{index}", partial(Restrictions, [restriction])
    if config.tracing is not None:
        yield "tracing", require_exporter


def warnings(config: ServeConfig) -> list[FieldError]:
    """Return warnings about settings that work and are probably unintended."""
    found = []
    if config.limits.keepalive_s < TRITON_PING_INTERVAL_S:
        found.append(
            FieldError(
                "limits.keepalive_s",
                f"a Triton ends connections that are pinged more often than every {TRITON_PING_INTERVAL_S} s, unless "
                "it runs with --grpc-http2-min-recv-ping-interval-without-data",
            )
        )
    keys = any(restriction.header is not None for restriction in config.restricted)
    if config.tls is None and (keys or config.authentication is not None):
        found.append(FieldError("tls", "without it, credentials cross the network in the clear"))
    return found


def _policy_problems(config: ServeConfig, plugins: Plugins) -> list[FieldError]:
    try:
        kind = plugins.policy(config.policy.name).policy.Options
    except PluginError as error:
        return [FieldError("policy.name", str(error))]
    return _option_problems("policy.options", kind, config.policy.options, plugins)


def _observer_problems(config: ServeConfig, plugins: Plugins) -> list[FieldError]:
    problems = []
    for index, choice in enumerate(config.observers):
        try:
            kind = plugins.observer(choice.name).observer.Options
        except PluginError as error:
            problems.append(FieldError(f"observers.{index}.name", str(error)))
        else:
            problems += _option_problems(f"observers.{index}.options", kind, choice.options, plugins)
    return problems


def _option_problems(
    where: str, kind: type[BaseModel], options: Mapping[str, object], plugins: Plugins
) -> list[FieldError]:
    """Return the problems that a plugin has with its options."""
    try:
        kind.model_validate(options, context={"plugins": plugins})
    except ValidationError as error:
        return [
            FieldError(f"{where}.{field.where}" if field.where else where, field.what)
            for field in field_errors(error, kind, whole="")
        ]
    return []
