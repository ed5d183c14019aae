"""The subcommands of the core, each in the file of its name: `simulate`, `goodput`, `sweep`, `plan`, `recommend`,
`replay`, `explain`, `batch_histogram`, `plugins`, `check_policy`, `new_policy`.

common    what commands that run scenarios share
result_columns  the columns of runs, simulated or live; fitting_table: tables that fit the terminal
result_flags  the options of commands that have results: --json, --output, --html
scenario_flags  the options of commands that run scenarios: policies, seeds, changes, a cluster
tls_flags the TLS options for connections to servers
plugin    registers them
"""
