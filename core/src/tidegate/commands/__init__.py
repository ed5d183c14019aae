"""The subcommands of the core: `simulate`, `goodput` and `sweep`, each in the file of its name."""
