"""Real inputs out of a folder: pictures and arrays as a model takes them, and what is said of those that do not fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
import uvloop
from PIL import Image

from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.input_files import FileRequests, parse_inputs, read_inputs

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

Declared = dict[str, tuple[str, tuple[int, ...]]]
NONE: frozenset[str] = frozenset()


def save_picture(path: Path, width: int = 8, height: int = 4) -> Path:
    """Left half red, right half blue."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = 255
    pixels[:, width // 2 :, 2] = 255
    Image.fromarray(pixels).save(path)
    return path


def only(folder: Path, datatype: str, dims: tuple[int, ...]) -> Any:
    (tensors,) = read_inputs(folder, "m", {"X": (datatype, dims)}, NONE)
    return tensors["X"]


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ((3, -1, -1), (3, 4, 8)),
        ((3, 48, -1), (3, 48, 96)),
        ((3, -1, 16), (3, 8, 16)),
        ((3, 5, 7), (3, 5, 7)),
        ((1, 4, 8), (1, 4, 8)),
        ((4, 8, 3), (4, 8, 3)),
        ((-1, -1, 1), (4, 8, 1)),
    ],
)
def test_a_picture_gets_the_declared_size_and_keeps_its_proportions(
    tmp_path: Path, dims: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    save_picture(tmp_path / "a.png")
    found = only(tmp_path, "FP32", dims)
    assert found.shape == shape
    assert found.dtype == np.float32


def test_pixels_are_red_green_blue_and_scaled_for_floats_only(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png")
    floats, bytes_ = only(tmp_path, "FP32", (3, -1, -1)), only(tmp_path, "UINT8", (-1, -1, 3))
    assert floats[:, 0, 0].tolist() == [1, -1, -1]
    assert floats[:, 0, 7].tolist() == [-1, -1, 1]
    assert bytes_[0, 0].tolist() == [255, 0, 0]
    assert only(tmp_path, "FP16", (3, 4, 8)).dtype == np.float16


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    row = np.arange(4, dtype=np.int64)
    np.save(tmp_path / "b.npy", row)
    assert only(tmp_path, "INT64", (-1,)).tolist() == row.tolist()
    np.savez(tmp_path / "a.npz", X=row + 1)
    first, second = read_inputs(tmp_path, "m", {"X": ("INT64", (4,))}, NONE)
    assert (first["X"][0], second["X"][0]) == (1, 0), "in the order of the names"


def test_several_inputs_come_by_name_and_optional_ones_may_be_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", TEXT=np.array(["é", "b"]), MASK=np.array([True, False]))
    declared: Declared = {"TEXT": ("BYTES", (2,)), "MASK": ("BOOL", (2,)), "EXTRA": ("FP16", (1,))}
    (tensors,) = read_inputs(tmp_path, "m", declared, frozenset({"EXTRA"}))
    assert tensors["TEXT"].tolist() == ["é".encode(), b"b"]
    assert tensors.keys() == {"TEXT", "MASK"}


def write(folder: Path, name: str, content: object) -> None:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)  # type: ignore[arg-type]


X: Declared = {"X": ("FP32", (4,))}
TWO: Declared = {"X": ("FP32", (4,)), "Y": ("FP32", (4,))}


@pytest.mark.parametrize(
    ("name", "content", "declared", "says"),
    [
        ("notes.txt", b"no picture", X, "no file in it is one of .npy"),
        ("a.npy", np.zeros(4), X, "a.npy: is float64, and input 'X' is FP32: save it as float32"),
        ("a.npy", np.zeros((1, 4), np.float32), X, "a.npy: is 1,4, and input 'X' is 4 (rows not counted)"),
        ("a.npy", np.zeros(5, np.float32), X, "a.npy: is 5, and input 'X' is 4"),
        ("a.npy", b"no array", X, "a.npy: cannot be read"),
        ("a.npy", b"", X, "a.npy: cannot be read"),
        ("a.npy", np.array([{}], object), X, "a.npy: cannot be read"),
        ("a.png", b"no picture", {"X": ("FP32", (3, 4, 4))}, "a.png: cannot be read"),
        ("a.png", b"", X, "a picture is no FP32 input of 4: give .npy files"),
        ("a.png", b"", {"X": ("INT64", (3, 4, 4))}, "a picture is no INT64 input of 3,4,4"),
        ("a.npy", np.zeros(4, np.float32), TWO, "has 2 inputs (X, Y): use .npz files"),
        ("a.npz", {"X": np.zeros(4, np.float32)}, TWO, "a.npz: lacks the input 'Y'"),
        ("a.npz", {"Z": np.zeros(4, np.float32)}, X, "has no input 'Z'; it has X"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, name: str, content: object, declared: Declared, says: str) -> None:
    write(tmp_path, name, content)
    with pytest.raises(LoadTestError) as error:
        read_inputs(tmp_path, "m", declared, NONE)
    assert says in str(error.value)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadTestError, match="there is no such folder"):
        read_inputs(tmp_path / "absent", "m", X, NONE)


def test_flags_name_a_model_and_a_folder() -> None:
    assert parse_inputs(["a=x/y", "b=z=1"]) == {"a": Path("x/y"), "b": Path("z=1")}
    with pytest.raises(typer.BadParameter, match="write MODEL=FOLDER"):
        parse_inputs(["a"])


def requests(triton: "FakeTriton", model: str, folder: Path, rows: int = 1, seed: int = 0) -> FileRequests:
    async def run() -> FileRequests:
        async with Connection(triton.target) as connection:
            return await FileRequests.for_model(connection, model, folder, rows=rows, seed=seed)

    return uvloop.run(run())


def test_requests_draw_from_the_folder_by_their_seed(triton: "FakeTriton", tmp_path: Path) -> None:
    for width in (8, 16, 24):
        save_picture(tmp_path / f"{width}.png", width)
    first, again, other = (requests(triton, "image", tmp_path, seed=seed) for seed in (0, 0, 1))
    widths = [first(index).inputs[0].shape[3] for index in range(600)]
    assert widths[:50] == [again(index).inputs[0].shape[3] for index in range(50)]
    assert widths[:50] != [other(index).inputs[0].shape[3] for index in range(50)]
    assert all(150 < widths.count(width) < 250 for width in (8, 16, 24))


def test_further_rows_are_of_the_same_shape(triton: "FakeTriton", tmp_path: Path) -> None:
    for number, width in enumerate((8, 8, 16)):
        np.save(tmp_path / f"{number}.npy", np.full((3, 4, width), number, np.float32))
    request_of = requests(triton, "image", tmp_path, rows=3)
    for index in range(30):
        request = request_of(index)
        shape = list(request.inputs[0].shape)
        assert shape in ([3, 3, 4, 8], [3, 3, 4, 16])
        sent = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(shape)
        assert set(np.unique(sent)) <= ({0, 1} if shape[3] == 8 else {2})


def test_folders_within_the_folder_are_applications(triton: "FakeTriton", tmp_path: Path) -> None:
    for app, numbers in {"": (0,), "clean": (1, 2), "noisy": (3,)}.items():
        (tmp_path / app).mkdir(exist_ok=True)
        for number in numbers:
            np.save(tmp_path / app / f"{number}.npy", np.full((3, 4, 8), number, np.float32))
    request_of = requests(triton, "image", tmp_path, rows=2)
    seen: dict[str, set[float]] = {}
    for index in range(60):
        request = request_of(index)
        app = request.parameters["app"].string_param if "app" in request.parameters else ""
        seen.setdefault(app, set()).update(np.frombuffer(request.raw_input_contents[0], np.float32).tolist())
    assert seen == {"": {0}, "clean": {1, 2}, "noisy": {3}}
    (tmp_path / "0.npy").unlink()
    apps = {requests(triton, "image", tmp_path)(index).parameters["app"].string_param for index in range(60)}
    assert apps == {"clean", "noisy"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadTestError, match=r"empty: no file in it is one of \.npy"):
        requests(triton, "image", tmp_path)


def test_a_model_without_rows_gets_none(triton: "FakeTriton", tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, np.float32))
    assert list(requests(triton, "unbatched", tmp_path)(0).inputs[0].shape) == [4]


def test_more_rows_than_the_model_takes_are_an_error(triton: "FakeTriton", tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, np.float32))
    with pytest.raises(LoadTestError, match="takes at most 8 rows, not 9"):
        requests(triton, "echo", tmp_path, rows=9)
