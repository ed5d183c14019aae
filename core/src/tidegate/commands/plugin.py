"""Registers the core's policy of policies, and its subcommands."""

from tidegate.api import CommandSpec, PolicySpec, hookimpl
from tidegate.commands.check_policy import check_policy
from tidegate.commands.goodput import goodput
from tidegate.commands.new_policy import new_policy
from tidegate.commands.plan import plan
from tidegate.commands.recommend import recommend
from tidegate.commands.replay import replay
from tidegate.commands.simulate import simulate
from tidegate.commands.sizes import sizes
from tidegate.commands.story import story
from tidegate.commands.sweep import sweep
from tidegate.host.by_model import BY_MODEL, ByModel


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Offer `by-model`."""
    return [
        PolicySpec(BY_MODEL, "Several policies, each for models and workers of its own", ByModel, recommend_options=())
    ]


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Offer the subcommands of the core, but for `plugins`."""
    return [
        CommandSpec("simulate", simulate),
        CommandSpec("goodput", goodput),
        CommandSpec("sweep", sweep),
        CommandSpec("recommend", recommend),
        CommandSpec("replay", replay),
        CommandSpec("story", story),
        CommandSpec("plan", plan),
        CommandSpec("sizes", sizes),
        CommandSpec("check-policy", check_policy),
        CommandSpec("new-policy", new_policy),
    ]
