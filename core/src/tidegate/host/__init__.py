"""The plugin host: finds distributions by entry point, selects what they offer by name."""

from tidegate.host.manager import PluginConflict, PluginError, Plugins, UnknownPlugin, make_observer, make_policy

__all__ = ["PluginConflict", "PluginError", "Plugins", "UnknownPlugin", "make_observer", "make_policy"]
