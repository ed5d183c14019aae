"""Command `tidegate serve`: the proxy."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate_proxy.commands.triton_flags import TritonFlags, check_is_file, pairs, tritons_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_proxy.configuration.config import ServeConfig

log = logging.getLogger(__name__)


def serve(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="Configuration file (YAML); flags have precedence. SIGHUP reloads it.",
            show_default=False,
            callback=check_is_file,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file (YAML), in place of the argument.")] = None,
    triton: TritonFlags = None,
    policy: Annotated[
        str | None, typer.Option(help="Scheduling policy by name; `tidegate plugins` lists them. [default: symphony]")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="Option of the policy. Repeatable.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=MS", help="SLO of a model, in ms; replaces the one in its config.pbtxt. Repeatable."
        ),
    ] = None,
    scheduling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=MODE",
            help="Scheduling of a model's requests: batched, unbatched or bypass. "
            "Replaces `tidegate_scheduling` of its config.pbtxt.",
        ),
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Profile file written by `tidegate profile`.")] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address of the gRPC service (port 0 picks a free one). [default: 0.0.0.0:8101, HTTP on 8100, "
            "metrics on 127.0.0.1:8102; with this flag only what is named]"
        ),
    ] = None,
    listen_http: Annotated[
        str | None, typer.Option(help="Address of the HTTP service (port 0 picks a free one).")
    ] = None,
    listen_metrics: Annotated[
        str | None,
        typer.Option(help="Address of the metrics and the dashboard (0.0.0.0:8102: for Prometheus on other machines)."),
    ] = None,
    event_log: Annotated[Path | None, typer.Option(help="Write the event log to this file (JSON lines).")] = None,
    observer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[,OPTION=VALUE]", help="Observer plugin with its options. Repeatable."),
    ] = None,
    startup_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds to wait for the Tritons to become ready. [default: 10]")
    ] = None,
    drain_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that requests in flight have to end at shutdown. [default: 20]")
    ] = None,
    frontends: Annotated[
        int | None,
        typer.Option(help="Frontend processes for client connections, beside the scheduler. [default: 0]"),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option(
            "--shadow",
            help="Bypass the scheduler, and report at /shadow of the metrics page what the policy would gain.",
        ),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="[all|frontend|shard]",
            help="Part of a configuration with `shards` to run: all, the frontends, or one shard. [default: all]",
        ),
    ] = None,
    shard: Annotated[
        int | None, typer.Option(help="Number of the shard, from 0, with --role shard.", show_default=False)
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="FRACTION",
            help="Fraction of time to schedule (5%); bypass the scheduler else, and compare both at /canary of "
            "the metrics page.",
        ),
    ] = None,
    verify_batches: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Fraction of batches of which one request runs again alone, to compare the answers (0 verifies "
            "none). [default: 0.001]",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy's random generator. [default: 0]")] = None,
    log_format: Annotated[
        str | None, typer.Option(help="Format of the log: text, or json (one object a line). [default: text]")
    ] = None,
) -> None:
    """Schedule inference requests in front of Triton servers.

    Clients use these addresses exactly as they would use Triton's. Example:

    tidegate serve --triton localhost:8001 --policy symphony --slo resnet50=25 --profiles profiles.json
    """
    if file is not None and config is not None:
        raise typer.BadParameter(f"{file} is given, too: one configuration is enough", param_hint="--config")
    config = file or config
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    import uvloop

    from tidegate_proxy.commands.running import allow_all_files, say_error, serving_errors
    from tidegate_proxy.configuration.config_file import read_config
    from tidegate_proxy.observability.logs import configure_logs

    if role not in (None, "all", "frontend", "shard"):
        raise typer.BadParameter(f"{role!r} is none: all, frontend or shard", param_hint="--role")
    if (shard is not None) != (role == "shard"):
        raise typer.BadParameter("--role shard and --shard N go together", param_hint="--shard")
    if config is None and not triton:
        say_error("no Triton is named: give --triton HOST:PORT, or a configuration with --config")
        raise typer.Exit(2)
    flags = {
        "tritons": tritons_of(triton),
        "policy": {"name": policy, "options": pairs(option, "--option") or None},
        "models": _models(pairs(slo, "--slo"), pairs(scheduling, "--scheduling")),
        "profiles": profiles,
        "listen": {"grpc": listen, "http": listen_http, "metrics": listen_metrics},
        "event_log": event_log,
        "observers": [_observer(text) for text in observer] if observer else None,
        "startup_timeout_s": startup_timeout_s,
        "drain_timeout_s": drain_timeout_s,
        "frontends": frontends,
        "batch_verification": {"fraction": verify_batches},
        "shadow": shadow,
        "canary": canary,
        "seed": seed,
        "log": {"format": log_format},
    }

    try:
        settings = read_config(config, flags)
        configure_logs(settings.log.format, settings.log.level.upper())
        allow_all_files()
        if role or settings.frontends:
            from tidegate_proxy.commands.serve_by_role import serve_by_role

            raise typer.Exit(serve_by_role(settings, lambda: read_config(config, flags), role or "all", shard))
        uvloop.run(_serve(settings, lambda: read_config(config, flags)))
    except serving_errors() as error:
        say_error(error)
        raise typer.Exit(1) from error


async def _serve(settings: "ServeConfig", read_again: "Callable[[], ServeConfig]") -> None:
    """Serve until a signal says to stop, and tell how the requests ended."""
    from tidegate_proxy.commands.running import announce, run_proxy, tell_tally

    proxy = await run_proxy(settings, read_again, announce)
    if proxy:
        tell_tally(proxy)


def _observer(text: str) -> dict[str, Any]:
    name, *options = text.split(",")
    return {"name": name, "options": pairs(options, "--observer")}


def _models(slos: dict[str, str], words: dict[str, str]) -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = {name: {"slo_ms": _milliseconds(name, text)} for name, text in slos.items()}
    for name, word in words.items():
        models.setdefault(name, {})["scheduling"] = word
    return models


def _milliseconds(model: str, text: str) -> float:
    try:
        slo_ms = float(text)
    except ValueError:
        slo_ms = -1.0
    if not 0 < slo_ms < 1e12:
        raise typer.BadParameter(f"{model}={text}: not a positive number of milliseconds", param_hint="--slo")
    return slo_ms
