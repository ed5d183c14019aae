"""Entry point: answers `tidegate --version` before anything else is imported."""

import sys


def main() -> None:
    """Print the version for `tidegate --version`; otherwise run the command line."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # noqa: PLC0415 - slow to import, and so is what the other has

        sys.stdout.write(f"tidegate {version('tidegate')}\n")
        return
    from tidegate.cli import main as run  # noqa: PLC0415

    run()
