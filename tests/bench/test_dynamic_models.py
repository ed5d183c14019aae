"""The dynamic models of the benchmark: their inputs are prepared as their authors do, and answered as they are."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.grpc as triton_grpc
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype

from bench.dynamic_models import MODULES, NotInstalledError, find_case
from bench.dynamic_models.__main__ import main
from bench.dynamic_models.baselines import contenders, copy_with_batcher
from bench.dynamic_models.case import Case
from tests.examples import few
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The ONNX file and the folder of inputs of every model."""
    found = {}
    for name in MODULES:
        folder = tmp_path_factory.mktemp(name)
        found[name] = (folder / "model.onnx", folder / "inputs")
        found[name][1].mkdir()
        case = find_case(name)
        case.write_model(found[name][0])
        case.write_inputs(found[name][1])
    return found


@pytest.fixture(scope="module")
def triton(
    written: dict[str, tuple[Path, Path]],
    start_triton: Callable[..., EmbeddedTriton],
    tmp_path_factory: pytest.TempPathFactory,
) -> EmbeddedTriton:
    repository = tmp_path_factory.mktemp("repository")
    for name, (onnx, _inputs) in written.items():
        generate_model(
            onnx, repository, name=name, max_batch=8
        )  # without an SLO: on a busy machine nothing is given up
    return start_triton([repository])


def files(inputs: Path) -> list[Path]:
    return sorted(path for path in inputs.rglob("*") if path.suffix in (".npy", ".npz"))


