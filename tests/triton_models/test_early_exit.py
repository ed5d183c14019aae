"""The early-exit network: how well it reads, how many of its layers a batch runs, and what a Triton answers with it."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray

from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

if TYPE_CHECKING:
    from tidegate_triton_models.early_exit import Accuracy, Pictures

STAGES = ((16, 24), (32,), (48,), (48,))
"""A quarter as wide as the network that is shipped, of as many layers: to train it takes a tenth of the time."""
EXITS = len(STAGES)
CONVOLUTIONS = list(np.cumsum([len(widths) for widths in STAGES]))
"""That have run when a batch has left at each exit."""

Pixels = NDArray[np.float32]


def written(path: Path, **options: Any) -> dict[str, "Accuracy"]:  # noqa: ANN401
    from tidegate_triton_models.early_exit import write_early_exit  # imports scikit-learn

    return write_early_exit(path, **options)


def pictures(part: Any, *, distorted: bool) -> "Pictures":  # noqa: ANN401
    from tidegate_triton_models.early_exit import pictures

    return pictures(part, distorted=distorted)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, "Accuracy"]]:
    path = tmp_path_factory.mktemp("early_exit") / "digits.onnx"
    return path, written(path, stages=STAGES)


@pytest.fixture(scope="module")
def session(trained: tuple[Path, dict[str, "Accuracy"]]) -> ort.InferenceSession:
    return ort.InferenceSession(trained[0])


@pytest.fixture(scope="module")
def by_depth(session: ort.InferenceSession) -> list[Pixels]:
    """Pictures of the test digits that leave at each exit."""
    pixels = np.concatenate([pictures("test", distorted=distorted).pixels for distorted in (False, True)])
    (depth,) = session.run(["depth"], {"image": pixels})
    return [pixels[depth[:, 0] == number] for number in range(1, EXITS + 1)]


def test_it_reads_digits_and_deeper_exits_read_better(trained: tuple[Path, dict[str, "Accuracy"]]) -> None:
    _reads_digits(trained[1])


@pytest.mark.slow
def test_so_does_the_network_that_is_shipped(tmp_path: Path) -> None:
    _reads_digits(written(tmp_path / "digits.onnx"))


def _reads_digits(accuracy: dict[str, "Accuracy"]) -> None:
    clean, distorted = accuracy["clean"], accuracy["distorted"]
    for found, least, worst in ((clean, 0.97, 0.01), (distorted, 0.90, 0.02)):
        assert found.overall >= least
        assert found.overall >= found.heads[-1] - worst, "leaving early costs little"
        assert found.heads[-1] > found.heads[0] + 0.01
        assert sum(found.leaves) == pytest.approx(1)
        assert min(found.leaves) > 0.01, "every exit is used"
    assert clean.leaves[0] > distorted.leaves[0] + 0.1, "what is hard to read goes deeper"


@pytest.mark.parametrize(
    "rows", [(1,), (2,), (3,), (4,), (1, 1, 1, 1), (2, 1, 1), (1, 3, 2), (1, 1, 1, 1, 1, 1, 1, 4)], ids=str
)
def test_a_batch_runs_the_layers_of_its_deepest_row(
    trained: tuple[Path, dict[str, "Accuracy"]], by_depth: list[Pixels], tmp_path: Path, rows: tuple[int, ...]
) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "ran")
    counting = ort.InferenceSession(trained[0], options)
    counting.run(None, {"image": np.stack([by_depth[depth - 1][number] for number, depth in enumerate(rows)])})
    events = json.loads(Path(counting.end_profiling()).read_text())
    ran = [event for event in events if event["cat"] == "Node" and event["name"].endswith("kernel_time")]
    convolutions = sum("Conv" in event["args"]["op_name"] for event in ran)
    assert convolutions == CONVOLUTIONS[max(rows) - 1]


def test_who_shares_a_batch_changes_no_answer(session: ort.InferenceSession, by_depth: list[Pixels]) -> None:
    rows = np.concatenate([some[:3] for some in by_depth])
    together = session.run(["scores", "depth"], {"image": rows})
    for number in range(len(rows)):
        scores, depth = session.run(["scores", "depth"], {"image": rows[number : number + 1]})
        np.testing.assert_allclose(scores[0], together[0][number], atol=1e-4)
        assert depth[0] == together[1][number] == 1 + number // 3


def test_triton_answers_what_onnxruntime_does(
    trained: tuple[Path, dict[str, "Accuracy"]],
    session: ort.InferenceSession,
    by_depth: list[Pixels],
    start_triton: Callable[..., EmbeddedTriton],
    tmp_path: Path,
) -> None:
    model = generate_model(trained[0], tmp_path, name="digits", max_batch=8)
    assert model.notices == (
        "Batched on your word: node 'any_number_0' (ReduceMax) mixes rows: it reduces the dimension of the rows.",
    ), "the graph cannot tell that the rows share no more than the branch, and no trial shows a difference"
    triton = start_triton([tmp_path])
    requests = [some[:rows] for some in by_depth for rows in (1, 2, 4)]

    def ask(pixels: Pixels) -> dict[str, NDArray[Any]]:
        with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
            tensor = triton_grpc.InferInput("image", pixels.shape, "FP32")
            tensor.set_data_from_numpy(pixels)
            result = client.infer("digits", [tensor])
        return {name: result.as_numpy(name) for name in ("scores", "depth")}

    with ThreadPoolExecutor(4) as pool:
        for pixels, answer in zip(requests, pool.map(ask, requests), strict=True):
            scores, depth = session.run(["scores", "depth"], {"image": pixels})
            np.testing.assert_allclose(answer["scores"], scores, atol=1e-4)
            np.testing.assert_array_equal(answer["depth"], depth)


def test_distortion_changes_pixels_and_no_label() -> None:
    parts = {part: pictures(part, distorted=False) for part in ("training", "calibration", "test")}
    assert [len(part.labels) for part in parts.values()] == [1010, 337, 450]
    for part, clean in parts.items():
        distorted = pictures(part, distorted=True)
        np.testing.assert_array_equal(distorted.labels, clean.labels)
        np.testing.assert_array_equal(distorted.pixels, pictures(part, distorted=True).pixels)
        assert not np.allclose(distorted.pixels, clean.pixels, atol=0.1)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_file(trained: tuple[Path, dict[str, "Accuracy"]], tmp_path: Path) -> None:
    again, other = tmp_path / "again.onnx", tmp_path / "other.onnx"
    written(again, stages=STAGES)
    written(other, seed=1, stages=STAGES)
    assert again.read_bytes() == trained[0].read_bytes() != other.read_bytes()
