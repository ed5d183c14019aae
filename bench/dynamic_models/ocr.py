"""Text recognizer and direction classifier of rapidocr: lines of text of different widths.

The lines are found in two photographs, cut to random lengths and prepared as rapidocr does: 48 pixels high and padded
on the right, for the recognizer to 320, 480, ... pixels, for the classifier to 192.
"""

from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from pathlib import Path
from random import Random
from shutil import copyfile

import cv2
import numpy as np
import rapidocr_onnxruntime
from numpy.typing import NDArray
from PIL import Image

from bench.dynamic_models.case import Case, package_folder
from demo.read_text import model_path

PHOTOGRAPHS = ("page.png", "text.png")
LINES, HEIGHT = 96, 48
"""Number of pictures, and their height in pixels."""


@dataclass(frozen=True)
class Widths:
    """Widths that a model accepts, in pixels."""

    shortest: int
    step: int
    longest: int


RECOGNIZER, CLASSIFIER = Widths(320, 160, 960), Widths(192, 192, 192)
AS_THEY_ARE = Widths(320, 1, 960)
"""Widths of the recognizer if clients pad only lines narrower than those it was trained on."""


def write_lines(folder: Path, widths: Widths, *, seed: int = 0) -> None:
    """Write LINES pictures of text, [3, 48, width] each.

    `folder`: where they are written; `widths`: widths that the model accepts; `seed`: of the random lengths.
    """
    crops = lines_of_text()
    rng = Random(seed)
    for number in range(LINES):
        crop = crops[number % len(crops)]
        part = max(1, round(crop.shape[1] * rng.uniform(0.3, 1.0)))
        left = rng.randint(0, crop.shape[1] - part)
        np.save(folder / f"{number:03}.npy", prepared(crop[:, left : left + part], widths))


def photograph(name: str) -> NDArray[np.uint8]:
    """Return a photograph of scikit-image, [height, width, 3], in the order blue, green, red of OpenCV."""
    with Image.open(package_folder("skimage") / "data" / name) as opened:
        return np.ascontiguousarray(np.asarray(opened.convert("RGB"))[:, :, ::-1])


@cache
def lines_of_text() -> tuple[NDArray[np.uint8], ...]:
    """Return the lines of text that rapidocr's detector finds in the photographs."""
    reader = rapidocr_onnxruntime.RapidOCR()
    crops: list[NDArray[np.uint8]] = []
    for name in PHOTOGRAPHS:
        picture = photograph(name)
        boxes, _ = reader.text_det(picture)
        crops += reader.get_crop_img_list(picture, boxes)
    return tuple(crops)


def prepared(crop: NDArray[np.uint8], widths: Widths) -> NDArray[np.float32]:
    """Return a line as rapidocr prepares it: scaled to HEIGHT, values -1 to 1, zeros on the right."""
    width = min(widths.longest, ceil(crop.shape[1] * HEIGHT / crop.shape[0]))
    padded = max(widths.shortest, -(-width // widths.step) * widths.step)
    scaled = cv2.resize(crop, (width, HEIGHT)).astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
    return np.pad(scaled, ((0, 0), (0, 0), (0, padded - width)))


CASES = (
    Case(
        "text_recognition",
        "lines of text out of photographs, padded to one of five widths",
        slo_ms=400,
        write_model=partial(copyfile, model_path("text_recognition")),
        write_inputs=partial(write_lines, widths=RECOGNIZER),
    ),
    Case(
        "text_direction",
        "the same lines, cut to one width",
        slo_ms=50,
        write_model=partial(copyfile, model_path("text_direction")),
        write_inputs=partial(write_lines, widths=CLASSIFIER),
    ),
    Case(
        "text_lines",
        "lines of text at their own width, for the recognizer",
        slo_ms=400,
        write_model=partial(copyfile, model_path("text_recognition")),
        write_inputs=partial(write_lines, widths=AS_THEY_ARE),
    ),
)
