"""File type classifier magika of Google: the first and last bytes of files installed here.

Its inputs have one size, so its latency is constant: the case in which distributions of latency must do no harm.
"""

from functools import partial
from pathlib import Path
from random import Random
from shutil import copyfile

import numpy as np
from numpy.typing import NDArray

from bench.dynamic_models.case import Case, package_folder

MODEL = package_folder("magika") / "models" / "standard_v3_3" / "model.onnx"
FILES = 96
PACKAGES = ("bench", "skimage", "onnx", "locust", "magika", "tidegate_loadtest")
"""Packages whose files are classified: sources, pictures, tables, libraries, pages."""
ENDS, BLOCK, PADDING = 1024, 4096, 256
"""Bytes used from either end, bytes read there, and the value for padding."""


def write_files(folder: Path, *, seed: int = 0) -> None:
    """Write the features of FILES files, [2048] each."""
    endings: dict[str, list[Path]] = {}
    for package in PACKAGES:
        for path in sorted(package_folder(package).rglob("*")):
            if path.is_file() and path.stat().st_size and path.suffix != ".pyc":
                endings.setdefault(path.suffix, []).append(path)
    rng = Random(seed)
    kinds = sorted(endings)
    for number in range(FILES):
        path = rng.choice(endings[kinds[number % len(kinds)]])
        np.save(folder / f"{number:03}.npy", seen_of(path))


def seen_of(path: Path) -> NDArray[np.int32]:
    """Return magika's features of a file: both ends without white space, padded if short. Shape [2048]."""
    content = path.read_bytes()
    first, last = content[:BLOCK].lstrip()[:ENDS], content[-BLOCK:].rstrip()[-ENDS:]
    seen = np.full(2 * ENDS, PADDING, np.int32)
    seen[: len(first)] = list(first)
    seen[2 * ENDS - len(last) :] = list(last)
    return seen


CASES = (
    Case(
        "file_types",
        "both ends of files that are installed here",
        slo_ms=60,
        write_model=partial(copyfile, MODEL),
        write_inputs=write_files,
    ),
)
