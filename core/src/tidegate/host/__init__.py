"""The plugin host: finds distributions by entry point, selects what they offer by name.

hookspecs  the hooks that a distribution may implement
manager    loads, checks, refuses what conflicts, selects
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

__all__ = [
    "PluginConflict",
    "PluginError",
    "Plugins",
    "UnknownPlugin",
    "make_controller",
    "make_observer",
    "make_policy",
]
