"""Many small models: those that let rows see each other are never merged, those that do not are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.repo_generator.rows.small_models import INDEPENDENT, MIXING, Small
from tidegate_repo_generator.onnx_file import read_onnx
from tidegate_repo_generator.onnx_sessions import open_session
from tidegate_repo_generator.rows.axes import ANALYZED_ROWS
from tidegate_repo_generator.rows.examination import examine_graph
from tidegate_repo_generator.rows.judgment import judge_batching
from tidegate_repo_generator.rows.samples import find_samplers

Save = Callable[[Small], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save_model(small: Small) -> Path:
        onnx.save(small.build(), tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return save_model


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_rows_are_not_merged_nor_does_the_graph_call_them_independent(save: Save, name: str) -> None:
    path = save(MIXING[name])
    verdict = judge_batching(read_onnx(path))
    # A trial with up to eight rows cannot see what happens at other numbers: there the graph alone says no.
    assert verdict.batches is (None if name.endswith(("from_seventeen_rows", "sixth_number_of_rows")) else False)
    assert verdict.reason
    proto, inputs = onnx.load(path), read_onnx(path).inputs
    sampler = find_samplers(open_session(proto, path.parent), inputs, {})[0]
    try:
        finding = examine_graph(proto, path.parent, [sampler.rows(count) for count in ANALYZED_ROWS])
    except Exception as error:  # it does not run with several rows
        assert "ONNXRuntimeError" in str(error)
        return
    assert finding.verdict != "independent"
    assert finding.reason


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_models_are_merged_and_merged_answers_are_right(save: Save, name: str) -> None:
    """The truth of the table above: a look at the answers that shares nothing with the judgment."""
    path = save(INDEPENDENT[name])
    verdict = judge_batching(read_onnx(path))
    assert (verdict.batches, verdict.reason) == (True, "rows were answered in batches of 2, 3, 4, 8 as alone")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(7)
    for size in (2, 5, 11):
        feed = {}
        for entry in session.get_inputs():
            shape = [
                size if axis == 0 else (side if isinstance(side, int) else 6) for axis, side in enumerate(entry.shape)
            ]
            if "int" in entry.type:
                feed[entry.name] = generator.integers(0, 2, shape)
            else:
                loudness = 10.0 ** generator.integers(-2, 3, [size] + [1] * (len(shape) - 1))
                array = generator.standard_normal(shape) * loudness
                feed[entry.name] = array.astype(np.float16 if "float16" in entry.type else np.float32)
        together = session.run(None, feed)[0]
        for row in range(size):
            alone = session.run(None, {key: array[row : row + 1] for key, array in feed.items()})[0]
            scale = np.abs(alone).max()
            np.testing.assert_allclose(together[row : row + 1], alone, rtol=2e-3, atol=2e-3 * scale)


def test_there_are_many_of_both() -> None:
    assert min(len(MIXING), len(INDEPENDENT)) >= 40
