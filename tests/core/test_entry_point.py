"""What the command line waits for: each module is imported by who needs it. Modules are counted, not seconds."""

import subprocess
import sys
from importlib.metadata import version

SLOW = {"asyncio", "grpc", "joblib", "onnx", "onnxruntime", "scipy", "ssl", "tritonclient", "uvloop", "yaml"}
"""What the commands of this environment need once they run."""


def _imported_by(*arguments: str) -> tuple[str, set[str]]:
    """What was printed, and the modules that were imported until then."""
    code = (
        "import atexit, sys; from tidegate.entry_point import main; "
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); "
        "sys.argv = ['tidegate', *sys.argv[1:]]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_the_version_is_said_before_anything_else_is_imported() -> None:
    out, modules = _imported_by("--version")
    assert out == f"tidegate {version('tidegate')}\n"
    assert {name for name in modules if name.startswith("tidegate")} == {"tidegate", "tidegate.entry_point"}
    assert not modules & {"numpy", "pydantic", "pluggy", "rich", "typer"}


def test_help_lists_commands_without_what_they_need_once_they_run() -> None:
    out, modules = _imported_by("--help")
    assert "simulate" in out
    assert "serve" in out
    assert not modules & SLOW
    assert not modules & {"rich.progress", "tidegate.engine", "tidegate.recommend", "tidegate.report", "tidegate.sim"}


def test_a_version_that_is_asked_for_among_other_things_is_said_by_the_command_line() -> None:
    out, modules = _imported_by("--version", "--help")
    assert version("tidegate") in out
    assert "typer" in modules
