"""Entry point of `python -m tidegate_loadtest`."""

from tidegate_loadtest.cli import app

app(prog_name="python -m tidegate_loadtest")
