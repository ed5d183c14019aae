"""Plugin manager: loads plugins, checks the results of their hooks, rejects duplicate names, and selects by name."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pluggy
from pydantic import BaseModel, ValidationError

from tidegate.api import CommandSpec, PlannerSpec, Policy, PolicySpec, Setup
from tidegate.api.specs import PROJECT_NAME
from tidegate.control import Controller, ControllerChoice, ControllerSpec
from tidegate.observation import Observer, ObserverSpec
from tidegate.schemas import Layout, did_you_mean, field_errors

hookspec = pluggy.HookspecMarker(PROJECT_NAME)


class Hooks:
    """Hook specifications that a distribution may implement."""

    @hookspec
    def tidegate_policies(self) -> Iterable[PolicySpec]:
        """Return the policies of this distribution."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_planners(self) -> Iterable[PlannerSpec]:
        """Return the planners of this distribution (`tidegate plan NAME`)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_controllers(self) -> Iterable[ControllerSpec]:
        """Return the controllers of this distribution (`controller` in a scenario)."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_commands(self) -> Iterable[CommandSpec]:
        """Return the subcommands that this distribution adds to `tidegate`."""
        raise AssertionError("a specification is never called")

    @hookspec
    def tidegate_observers(self) -> Iterable[ObserverSpec]:
        """Return the observers of this distribution (`tidegate serve --observer NAME`)."""
        raise AssertionError("a specification is never called")


Spec = PolicySpec | PlannerSpec | ControllerSpec | CommandSpec | ObserverSpec
Options = TypeVar("Options", bound=BaseModel)
S = TypeVar("S", PolicySpec, PlannerSpec, ControllerSpec, CommandSpec, ObserverSpec)


class PluginError(Exception):
    """Error: a plugin, name or option cannot be used; the message names it and a remedy."""


class PluginConflict(PluginError):
    """Error: two plugins offer the same name."""


class UnknownPlugin(PluginError):
    """Error: no plugin with this name is installed."""


class Plugins:
    """Everything that installed plugins offer, by type and name."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(Hooks)
        self.broken: dict[str, str] = {}
        """The distributions whose plugin could not be imported, with the reason: named when something is not found."""
        self.policies: dict[str, PolicySpec] = {}
        self.planners: dict[str, PlannerSpec] = {}
        self.controllers: dict[str, ControllerSpec] = {}
        self.commands: dict[str, CommandSpec] = {}
        self.observers: dict[str, ObserverSpec] = {}
        self.source: dict[tuple[type, str], str] = {}
        """The plugin that each thing comes from, by (type of spec, name)."""

    @classmethod
    def installed(cls) -> Self:
        """Return the plugins of this environment: modules in the entry-point group `tidegate`."""
        plugins = cls()
        for distribution, entry in _entries():
            try:
                module = entry.load()
            except Exception as error:
                # Whatever a stranger's import raises: the other plugins go on.
                plugins.broken[distribution] = f"{type(error).__name__}: {error}"
            else:
                plugins.register(module, distribution)
        return plugins

    def register(self, plugin: object, name: str) -> None:
        """Register one plugin: an object, usually a module, with hook implementations.

        Raises PluginConflict if a name is taken, PluginError for a result of the wrong type; then nothing is
        registered.
        """
        self._manager.register(plugin, name)
        try:
            self._manager.check_pending()
            _check_marked(plugin, name)
            offers = [
                *self._offers(plugin, "tidegate_policies", PolicySpec, self.policies, name),
                *self._offers(plugin, "tidegate_planners", PlannerSpec, self.planners, name),
                *self._offers(plugin, "tidegate_controllers", ControllerSpec, self.controllers, name),
                *self._offers(plugin, "tidegate_commands", CommandSpec, self.commands, name),
                *self._offers(plugin, "tidegate_observers", ObserverSpec, self.observers, name),
            ]
        except (PluginError, pluggy.PluginValidationError) as error:
            self._manager.unregister(plugin)
            raise error if isinstance(error, PluginError) else PluginError(_invalid(name, error)) from error
        for keep in offers:
            keep()

    def policy(self, name: str) -> PolicySpec:
        """Return the policy spec of this name. Raises UnknownPlugin with the known names."""
        return self._select("policy", name, self.policies)

    def planner(self, name: str) -> PlannerSpec:
        """Return the planner spec of this name. Raises UnknownPlugin with the known names."""
        return self._select("planner", name, self.planners)

    def controller(self, name: str) -> ControllerSpec:
        """Return the controller spec of this name. Raises UnknownPlugin with the known names."""
        return self._select("controller", name, self.controllers)

    def observer(self, name: str) -> ObserverSpec:
        """Return the observer spec of this name. Raises UnknownPlugin with the known names."""
        return self._select("observer", name, self.observers)

    def make_policy(self, name: str, setup: Setup, options: dict[str, Any]) -> Policy:
        """Create a policy by name. `options`: option values by name.

        Raises PluginError with the invalid option and the valid ones.
        """
        return make_policy(self.policy(name), setup, options, self)

    def validated_options(self, policy: str, options: dict[str, Any]) -> BaseModel:
        """Return the options of a policy, with its defaults.

        Raises PluginError if the policy does not accept them; the message names the problem and the known options.
        """
        return _validated(self.policy(policy).policy.Options, options, f"policy {policy!r}", plugins=self)

    def make_controller(self, choice: ControllerChoice, layout: Layout, *, seed: int = 0) -> Controller:
        """Create the controller that a configuration names, for the initial layout.

        `seed`: seed of its random generator. Raises PluginError with the invalid option and the valid ones.
        """
        return make_controller(self.controller(choice.name), layout, choice.options, seed=seed, folder=choice.folder)

    def make_observer(self, name: str, options: dict[str, Any]) -> Observer:
        """Create an observer by name. Raises PluginError with the invalid option and the valid ones."""
        return make_observer(self.observer(name), options)

    def _offers(
        self, plugin: object, hook: str, kind: type[S], known: dict[str, S], source: str
    ) -> list[Callable[[], None]]:
        """Return the checked results of one plugin's hook, as functions that register them."""
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(hook, others)
        returned: dict[str, S] = {}
        for spec in _call(caller, kind, source):
            if not isinstance(spec, kind):
                raise PluginError(f"plugin {source!r}: {hook} returned {spec!r}, not a {kind.__name__}")
            if isinstance(spec, PolicySpec) and not (isinstance(spec.policy, type) and issubclass(spec.policy, Policy)):
                raise PluginError(
                    f"plugin {source!r}: policy {spec.name!r} is {spec.policy!r}, which is no subclass of Policy: "
                    "derive it from a class of tidegate.toolkit, such as FirstComeFirstServed"
                )
            if spec.name in known or spec.name in returned:
                other = self.source.get((kind, spec.name), source)
                raise PluginConflict(
                    f"{other!r} and {source!r} both offer a {_word(kind)} named {spec.name!r}: uninstall one of them"
                )
            returned[spec.name] = spec

        def keep() -> None:
            known.update(returned)
            self.source.update({(kind, spec_name): source for spec_name in returned})

        return [keep]

    def _select(self, word: str, name: str, known: dict[str, S]) -> S:
        if name in known:
            return known[name]
        broken = "".join(f"; {where} could not be imported ({why})" for where, why in self.broken.items())
        installed = did_you_mean(name, known, "installed")
        remedy = "" if broken or "did you mean" in installed else "; pip install the plugin that has it"
        raise UnknownPlugin(f"no {word} named {name!r} is installed{installed}{broken}{remedy}")


