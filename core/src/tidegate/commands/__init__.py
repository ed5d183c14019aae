"""The subcommands of the core, each in the file of its name: `simulate`, `goodput`, `sweep`, `plan`, `recommend`,
`replay`, `timeline`, `sizes`, `plugins`, `check_policy`, `new_policy`.

common    what those share that run scenarios
clusters  the options of those whose runs may go to one
scaffold  the template of a policy, under another name
tls_flags how servers that are asked speak TLS
"""
