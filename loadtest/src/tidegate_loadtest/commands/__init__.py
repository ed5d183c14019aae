"""Subcommands that the load test adds to `tidegate`."""
