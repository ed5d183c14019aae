"""Text detector of rapidocr: photographs of several sizes, scaled and normalized as rapidocr does."""

from functools import partial
from pathlib import Path
from random import Random
from shutil import copyfile

import cv2
import numpy as np
from numpy.typing import NDArray

from bench.dynamic_models.case import Case
from bench.dynamic_models.ocr import photograph
from demo.read_text import model_path

PHOTOGRAPHS = ("page.png", "text.png", "coins.png", "coffee.png", "astronaut.png", "chelsea.png", "motorcycle_left.png")
"""Photographs of scikit-image; two of them contain text."""
SIDES = {160: 10, 256: 8, 320: 6, 480: 3}
"""Number of pictures by the length of the shorter side in pixels; most are small."""
MULTIPLE, LONGEST = 32, 640
"""Sides are multiples of the first, as the network halves pictures five times, and cut at the second; pixels."""


def write_photographs(folder: Path, *, seed: int = 0) -> None:
    """Write for each photograph the pictures of all SIDES, [3, height, width] each."""
    rng = Random(seed)
    sides = [side for side, count in SIDES.items() for _ in range(count)]
    for number, side in enumerate(sides):
        pixels = photograph(rng.choice(PHOTOGRAPHS))
        height, width = pixels.shape[:2]
        scale = side / min(height, width)
        np.save(folder / f"{number:03}.npy", prepared(pixels, round(width * scale), round(height * scale)))


def prepared(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float32]:
    """Return a picture as rapidocr prepares it: sides rounded to multiples of 32, values -1 to 1, channels first.

    `pixels`: [height, width, 3]; `width`: target width in pixels; `height`: target height in pixels.
    """
    scaled = cv2.resize(pixels, (_cut(width), _cut(height)))
    normal = (scaled.astype(np.float32) / 255 - 0.5) / 0.5
    return np.ascontiguousarray(normal.transpose(2, 0, 1))


def _cut(length: int) -> int:
    return min(LONGEST, max(MULTIPLE, round(length / MULTIPLE) * MULTIPLE))


CASES = (
    Case(
        "text_detection",
        "photographs of several sizes and proportions",
        slo_ms=300,
        write_model=partial(copyfile, model_path("text_detection")),
        write_inputs=write_photographs,
    ),
)
