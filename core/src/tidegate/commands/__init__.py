"""The subcommands of the core: `simulate`, `goodput`, `sweep`, `plan` and `replay`, each in the file of its name.

common   what those share that run scenarios
"""
