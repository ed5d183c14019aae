"""The subcommands of the core, each in the file of its name: `simulate`, `goodput`, `sweep`, `plan`, `recommend`,
`replay`, `explain`, `batch_histogram`, `plugins`, `check_policy`, `new_policy`.

common    what commands that run scenarios share
flags     options that several commands share: of scenarios, of results, of TLS to servers
plugin    registers them
"""
