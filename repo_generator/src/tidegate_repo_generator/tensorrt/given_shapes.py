"""Request shapes given on the command line, or in a file of measured profiles."""

from collections.abc import Iterable
from pathlib import Path

from tidegate.schemas import ProfileFileError, read_profiles, read_shape
from tidegate_repo_generator.model import GenerateError
from tidegate_repo_generator.splitting.inputs import parse_shapes

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
        raise GenerateError(f"--profile {error}") from error
    if not any(each.model == model for each in profiles):
        known = ", ".join(sorted({each.model for each in profiles})) or "none"
        raise GenerateError(f"--profile {profile}: nothing was measured of {model!r}; measured models: {known}")
    return tuple(read_shape(each.shape) for each in profiles if each.model == model and each.shape)
