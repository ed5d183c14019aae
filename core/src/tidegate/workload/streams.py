"""Independent random streams from one seed: another use of one stream does not change the others."""

from random import Random


def stream(seed: int, *names: str | int) -> Random:
    """Return the generator of one purpose, e.g. `stream(1, "rows", "resnet50")`; the same in every process."""
    return Random("/".join(map(str, (seed, *names))))  # text is hashed by SHA-512, not by `hash`
