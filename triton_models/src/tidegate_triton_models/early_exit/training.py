"""Training of the early-exit network: fits the heads to the training pictures and measures accuracy on others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from tidegate_triton_models.early_exit.digits import CLASSES, Part, Pictures, pictures
from tidegate_triton_models.early_exit.graph import STAGE_CHANNELS, Head, Widths, drawn_filters, network, trunk

RIDGE_PENALTY = 300.0
MIN_HEAD_ACCURACY = 0.99
"""Fraction of calibration digits that a head must get right above its margin, for digits it was not fitted to."""
AT_A_TIME = 32
"""Number of pictures that the stages compute together."""

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on pictures of one kind, as fractions from 0 to 1; tuples are by exit, the shallowest first."""

    heads: tuple[float, ...]
    """Fraction that each head gets right when it answers all pictures."""
    leaves: tuple[float, ...]
    """Fraction of pictures that leave at each exit."""
    overall: float
    """Fraction that the network gets right, each picture at its exit."""


def write_early_exit(path: Path, *, seed: int = 0, stages: Widths = STAGE_CHANNELS) -> dict[str, Accuracy]:
    """Train the network (about ten seconds of CPU time), write it, and return its accuracy on the test digits.

    The keys are `clean` and `distorted`, for the same digits. The same seed gives the same file, on one machine.
    `stages`:
    channels of the convolutions of each stage; half of them take a quarter of the time and cost some accuracy.
    """
    filters = drawn_filters(seed, stages)
    trained = _session(trunk(filters, stages))
    to_fit, to_calibrate = _both("training", seed), _both("calibration", seed)
    fitted, calibrated = _features(trained, to_fit), _features(trained, to_calibrate)
    heads = [
        _head(_seen(fitted, exit_), to_fit.labels, _seen(calibrated, exit_), to_calibrate.labels)
        for exit_ in range(len(stages))
    ]
    onnx.save(network(filters, stages, heads), path)
    whole = ort.InferenceSession(path, _options())
    kinds = {"clean": pictures("test", distorted=False), "distorted": pictures("test", distorted=True, seed=seed)}
    return {name: _accuracy(whole, heads, _features(trained, kind), kind) for name, kind in kinds.items()}


def _head(features: Floats, labels: NDArray[Any], held: Floats, held_labels: NDArray[Any]) -> Head:
    """Ridge regression of the standardised features onto +1 for the digit and -1 for the others, in its dual form."""
    mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-3
    standard = (features - mean) / deviation
    wanted = 2.0 * np.eye(CLASSES)[labels] - 1
    offset = wanted.mean(axis=0)
    dual = np.linalg.solve(standard @ standard.T + RIDGE_PENALTY * np.eye(len(standard)), wanted - offset)
    weights = (standard.T @ dual) / deviation[:, None]
    bias = offset - mean @ weights
    sure = _sure_from(held @ weights + bias, held_labels)
    return Head(weights.astype(np.float32), bias.astype(np.float32), sure)


def _sure_from(scores: Floats, labels: NDArray[Any]) -> float:
    """The least margin of best over second best from which on TRUSTED of the answers are right."""
    order = np.argsort(margins := _margins(scores))[::-1]
    right = np.cumsum((scores.argmax(axis=1) == labels)[order]) / np.arange(1, len(labels) + 1)
    trusted = np.flatnonzero(right >= MIN_HEAD_ACCURACY)
    return float(margins[order[trusted[-1]]]) if len(trusted) else float("inf")


def _margins(scores: Floats) -> Floats:
    ordered = np.sort(scores, axis=1)
    difference: Floats = ordered[:, -1] - ordered[:, -2]
    return difference


def _accuracy(
    whole: ort.InferenceSession, heads: Sequence[Head], features: Sequence[Floats], kind: Pictures
) -> Accuracy:
    answers = [_seen(features, number) @ head.weights + head.bias for number, head in enumerate(heads)]
    slices = [kind.pixels[start : start + AT_A_TIME] for start in range(0, len(kind.pixels), AT_A_TIME)]
    parts = [whole.run(["scores", "depth"], {"image": pixels}) for pixels in slices]
    scores, depth = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Accuracy(
        heads=tuple(float((each.argmax(axis=1) == kind.labels).mean()) for each in answers),
        leaves=tuple(float((depth == number).mean()) for number in range(1, len(heads) + 1)),
        overall=float((scores.argmax(axis=1) == kind.labels).mean()),
    )


def _both(part: Part, seed: int) -> Pictures:
    """The digits of a part as they are, and distorted."""
    kinds = [pictures(part, distorted=distorted, seed=seed) for distorted in (False, True)]
    return Pictures(np.concatenate([kind.pixels for kind in kinds]), np.concatenate([kind.labels for kind in kinds]))


def _features(stages: ort.InferenceSession, of: Pictures) -> list[Floats]:
    """Return the features that every stage finds in each picture, [rows, features] each."""
    starts = range(0, len(of.pixels), AT_A_TIME)
    parts = [stages.run(None, {"image": of.pixels[start : start + AT_A_TIME]}) for start in starts]
    return [np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True)]


def _seen(features: Sequence[Floats], exit_: int) -> Floats:
    """Return the input of the head at an exit: the features of its stage and of all before."""
    return np.concatenate(features[: exit_ + 1], axis=1)


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), _options())


def _options() -> ort.SessionOptions:
    """One thread: sums are taken in one order, so that the heads come out equal."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options
