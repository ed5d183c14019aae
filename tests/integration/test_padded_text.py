"""Lines of text as wide as they are, padded by Tidegate: what the OCR recognizer answers, and how far from unpadded."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import yaml

from bench.dynamic_models.ocr import AS_THEY_ARE, write_lines
from demo.read_text import model_path
from tests.conftest import UNHURRIED, eventually
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

CONFIG = Path(__file__).parents[2] / "bench/dynamic_models/padded_lines.yaml"
((MODEL, SAID),) = yaml.safe_load(CONFIG.read_text())["models"].items()
Picture = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Picture]:
    """Pictures of lines, [1, 3, 48, width] each, of a dozen widths."""
    folder = tmp_path_factory.mktemp("lines")
    write_lines(folder, AS_THEY_ARE)
    by_width = {picture.shape[2]: picture[None] for picture in map(np.load, sorted(folder.iterdir()))}
    return [by_width[width] for width in sorted(by_width)][:24:2]


@pytest.fixture(scope="module")
def recognizer(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    repository = tmp_path_factory.mktemp("recognizer")
    generate_model(model_path("text_recognition"), repository, name=MODEL, max_batch=8)
    return start_triton([repository])


def ask(address: str, picture: Picture) -> Picture:
    """The probabilities of all characters at each step, [steps, characters]."""
    with triton_grpc.InferenceServerClient(address) as client:
        tensor = triton_grpc.InferInput("x", picture.shape, "FP32")
        tensor.set_data_from_numpy(picture)
        (answer,) = client.infer(MODEL, [tensor]).as_numpy("softmax_11.tmp_0")
        return answer  # type: ignore[no-any-return] # tritonclient is untyped


def as_clients_pad(picture: Picture) -> Picture:
    width = next(width for width in SAID["merge"]["pad"]["sizes"] if width >= picture.shape[3])
    return np.pad(picture, ((0, 0), (0, 0), (0, 0), (0, width - picture.shape[3])))


def read(answer: Picture) -> list[int]:
    """The characters, but for spaces, as the recognizer's own code reads them: of those that repeat, one; no blanks."""
    best = answer.argmax(1)
    blank, space = 0, answer.shape[1] - 1
    return [int(one) for one, before in zip(best, [blank, *best], strict=False) if one not in (before, blank, space)]


@pytest.mark.slow
def test_padded_by_tidegate_is_padded_by_its_clients_and_reads_nearly_as_unpadded(
    recognizer: EmbeddedTriton,
    lines: list[Picture],
    start_tidegate: Callable[..., Any],
    stand_still: Callable[..., Callable[[], None]],
    tmp_path: Path,
) -> None:
    """The recognizer looks at all of a line: what is to its right matters a little, whoever has put it there.

    So equal is what clients would have got who had padded; to unpadded lines the stated tolerance applies.
    """
    document = {"tritons": [recognizer.grpc_address], "policy": "fifs", "models": {MODEL: SAID}, **UNHURRIED}
    (tmp_path / "tidegate.yaml").write_text(json.dumps(document))
    tidegate = start_tidegate([], config=tmp_path / "tidegate.yaml")
    with ThreadPoolExecutor(len(lines)) as pool:
        go_on = stand_still(recognizer)
        asked = [pool.submit(ask, tidegate.address, line) for line in lines]
        eventually(lambda: tidegate.queued(MODEL) >= len(lines) - 2, "lines to queue while Triton stands still")
        go_on()
        answers = [line.result() for line in asked]
    with triton_grpc.InferenceServerClient(recognizer.grpc_address) as client:
        (statistics,) = client.get_inference_statistics(MODEL).model_stats
    assert 0 < statistics.execution_count < len(lines), "none shared a batch"
    distances, wrong, characters = [], 0, 0
    for line, answer in zip(lines, answers, strict=True):
        unpadded = ask(recognizer.grpc_address, line)
        assert answer.shape == unpadded.shape
        by_client = ask(recognizer.grpc_address, as_clients_pad(line))[: len(answer)]
        np.testing.assert_allclose(answer, by_client, rtol=1e-4, atol=1e-4 * float(by_client.max()))
        distances.append(np.abs(answer - unpadded).max(1))
        characters += len(read(unpadded))
        wrong += edits(read(answer), read(unpadded))
    steps = np.concatenate(distances)
    assert (steps < 0.01).mean() > 0.7, "of ten steps seven are as good as equal"
    assert (steps < 0.1).mean() > 0.9
    assert wrong <= 0.03 * characters


def edits(one: list[int], other: list[int]) -> int:
    """How many characters must be put in, left out or changed to make the one of the other."""
    row = list(range(len(other) + 1))
    for index, character in enumerate(one, 1):
        before, row[0] = row[0], index
        for column, wanted in enumerate(other, 1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (character != wanted))
    return row[-1]
