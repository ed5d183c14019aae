"""`tidegate plugins`: lists what is installed, or the options of one plugin."""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from tidegate.api import CommandSpec, PlannerSpec, PolicySpec
from tidegate.control import ControllerSpec
from tidegate.host import PluginOption, Plugins, options_of
from tidegate.observation import ObserverSpec
from tidegate.schemas.validation_errors import closest
from tidegate.terminal import console_for_tables


@dataclass(frozen=True)
class PluginOffer:
    """An item that an installed plugin offers."""

    kind: str
    """`policy`, `planner`, `controller`, `observer` or `command`."""
    name: str
    source: str
    """The distribution that it comes from."""
    summary: str
    options: tuple[PluginOption, ...] = ()


def plugins_command(plugins: Plugins) -> Callable[..., None]:
    """Return the command that lists installed plugins."""

    def list_plugins(
        name: Annotated[
            str | None, typer.Argument(help="Plugin whose options are shown. [default: list all plugins]")
        ] = None,
        *,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """List the installed plugins, or the options of one."""
        offers = offers_of(plugins)
        if name is not None:
            known = {offer.name for offer in offers}
            offers = [offer for offer in offers if offer.name == name]
            if not offers:
                meant = closest(name, known)
                remedy = f"did you mean {meant!r}?" if meant else "`tidegate plugins` lists what is"
                raise typer.BadParameter(f"nothing named {name!r} is installed; {remedy}", param_hint="NAME")
        if as_json:
            rows = [dataclasses.asdict(offer) for offer in offers]
            sys.stdout.write(json.dumps({"plugins": rows, "broken": plugins.broken}, indent=2) + "\n")
        elif name is None:
            _list(offers, plugins.broken)
        else:
            for offer in offers:
                _show(offer)

    return list_plugins


def offers_of(plugins: Plugins) -> list[PluginOffer]:
    """Return everything that plugins offer, grouped by type: policies, planners, controllers, observers, commands."""

    def offer(
        kind: str,
        spec: PolicySpec | PlannerSpec | ControllerSpec | ObserverSpec,
        options: tuple[PluginOption, ...] = (),
    ) -> PluginOffer:
        return PluginOffer(kind, spec.name, plugins.source[type(spec), spec.name], spec.summary, options)

    return [
        *(offer("policy", spec, options_of(spec.policy.Options)) for spec in plugins.policies.values()),
        *(offer("planner", spec) for spec in plugins.planners.values()),
        *(offer("controller", spec, options_of(spec.controller.Options)) for spec in plugins.controllers.values()),
        *(offer("observer", spec, options_of(spec.observer.Options)) for spec in plugins.observers.values()),
        *(
            PluginOffer("command", spec.name, plugins.source[CommandSpec, spec.name], _first_line(spec.run.__doc__))
            for spec in plugins.commands.values()
        ),
    ]


def _list(offers: list[PluginOffer], broken: dict[str, str]) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("kind", "name", "from", "what it is", "options"):
        table.add_column(heading, overflow="fold")
    for offer in offers:
        options = ", ".join(option.name for option in offer.options)
        table.add_row(offer.kind, offer.name, offer.source, offer.summary, options)
    console = console_for_tables(markup=False)  # what plugins say of themselves is text
    console.print(table)
    for where, why in broken.items():
        console.print(f"{where} could not be imported: {why}", style="red")


def _show(offer: PluginOffer) -> None:
    console = console_for_tables(markup=False)
    console.print(f"{offer.kind} {offer.name}, from {offer.source}: {offer.summary}")
    if offer.kind in {"planner", "command"}:
        command = f"tidegate plan {offer.name}" if offer.kind == "planner" else f"tidegate {offer.name}"
        console.print(f"Its options are those of the command: {command} --help")
    elif not offer.options:
        console.print("It has no options.")
    else:
        from rich.table import Table

        table = Table("option", "type", "default", "what it does")
        for option in offer.options:
            table.add_row(
                option.name,
                option.type,
                "must be given" if option.default is None else option.default,
                option.description,
            )
        console.print(table)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
