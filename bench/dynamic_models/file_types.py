"""Google's magika, which tells what a file is: the first and last bytes of files that are installed here.

Its inputs are of one size, so it always takes the same time: what does not vary must not suffer from what does.
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
PACKAGES = ("bench", "skimage", "sklearn", "onnx", "locust", "magika", "tidegate_loadtest")
"""Whose files are looked at: sources, pictures, tables, libraries, pages."""
ENDS, BLOCK, PADDING = 1024, 4096, 256
"""Bytes that it sees of both ends, those that it looks for them in, and what stands for no byte."""


def write_files(folder: Path, *, seed: int = 0) -> None:
    """Write what magika sees of FILES files, [2048] each."""
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
    """What magika's own features are of a file: both ends without white space, padded where it is shorter."""
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
