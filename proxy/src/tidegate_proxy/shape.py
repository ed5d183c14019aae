"""What varies in a request's tensors beyond the batch, in words: `x:3,48,320`. How long it takes may depend on it."""

from collections.abc import Iterable, Sequence

from tidegate.documents import shape_text
from tidegate_proxy.labels import label
from tidegate_proxy.signature import Signature


def shape_of(inputs: Iterable[tuple[str, Sequence[int]]], signature: Signature) -> str:
    """The inputs whose sizes the model's config leaves open, with their sizes, as `shape_text` writes them.

    Empty where it leaves none open. A long text is cut, and told apart by its digest.

    Args:
        inputs: names and full shapes (rows first) that fit the signature.
        signature: what the config says.
    """
    return label(shape_text({name: shape[1:] for name, shape in inputs if -1 in signature.inputs[name].dims}))