def make_policy(spec: PolicySpec, setup: Setup, options: dict[str, Any], plugins: Plugins | None = None) -> Policy:
    """Create a policy with validated options.

    `plugins`: source of policies that its options name; None: the installed ones. Raises PluginError with the problem.
    """
    validated = _validated(spec.policy.Options, options, f"policy {spec.name!r}", plugins=plugins)
    try:
        spec.policy.check_models(setup.models)
        return spec.policy(setup, validated)
    except ValueError as error:
        raise PluginError(f"policy {spec.name!r}: {error}") from error


def make_controller(
    spec: ControllerSpec, layout: Layout, options: dict[str, Any], *, seed: int = 0, folder: Path | None = None
) -> Controller:
    """Create a controller with validated options.

    `seed`: seed of its random generator. `folder`: base of relative paths in options; None: the current folder. Raises
    PluginError with the problem.
    """
    validated = _validated(spec.controller.Options, options, f"controller {spec.name!r}", folder)
    try:
        return spec.controller(layout, validated, seed=seed)
    except ValueError as error:
        raise PluginError(f"controller {spec.name!r}: {error}") from error


def make_observer(spec: ObserverSpec, options: dict[str, Any]) -> Observer:
    """Create an observer with validated options. Raises PluginError with the problem."""
    return spec.observer(_validated(spec.observer.Options, options, f"observer {spec.name!r}"))


def _validated(
    kind: type[Options], options: dict[str, Any], of: str, folder: Path | None = None, plugins: Plugins | None = None
) -> Options:
    try:
        return kind.model_validate(options, context={"folder": folder or Path(), "plugins": plugins})
    except ValidationError as error:
        wrong = "; ".join(map(str, field_errors(error, kind, whole="options")))
        raise PluginError(f"options of {of}: {wrong}") from error


_HOOKS: Final = tuple(name for name in vars(Hooks) if name.startswith("tidegate_"))


def _check_marked(plugin: object, source: str) -> None:
    """Raise PluginError for a hook that pluggy ignores, as its function lacks the decorator."""
    for hook in _HOOKS:
        if callable(function := getattr(plugin, hook, None)) and not hasattr(function, f"{PROJECT_NAME}_impl"):
            raise PluginError(f"plugin {source!r}: {hook} is not marked as a hook: put @hookimpl above it")


def _invalid(source: str, error: pluggy.PluginValidationError) -> str:
    """Return what pluggy says of a plugin, with the hooks that there are where it names another."""
    unknown = re.match(r"unknown hook '(\w+)'", str(error))
    if unknown is None:
        return f"plugin {source!r}: {error}"
    return f"plugin {source!r}: there is no hook {unknown[1]!r}{did_you_mean(unknown[1], _HOOKS, 'there are')}"


def _call(hook: pluggy.HookCaller, kind: type[Spec], source: str) -> list[object]:
    """Everything that a plugin's hook returns. Raises PluginError where it raises, or returns what is no list."""
    try:
        return [spec for specs in hook() for spec in specs]
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise PluginError(f"plugin {source!r}: {hook.name} did not return a list of {kind.__name__}: {why}") from error


@cache
def _entries() -> tuple[tuple[str, EntryPoint], ...]:
    """Return the entry points of plugins with their distributions, in order; read from all that is installed once."""
    named = [(entry.dist.name if entry.dist else entry.value, entry) for entry in entry_points(group=PROJECT_NAME)]
    return tuple(sorted(named, key=lambda each: (each[0], each[1].name)))


def _word(kind: type[Spec]) -> str:
    words = {
        PolicySpec: "policy",
        PlannerSpec: "planner",
        ControllerSpec: "controller",
        CommandSpec: "command",
        ObserverSpec: "observer",
    }
    return words[kind]
