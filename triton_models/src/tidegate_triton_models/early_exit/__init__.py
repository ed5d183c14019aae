"""Early-exit network, a model whose latency depends on its input: it reads digits and stops once all rows are certain.

    python -m tidegate_triton_models.early_exit FILE.onnx

Four stages of convolutions, each followed by a classifier head. The convolutions are drawn from a seed and not trained;
the heads are fitted by ridge regression (a network of random features), each on the features of all stages up to it. A
row leaves at the first head that is certain of it, and its answer does not depend on the other rows of its batch. The
batch runs until its last row has left, as on hardware that runs a batch as a whole: it takes the time of its deepest
row.

The network is one ONNX file with an `If` after each head, so `tidegate generate` accepts it like any other model.
`digits` holds the pictures, `graph` builds the network, `training` fits its heads. They need the extra `early-exit`.
"""

from tidegate_triton_models.early_exit.digits import Pictures, pictures
from tidegate_triton_models.early_exit.training import Accuracy, write_early_exit

__all__ = ["Accuracy", "Pictures", "pictures", "write_early_exit"]