def arrays(path: Path, session: ort.InferenceSession) -> Arrays:
    """A file as a batch of one row."""
    loaded = np.load(path)
    tensors = {session.get_inputs()[0].name: loaded} if path.suffix == ".npy" else dict(loaded)
    return {name: tensor[None] for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", few(["text_direction", "file_types", "text_recognition", "text_detection"], 2))
def test_each_answers_through_triton_and_tidegate_what_onnxruntime_does(
    written: dict[str, tuple[Path, Path]], triton: EmbeddedTriton, start_tidegate: Callable[..., Any], name: str
) -> None:
    onnx, inputs = written[name]
    session = ort.InferenceSession(onnx)
    every = files(inputs)
    requests = [arrays(path, session) for path in every[:: len(every) // 6]]
    requests += [{key: np.concatenate([tensor] * 2) for key, tensor in requests[0].items()}] * 2
    tidegate = start_tidegate([triton], policy="symphony").address

    def ask(address: str, request: Arrays) -> Arrays:
        with triton_grpc.InferenceServerClient(address) as client:
            tensors = []
            for key, tensor in request.items():
                tensors.append(triton_grpc.InferInput(key, tensor.shape, np_to_triton_dtype(tensor.dtype)))
                tensors[-1].set_data_from_numpy(tensor)
            answer = client.infer(name, tensors)
        return {output.name: answer.as_numpy(output.name) for output in session.get_outputs()}

    with ThreadPoolExecutor(8) as pool:
        for address in (triton.grpc_address, tidegate):
            for request, answer in zip(requests, pool.map(partial(ask, address), requests), strict=True):
                right = dict(zip(answer, session.run(None, request), strict=True))
                for key, tensor in right.items():
                    assert answer[key].shape == tensor.shape
                    # Batches of another size sum in another order: up to 0.4 % of a probability of magika.
                    np.testing.assert_allclose(answer[key], tensor, atol=0.02 * float(np.abs(tensor).max()))


@pytest.mark.parametrize("name", few(["text_direction", "file_types", "text_recognition", "text_detection"], 2))
def test_inputs_are_the_same_every_time(written: dict[str, tuple[Path, Path]], name: str, tmp_path: Path) -> None:
    find_case(name).write_inputs(tmp_path)
    before, again = files(written[name][1]), files(tmp_path)
    assert [path.name for path in before] == [path.name for path in again]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(before, again, strict=True))


def test_lines_and_photographs_are_prepared_as_rapidocr_does() -> None:
    import rapidocr_onnxruntime
    from rapidocr_onnxruntime.ch_ppocr_det.utils import DetPreProcess

    from bench.dynamic_models import detector, ocr

    reader = rapidocr_onnxruntime.RapidOCR()
    for crop in list(ocr.lines_of_text())[::4]:
        line = ocr.prepared(crop, ocr.RECOGNIZER)
        theirs = reader.text_rec.resize_norm_img(crop, line.shape[2] / line.shape[1])
        np.testing.assert_allclose(line, theirs, atol=1e-6)
        np.testing.assert_allclose(ocr.prepared(crop, ocr.CLASSIFIER), reader.text_cls.resize_norm_img(crop), atol=1e-6)
    picture = ocr.photograph("text.png")
    height, width = picture.shape[:2]
    ours = detector.prepared(picture, width, height)
    np.testing.assert_allclose(ours, DetPreProcess(limit_side_len=64)(picture)[0], atol=1e-6)
    assert detector.prepared(picture, 3 * width, 2 * height).shape == (3, 352, 640), "the longer side is cut"


def test_files_are_seen_as_magika_sees_them(written: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    from magika import Magika

    from bench.dynamic_models.file_types import seen_of

    onnx, _inputs = written["file_types"]
    magika, session = Magika(), ort.InferenceSession(onnx)
    short = tmp_path / "short.py"
    short.write_text("  \nimport os\nprint(os.getcwd())\n\n")
    for path in (Path(__file__), short, Path(sys.executable).resolve()):
        (scores,) = session.run(None, {"bytes": seen_of(path)[None]})
        theirs = magika.identify_path(path)
        assert float(scores.max()) == pytest.approx(theirs.score, abs=1e-4), path


CASE = Case("file_types", "files", 40, write_model=lambda path: path, write_inputs=lambda path: path, rows=2)


def test_contenders_are_tritons_in_several_settings_and_tidegates(
    written: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("policy: fifs\n")
    chosen = contenders(CASE, {"own": own})
    assert [contender.name for contender in chosen] == [
        "Triton",
        "Triton, delay 0.8 ms",
        "Triton, delay 4 ms",
        "Triton, timeout",
        "Triton, batch 1",
        "Triton, batch 1, timeout",
        "Tidegate",
        "Tidegate own",
    ]
    generated = tmp_path / "generated"
    generate_model(written["text_direction"][0], generated, name=CASE.model, max_batch=CASE.max_batch)
    seen = []
    for number, contender in enumerate(chosen[:7]):
        repository = generated
        if contender.batcher is not None:
            repository = tmp_path / str(number)
            copy_with_batcher(generated, repository, CASE.model, contender.batcher)
        config = text_format.Parse(
            (repository / "file_types" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
        )
        queue = config.dynamic_batching
        timeout_us = queue.default_queue_policy.default_timeout_microseconds
        batches = config.HasField("dynamic_batching")
        seen.append((config.max_batch_size, batches, queue.max_queue_delay_microseconds, timeout_us))
    assert seen == [
        (8, True, 0, 0),
        (8, True, 800, 0),
        (8, True, 4000, 0),
        (8, True, 0, 35000),
        (2, True, 0, 0),
        (2, True, 0, 35000),
        (8, False, 0, 0),
    ]
    assert [contender.config for contender in chosen[6:]] == [None, own]


def test_a_model_whose_package_is_missing_is_skipped_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    from bench.dynamic_models import case

    def nowhere(name: str) -> ModuleSpec | None:
        return None if name == "magika" else importlib.util.find_spec(name)

    monkeypatch.delitem(sys.modules, "bench.dynamic_models.file_types", raising=False)
    monkeypatch.setattr(case, "find_spec", nowhere)
    with pytest.raises(NotInstalledError, match=r"file_types: the package magika is not installed: `make install`"):
        find_case("file_types")
    monkeypatch.setattr(sys, "argv", ["dynamic_models", "--model", "file_types"])
    main()
    assert "skipped: file_types: the package magika is not installed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("start_triton")  # which skips where there is none
def test_a_model_is_measured_alone_and_under_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = ["--rounds", "2", "--seconds", "0.5", "--warmup", "0.2", "--loads", "0.3"]
    monkeypatch.setattr("bench.dynamic_models.__main__.ALONE_S", 0.2)
    monkeypatch.setattr(
        sys, "argv", ["dynamic_models", "--model", "text_direction", *short, "--json", str(tmp_path / "out.json")]
    )
    main()
    assert "Tidegate beside the best of Triton's" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())["models"]["text_direction"]
    (load,) = report["loads"]
    assert load["rate_rps"] == pytest.approx(0.3 * 1e3 / report["alone_ms"])
    assert load["best_of_triton"].startswith("Triton")
    assert len({row["target"] for row in load["comparison"]["rows"]}) == 7
    assert [each["figure"] for each in load["against_it"]] == ["attainment", "p50_ms", "p99_ms"]
