"""Command that trains the early-exit network and writes it: `python -m tidegate_triton_models.early_exit FILE.onnx`."""

import sys
from pathlib import Path

from tidegate_triton_models.early_exit.training import write_early_exit


def main() -> None:
    """Train the network, write it to the file named on the command line and print its accuracy."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, found in write_early_exit(Path(sys.argv[1])).items():
        print(f"{name} digits: {found.overall:.1%} right")  # noqa: T201 - it is a command
        for number, (right, left) in enumerate(zip(found.heads, found.leaves, strict=True), 1):
            print(f"  exit {number}: {left:.1%} leave there; it alone would get {right:.1%} right")  # noqa: T201


if __name__ == "__main__":
    main()
