"""The subcommands of the core, each in the file of its name: `simulate`, `goodput`, `sweep`, `plan`, `replay`, `story`,
`sizes`.

common   what those share that run scenarios
"""
