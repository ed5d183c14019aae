"""Sizes that an engine is built for: of the rows, and of the dynamic dimensions, by request shapes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.schemas import ProfileFileError, read_profiles, read_shape
from tidegate_repo_generator.model import GenerateError, Tensor
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.splitting.inputs import parse_shapes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ProfileSizes:
    """Sizes of one input in an optimization profile: full shapes, rows included."""

    smallest: Shape
    usual: Shape
    """Shape for which TensorRT optimizes kernels; the others only have to work."""
    largest: Shape

    def as_lists(self) -> dict[str, list[int]]:
        """Return the three shapes under TensorRT's names."""
        return {"min": list(self.smallest), "opt": list(self.usual), "max": list(self.largest)}


def sizes_of(model: OnnxFile, max_batch: int, shapes: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, ProfileSizes]:
    """Return the sizes of every input, by its name.

    Batches have 1 to `max_batch` rows and are usually full; 0: the model does not batch, and shapes have all of its
    dimensions. `shapes`: request shapes, the usual one first; an input may be missing if its sizes are fixed. Raises
    GenerateError.
    """
    known = {tensor.name: tensor for tensor in model.inputs}
    for name in {name for shape in shapes for name in shape}:
        if name not in known:
            raise GenerateError(f"--shape {name}: {model.path} has no such input; its inputs: {', '.join(known)}")
    return {tensor.name: _sizes(model, tensor, max_batch, shapes) for tensor in model.inputs}


def _sizes(
    model: OnnxFile, tensor: Tensor, max_batch: int, shapes: Sequence[Mapping[str, Sequence[int]]]
) -> ProfileSizes:
    declared = tensor.shape[1:] if max_batch else tensor.shape
    given = [tuple(shape[tensor.name]) for shape in shapes if tensor.name in shape]
    for sizes in given:
        _check_fits(tensor, declared, sizes, max_batch)
    if not given:
        if any(isinstance(size, str) for size in declared):
            raise GenerateError(
                f"{model.path}: input '{tensor.name}' leaves sizes open, {_words(declared)}, and an engine is built "
                f"for a range of them: say --shape {tensor.name}:SIZE,SIZE..., without the rows, the usual one first, "
                "once for each end of the range; or --profiles with what `tidegate profile` wrote"
            )
        given = [tuple(size for size in declared if isinstance(size, int))]
    rows = ((1,), (max_batch,)) if max_batch else ((), ())
    columns = list(zip(*given, strict=True))
    return ProfileSizes(
        (*rows[0], *map(min, columns)),
        (*rows[1], *given[0]),
        (*rows[1], *map(max, columns)),
    )


def _check_fits(tensor: Tensor, declared: Sequence[int | str], sizes: Shape, max_batch: int) -> None:
    fits = len(sizes) == len(declared) and all(
        size >= 1 and (isinstance(size_declared, str) or size == size_declared)
        for size, size_declared in zip(sizes, declared, strict=True)
    )
    if not fits:
        rows = ", without the rows" if max_batch else ""
        raise GenerateError(
            f"--shape {tensor.name}: it is {_words(declared)} in the model{rows}, and {list(sizes)} does not fit"
        )


def _words(shape: Sequence[int | str]) -> str:
    return f"[{', '.join('any' if isinstance(size, str) else str(size) for size in shape)}]"


Shapes = tuple[dict[str, tuple[int, ...]], ...]


def shapes_given(options: Iterable[str], profile: Path | None, model: str) -> Shapes:
    """Return the shapes of `options` (`x:3,48,320`), followed by those of a profile file. Raises GenerateError.

    An option names one input; its usual sizes are the first that are given, in any option.
    """
    shapes = tuple(parse_shapes([option]) for option in options)
    return shapes + (() if profile is None else shapes_measured(profile, model))


def shapes_measured(profile: Path, model: str) -> Shapes:
    """Return the shapes for which a model was profiled. Raises GenerateError if there are none, or no such file."""
    try:
        profiles = read_profiles(profile).profiles
    except ProfileFileError as error:
        raise GenerateError(f"--profiles {error}") from error
    if not any(each.model == model for each in profiles):
        known = ", ".join(sorted({each.model for each in profiles})) or "none"
        raise GenerateError(f"--profiles {profile}: nothing was measured of {model!r}; measured models: {known}")
    return tuple(read_shape(each.shape) for each in profiles if each.model == model and each.shape)
