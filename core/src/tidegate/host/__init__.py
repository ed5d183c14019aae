"""The plugin host: finds distributions by entry point and selects what they offer by name.

by_model   the policy `by-model`: one policy for each group of models and workers
manager    the hooks that a distribution may implement; loads and checks plugins, rejects conflicts, selects by name
options    the options of plugins, as text
"""

from tidegate.host.manager import (
    PluginConflict,
    PluginError,
    Plugins,
    UnknownPlugin,
    make_controller,
    make_observer,
    make_policy,
)
from tidegate.host.options import PluginOption, options_of

__all__ = [
    "PluginConflict",
    "PluginError",
    "PluginOption",
    "Plugins",
    "UnknownPlugin",
    "make_controller",
    "make_observer",
    "make_policy",
    "options_of",
]
