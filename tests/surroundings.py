"""Every machine looks the same to the tests: how wide its terminal is, whether it has colors, who started them."""

import functools
import os
import shutil
import signal
from typing import Any

import onnxruntime
import pytest
import typer.testing

_width = shutil.get_terminal_size().columns
# Nothing that is printed folds or is cut: tests compare words, and where lines end depends on the length of paths, too.
os.environ["COLUMNS"] = "1000"
os.environ.pop("TERMINAL_WIDTH", None)
os.environ["NO_COLOR"] = "1"
for forces_colors in (
    "FORCE_COLOR",
    "PY_COLORS",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "GITHUB_ACTIONS",
):
    os.environ.pop(forces_colors, None)

# A shell that runs the tests in its background has them ignore SIGINT, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


_open_session = onnxruntime.InferenceSession.__init__


def _open_quiet_session(
    session: onnxruntime.InferenceSession,
    model: object,
    sess_options: onnxruntime.SessionOptions | None = None,
    *arguments: Any,
    **options: Any,
) -> None:
    settings = sess_options or onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _open_session(session, model, settings, *arguments, **options)


# Threads that spin while they wait take the cores of all other tests, and three times as long themselves.
onnxruntime.InferenceSession.__init__ = _open_quiet_session


# What typer makes of a command line takes it 20 ms, and is the same every time.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """What pytest itself reports is as wide as the terminal is."""
    config.get_terminal_writer().fullwidth = _width
