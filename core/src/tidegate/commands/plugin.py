"""Registration of the core's composite policy `by-model` and of its subcommands."""

from tidegate.api import CommandSpec, PolicySpec, hookimpl
from tidegate.commands.batch_histogram import batch_histogram
from tidegate.commands.check_policy import check_policy
from tidegate.commands.explain import explain
from tidegate.commands.goodput import goodput
from tidegate.commands.new_policy import new_policy
from tidegate.commands.plan import plan
from tidegate.commands.recommend import recommend
from tidegate.commands.replay import replay
from tidegate.commands.simulate import simulate
from tidegate.commands.sweep import sweep
from tidegate.host.by_model import BY_MODEL, ByModel


@hookimpl
def tidegate_policies() -> list[PolicySpec]:
    """Return the policy `by-model`."""
    return [
        PolicySpec(
            BY_MODEL, "Runs several policies, each for its own models and workers", ByModel, recommend_options=()
        )
    ]


@hookimpl
def tidegate_commands() -> list[CommandSpec]:
    """Return the subcommands of the core, except `plugins`."""
    return [
        CommandSpec("simulate", simulate),
        CommandSpec("goodput", goodput),
        CommandSpec("sweep", sweep),
        CommandSpec("recommend", recommend),
        CommandSpec("replay", replay),
        CommandSpec("explain", explain),
        CommandSpec("plan", plan),
        CommandSpec("batch-histogram", batch_histogram),
        CommandSpec("check-policy", check_policy),
        CommandSpec("new-policy", new_policy),
    ]
