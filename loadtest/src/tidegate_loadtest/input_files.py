"""Real inputs: a folder of images and arrays for a model, sent instead of random tensors.

A file holds one row of a request: an image is the model's only input, as is the array of a `.npy`, and a `.npz` holds
one array for each input, by name. Each request draws its files from the folder, all equally likely: the server gets the
mix of sizes in the folder. A subfolder is an application: its requests carry its name.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import triton_to_np_dtype

from tidegate_loadtest.connection import AsksForModels, LoadTestError
from tidegate_loadtest.model_inputs import infer_request

ARRAY_SUFFIXES = (".npy", ".npz")
PICTURE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FILE_ORDER_PERIOD = 4096
"""Number of requests after which the order of the files repeats."""

Tensors = dict[str, NDArray[Any]]
"""Inputs of one row by name, without the batch dimension."""


def parse_inputs(texts: Iterable[str]) -> dict[str, Path]:
    """Parse `MODEL=FOLDER` texts; return the folders by model. Raises typer.BadParameter for anything else."""
    folders = {}
    for text in texts:
        model, equals, folder = text.partition("=")
        if not (model and equals and folder):
            raise typer.BadParameter(f"--inputs {text!r}: write MODEL=FOLDER, a folder of pictures or .npy files")
        folders[model] = Path(folder)
    return folders


class FileRequests:
    """Requests for one model with tensors from files, drawn from a seed: a `RequestFactory`."""

    def __init__(
        self,
        model: str,
        files: Mapping[str, Sequence[Tensors]],
        *,
        rows: int | None,
        seed: int,
        distinct: int | None = None,
    ) -> None:
        """Prepare requests from `files` by application, "" for none.

        `rows` per request; None: the model has no batch dimension.

        Each file begins a request, or `distinct` of them, drawn from each application's. Further rows of a request come
        from files of the same application and shapes.
        """
        rng = np.random.default_rng(seed)
        self._requests = []
        for app, own in files.items():
            alike: dict[object, list[Tensors]] = {}
            for tensors in own:
                alike.setdefault(_shapes(tensors), []).append(tensors)
            count = len(own) if distinct is None else min(distinct, len(own))
            for tensors in own if count == len(own) else [own[i] for i in rng.permutation(len(own))[:count]]:
                if rows is None:
                    self._requests.append(infer_request(model, tensors, app=app))
                    continue
                same = alike[_shapes(tensors)]
                members = [tensors, *(same[i] for i in rng.integers(0, len(same), rows - 1))]
                stacked = {name: np.stack([member[name] for member in members]) for name in tensors}
                self._requests.append(infer_request(model, stacked, app=app))
        self._order = rng.integers(0, len(self._requests), FILE_ORDER_PERIOD).tolist()

    def __call__(self, index: int) -> pb.ModelInferRequest:
        """The request to send as number `index`."""
        return self._requests[self._order[index % FILE_ORDER_PERIOD]]

    @classmethod
    async def for_model(
        cls, connection: AsksForModels, model: str, folder: Path, *, rows: int, seed: int
    ) -> "FileRequests":
        """Query the server for the inputs, and read the folder.

        Raises LoadTestError for an unknown model, a file that does not fit it or cannot be read, an empty folder, and
        more rows than the model takes. `rows`: rows per request; `seed`: seed of the draws.
        """
        most = (await connection.model_config(model)).max_batch_size
        if rows > max(most, 1):
            raise LoadTestError(f"model {model!r} takes at most {max(most, 1)} rows, not {rows}")
        files = await inputs_of_model(connection, model, folder)
        return cls(model, files, rows=rows if most else None, seed=seed)


async def inputs_of_model(connection: AsksForModels, model: str, folder: Path) -> dict[str, list[Tensors]]:
    """Return a folder's inputs by application, as the model takes them.

    Raises LoadTestError as `FileRequests.for_model`.
    """
    metadata, config = await connection.model_metadata(model), await connection.model_config(model)
    declared = {
        tensor.name: (tensor.datatype, tuple(tensor.shape)[1:] if config.max_batch_size else tuple(tensor.shape))
        for tensor in metadata.inputs
    }
    return read_applications(folder, model, declared, _optional(config))


def read_applications(
    folder: Path, model: str, declared: Mapping[str, tuple[str, tuple[int, ...]]], optional: frozenset[str]
) -> dict[str, list[Tensors]]:
    """Read the inputs of a folder under "", and those of its subfolders by name; see `read_inputs`.

    `declared`: inputs of the model with datatype and shape; `optional`: names of inputs that may be missing.
    """
    within = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    applications = {path.name: read_inputs(path, model, declared, optional) for path in within}
    if not within or any(map(_is_input, folder.iterdir())):
        applications[""] = read_inputs(folder, model, declared, optional)
    return applications


def read_inputs(
    folder: Path, model: str, declared: Mapping[str, tuple[str, tuple[int, ...]]], optional: frozenset[str]
) -> list[Tensors]:
    """Read every image and array of a folder, ordered by file name, in the form that a model takes.

    `declared`: (Triton data type, shape without rows, -1 where it is dynamic) by input name. Raises LoadTestError.
    `optional`: names of inputs that a file may lack.
    """
    if not folder.is_dir():
        raise LoadTestError(f"--inputs {model}={folder}: there is no such folder")
    paths = sorted(filter(_is_input, folder.iterdir()))
    if not paths:
        known = ", ".join((*ARRAY_SUFFIXES, *PICTURE_SUFFIXES))
        raise LoadTestError(f"--inputs {model}={folder}: no file in it is one of {known}")
    return [_read(path, model, declared, optional) for path in paths]


def _is_input(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (*ARRAY_SUFFIXES, *PICTURE_SUFFIXES)


def _read(
    path: Path, model: str, declared: Mapping[str, tuple[str, tuple[int, ...]]], optional: frozenset[str]
) -> Tensors:
    suffix = path.suffix.lower()
    if suffix != ".npz" and len(declared) > 1:
        raise LoadTestError(
            f"{path}: model {model!r} has {len(declared)} inputs ({', '.join(declared)}): use .npz files"
        )
    only = next(iter(declared))
    try:
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found = dict(arrays)
        elif suffix == ".npy":
            found = {only: np.load(path, allow_pickle=False)}
        else:
            found = {only: _picture(path, *declared[only])}
    except (OSError, ValueError, EOFError) as error:
        raise LoadTestError(f"{path}: cannot be read: {error}") from error
    if unknown := sorted(found.keys() - declared.keys()):
        raise LoadTestError(f"{path}: model {model!r} has no input {unknown[0]!r}; it has {', '.join(declared)}")
    if missing := sorted(declared.keys() - found.keys() - optional):
        raise LoadTestError(f"{path}: lacks the input {missing[0]!r} of model {model!r}")
    return {name: _fitting(path, name, array, *declared[name]) for name, array in found.items()}


def _fitting(path: Path, name: str, array: NDArray[Any], datatype: str, dims: tuple[int, ...]) -> NDArray[Any]:
    """The array with the type that Triton means. Raises LoadTestError where type or shape is another one."""
    if datatype == "BYTES" and array.dtype.kind in "SU":
        array = (
            np.char.encode(array, "utf-8").astype(np.object_) if array.dtype.kind == "U" else array.astype(np.object_)
        )
    elif array.dtype != triton_to_np_dtype(datatype):
        wanted = triton_to_np_dtype(datatype)
        remedy = "" if wanted is None or datatype == "BYTES" else f": save it as {np.dtype(wanted)}"
        raise LoadTestError(f"{path}: is {array.dtype}, and input {name!r} is {datatype}{remedy}")
    if len(array.shape) != len(dims) or any(dim not in (-1, size) for dim, size in zip(dims, array.shape, strict=True)):
        shown, has = (",".join(str(dim) for dim in shape) for shape in (dims, array.shape))
        raise LoadTestError(f"{path}: is {has}, and input {name!r} is {shown} (rows not counted)")
    return array


def _picture(path: Path, datatype: str, dims: tuple[int, ...]) -> NDArray[Any]:
    """A picture as a tensor of these dimensions: channels first or last, 1 (gray) or 3 (red, green, blue) of them.

    It is scaled to the height and width that are given; where one is open it keeps its proportions, where both are, its
    size. UINT8 has 0 to 255; floating point has x / 127.5 - 1.
    """
    try:
        from PIL import Image  # noqa: PLC0415 - of the extra `pictures`
    except ModuleNotFoundError as error:
        remedy = 'pip install "tidegate-loadtest[pictures]", or give .npy files'
        raise LoadTestError(f"{path}: pictures need Pillow, which is not installed: {remedy}") from error
    channels_first = len(dims) == 3 and dims[0] in (1, 3)
    if len(dims) != 3 or not (channels_first or dims[2] in (1, 3)) or datatype not in ("UINT8", "FP16", "FP32"):
        shown = ",".join(str(dim) for dim in dims)
        raise LoadTestError(f"{path}: a picture is no {datatype} input of {shown}: give .npy files")
    channels, height, width = dims if channels_first else (dims[2], dims[0], dims[1])
    with Image.open(path) as opened:
        picture = opened.convert("L" if channels == 1 else "RGB")
    own_width, own_height = picture.size
    if height < 0:
        height = own_height if width < 0 else max(1, round(own_height * width / own_width))
    if width < 0:
        width = max(1, round(own_width * height / own_height))
    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture).reshape(height, width, channels)
    if channels_first:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if datatype == "UINT8":
        return pixels
    return (pixels / np.float32(127.5) - np.float32(1)).astype(triton_to_np_dtype(datatype))


def _shapes(tensors: Tensors) -> object:
    return tuple(sorted((name, array.shape) for name, array in tensors.items()))


def _optional(config: model_config_pb2.ModelConfig) -> frozenset[str]:
    return frozenset(tensor.name for tensor in config.input if tensor.optional)
