"""Shapes as text (`Request.shape`): the dimensions of one input without the batch dimension."""


def read_sizes(text: str) -> tuple[int, ...] | None:
    """Return the dimensions of one input from text such as `3,48,320`; None if the text does not have this form."""
    sizes = text.split(",")
    if not all(size.isascii() and size.isdecimal() and len(size) <= 18 for size in sizes):
        return None
    return tuple(map(int, sizes))
