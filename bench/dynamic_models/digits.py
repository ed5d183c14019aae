"""Early-exit network of tidegate-triton-models on four-digit numbers, clean and distorted.

A request has a row for each digit. Clean and distorted numbers are two applications, whose names the requests carry.
"""

from pathlib import Path

import numpy as np

from bench.dynamic_models.case import Case
from tidegate_triton_models.early_exit import pictures, write_early_exit

DIGITS = 4


def write_digits(folder: Path) -> None:
    """Write the test digits, [1, 32, 32] each, in a folder for each application."""
    for name, distorted in (("clean", False), ("careless", True)):
        (folder / name).mkdir()
        for number, pixels in enumerate(pictures("test", distorted=distorted).pixels):
            np.save(folder / name / f"{number:03}.npy", pixels)


CASES = (
    Case(
        "digits",
        f"numbers of {DIGITS} digits, half of them cleanly scanned and half carelessly",
        slo_ms=60,
        write_model=write_early_exit,
        write_inputs=write_digits,
        rows=DIGITS,
        max_batch=8 * DIGITS,
    ),
)
