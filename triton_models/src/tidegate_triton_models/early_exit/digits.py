"""Pictures of digits from scikit-learn, unmodified or distorted like a careless scan."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIZE, CLASSES = 32, 10
"""Side length of a picture in pixels, and number of digits."""
LARGEST_TURN, LARGEST_SHIFT, LARGEST_SHRINKING, LARGEST_NOISE = np.pi / 12, 2.0, 1.25, 0.25
"""Bounds of a distortion: rotation in radians, shift in pixels, shrink factor, standard deviation of noise per pixel.
"""

Part = Literal["training", "calibration", "test"]


@dataclass(frozen=True)
class Pictures:
    """Pictures of digits with their labels."""

    pixels: NDArray[np.float32]
    """Array of shape [rows, 1, SIZE, SIZE], from 0 (paper) to 1 (ink); values lie outside of it where there is noise.
    """
    labels: NDArray[np.int64]
    """Array of shape [rows]: the digit of each picture."""


def pictures(part: Part, *, distorted: bool, seed: int = 0) -> Pictures:
    """Return every digit of one part of the data: 1010 for training, 337 for calibration, 450 for tests.

    `distorted`: rotated, shifted, shrunk and noisy, each by an amount drawn from `seed`.
    """
    digits, labels = load_digits(return_X_y=True)
    rest, test = _split(np.arange(len(labels)), labels)
    training, calibration = _split(rest, labels)
    chosen = {"training": training, "calibration": calibration, "test": test}[part]
    rng = np.random.default_rng((seed, len(chosen)))
    pixels = np.stack([_picture(digits[index].reshape(8, 8) / 16, rng if distorted else None) for index in chosen])
    return Pictures(pixels, labels[chosen])


def _split(indices: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    larger, smaller = train_test_split(indices, test_size=0.25, random_state=0, stratify=labels[indices])
    return larger, smaller


def _picture(digit: NDArray[Any], rng: np.random.Generator | None) -> NDArray[np.float32]:
    """A digit of 8 by 8 in the middle of a picture, [1, SIZE, SIZE]; None distorts nothing."""
    angle, shift, shrinking, noise = 0.0, np.zeros(2), 1.0, np.zeros((SIZE, SIZE))
    if rng:
        angle = rng.uniform(-LARGEST_TURN, LARGEST_TURN)
        shift = rng.uniform(-LARGEST_SHIFT, LARGEST_SHIFT, 2)
        shrinking = rng.uniform(1.0, LARGEST_SHRINKING)
        noise = rng.uniform(0, LARGEST_NOISE) * rng.normal(size=noise.shape)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn * shrinking * len(digit) / SIZE
    offset = (len(digit) - 1) / 2 - matrix @ ((SIZE - 1) / 2 + shift)
    scaled = ndimage.affine_transform(digit, matrix, offset, noise.shape, order=1)
    return (scaled + noise).astype(np.float32)[None]
