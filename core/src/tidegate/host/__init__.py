"""The plugin host: finds distributions by entry point, selects what they offer by name.

hookspecs  the hooks that a distribution may implement
by_model   several policies, each for models and workers of its own
manager    loads, checks, refuses what conflicts, selects
options    what options plugins have, in words
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
