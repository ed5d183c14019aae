"""Checks of `make lint` that no linter has; each prints what it finds as `FILE:LINE: problem; remedy`.

commits     subjects of commits: `component: imperative verb ...`
vocabulary  pages, command help and public docstrings, against the words of docs/reference/vocabulary.yaml
"""
