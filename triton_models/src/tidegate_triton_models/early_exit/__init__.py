"""A network whose depth depends on its input: it reads digits, and stops as soon as it is sure of all of a batch.

    python -m tidegate_triton_models.early_exit FILE.onnx

Four stages of convolutions, a head after each. The convolutions are drawn from a seed and stay as they are; the heads
are fitted to them by ridge regression (a network of random features), each on all that the stages before it found. A
row leaves at the first head that is sure of it, and keeps that answer whoever shares its batch. The batch runs on until
its last row has left, as it does on hardware that runs a batch as a whole: it takes the time of its deepest row.

All of it is one ONNX file, with an `If` after each head: `tidegate generate` makes a model of it as of any other.
`digits` are the pictures, `graph` is the network, `training` fits its heads. They need the extra `early-exit`.
"""

from tidegate_triton_models.early_exit.digits import Pictures, pictures
from tidegate_triton_models.early_exit.training import Accuracy, write_early_exit

__all__ = ["Accuracy", "Pictures", "pictures", "write_early_exit"]
