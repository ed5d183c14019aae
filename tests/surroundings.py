"""Every machine looks the same to the tests: how wide its terminal is, whether it has colours, who started them."""

import os
import shutil
import signal

import pytest

_width = shutil.get_terminal_size().columns
# Nothing that is printed folds or is cut: tests compare words, and where lines end depends on the length of paths, too.
os.environ["COLUMNS"] = "1000"
os.environ.pop("TERMINAL_WIDTH", None)
os.environ["NO_COLOR"] = "1"
for forces_colours in (
    "FORCE_COLOR",
    "PY_COLORS",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "GITHUB_ACTIONS",
):
    os.environ.pop(forces_colours, None)

# A shell that runs the tests in its background has them ignore SIGINT, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """What pytest itself reports is as wide as the terminal is."""
    config.get_terminal_writer().fullwidth = _width
