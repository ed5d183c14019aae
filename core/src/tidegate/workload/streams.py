"""Separate random streams out of one seed: changing what one of them is used for does not move the others."""

from random import Random


def stream(seed: int, *names: str | int) -> Random:
    """The generator of one purpose, e.g. `stream(1, "rows", "resnet50")`; the same in every process."""
    return Random("/".join(map(str, (seed, *names))))  # text is hashed by SHA-512, not by `hash`
