"""Rules of operators on rows: the row axes of each operator's outputs, or why it mixes rows.

A rule covers only cases that are certain. Operators without a rule are unknown: other domains, loops, sequences.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from tidegate_repo_generator.rows.axes import (
    STANDARD_DOMAINS,
    MixesError,
    NodeView,
    RowAxis,
    Rule,
    States,
    UnknownError,
)
from tidegate_repo_generator.rows.rearrangement import REARRANGEMENT_RULES

_MICROSOFT: Final = "com.microsoft"


def rule_of(node: Any) -> Rule:  # noqa: ANN401
    """Return the rule of a node's operator; for an operator without one, a rule that raises UnknownError."""
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    table = {"": _STANDARD_RULES, _MICROSOFT: _MICROSOFT_RULES, "ai.onnx.ml": _ML_RULES}.get(domain, {})
    return table.get(node.op_type, _no_rule)


def _no_rule(view: NodeView) -> States:
    where = f" of {view.node.domain}" if view.node.domain not in STANDARD_DOMAINS else ""
    raise UnknownError(f"there is no rule for this operator{where}")


def _mixes(reason: str) -> Rule:
    def rule(_: NodeView) -> States:
        raise MixesError(reason)

    return rule


def _unknown(reason: str) -> Rule:
    def rule(_: NodeView) -> States:
        raise UnknownError(reason)

    return rule


def _elementwise(view: NodeView, slots: Iterable[int] | None = None) -> States:
    slots = view.slots() if slots is None else list(slots)
    view.fixed_but(*slots)
    rank = max((view.rank(slot) for slot in slots), default=0)
    return [view.together((slot, view.rows(slot), rank - view.rank(slot)) for slot in slots)]


def _first_elementwise(view: NodeView) -> States:
    """One input gives the values; the others say how, for the whole tensor or a channel of it."""
    view.fixed_but(0)
    return [view.rows(0)]


def _dropout(view: NodeView) -> States:
    if view.opset >= 12:
        training = view.has(2) and any(view.fixed(2))
    else:
        training = view.opset < 7 and not view.attributes.get("is_test", 0)
    if training:
        raise UnknownError("it draws random numbers")
    return [view.rows(0)]


# Products.


def _matmul(view: NodeView, left: int = 0, right: int = 1, *, others: tuple[int, ...] = ()) -> States:
    view.fixed_but(left, right, *others)
    a, b = view.rows(left), view.rows(right)
    a_rank, b_rank = view.rank(left), view.rank(right)
    if (a and a.axis == a_rank - 1) or (b and b.axis == max(b_rank - 2, 0)):
        raise MixesError("it sums over the rows")
    full = max(a_rank, b_rank, 2)
    found = view.together(((left, a, full - max(a_rank, 2) if a_rank > 1 else 0), (right, b, full - b_rank)))
    if found and a_rank == 1 and found.axis > full - 2:
        found = found.moved(found.axis - 1)
    return [found]


def _qlinear_matmul(view: NodeView) -> States:
    return _matmul(view, 0, 3)


def _gemm(view: NodeView, *, left: int = 0, right: int = 1, bias: int = 2) -> States:
    view.fixed_but(left, right, bias)
    turned = [bool(view.attributes.get(name, 0)) for name in ("transA", "transB")]
    a, b = view.rows(left), view.rows(right)
    if (a and a.axis != int(turned[0])) or (b and b.axis != 1 - int(turned[1])):
        raise MixesError("it sums over the rows")
    places = [(left, a and a.moved(0), 0), (right, b and b.moved(1), 0)]
    if view.has(bias):
        places.append((bias, view.rows(bias), 2 - view.rank(bias)))
    found = [(slot, rows, shift) for slot, rows, shift in places if rows]
    if len({rows.moved(rows.axis + shift) for _, rows, shift in found}) > 1:
        raise MixesError("it multiplies rows with rows")
    return [found[0][1].moved(found[0][1].axis + found[0][2]) if found else None]


def _einsum(view: NodeView) -> States:
    equation = view.attributes["equation"].decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    letters = terms.split(",")
    if not arrow or "..." in equation:
        raise UnknownError(f"its equation is {equation}")
    marks: dict[str, RowAxis] = {}
    for slot, term in enumerate(letters):
        rows = view.rows(slot)
        if rows is None:
            continue
        letter = term[rows.axis]
        if term.count(letter) > 1 or letter not in result:
            raise MixesError("it sums over the rows")
        if marks.setdefault(letter, rows) != rows:
            raise MixesError("it multiplies rows with rows")
    if len(marks) > 1:
        raise MixesError("it multiplies rows with rows")
    return [rows.moved(result.index(letter)) for letter, rows in marks.items()] or [None]


# Operators that take samples one by one.


def _samples(view: NodeView, *, data: tuple[int, ...] = (0,), rank: int = 2) -> States:
    """The first dimension counts samples: of the inputs `data`, and of every output."""
    view.fixed_but(*data)
    present = [slot for slot in data if view.has(slot)]
    found = {view.rows(slot) for slot in present} - {None}
    for slot in present:
        rows = view.rows(slot)
        if rows and (rows.axis != 0 or view.rank(slot) < rank):
            raise MixesError(
                f"to it the rows are no samples, for they are dimension {rows.axis} of '{view.node.input[slot]}'"
            )
    if len(found) > 1:
        raise UnknownError("its inputs have different numbers of samples")
    return [next(iter(found), None)]


def _all_samples(view: NodeView) -> States:
    """Return samples like `_samples`, with any of the inputs."""
    return _samples(view, data=tuple(view.slots()), rank=1)


def _pool(view: NodeView) -> States:
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis > 1:
        raise MixesError("its windows lie across the rows")
    return [rows]


def _max_pool(view: NodeView) -> States:
    rows = _pool(view)[0]
    if len(view.node.output) > 1 and view.node.output[1] and view.analysis.is_read(view.node.output[1]):
        raise UnknownError("its second output counts through the whole batch")
    return [rows]


def _batch_normalization(view: NodeView) -> States:
    if view.opset < 7:
        training = not view.attributes.get("is_test", 0)
    elif view.opset < 14:
        training = any(view.node.output[1:])
    else:
        training = bool(view.attributes.get("training_mode", 0))
    if training:
        raise MixesError("in training mode it normalizes over the rows")
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis == 1 and view.rank(0) > 1:
        raise UnknownError("the rows are its channels")
    return [rows]


def _per_channel(view: NodeView) -> States:
    """Normalizes over the dimensions behind the channels."""
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis > 1:
        raise MixesError("it normalizes over the rows")
    return [rows]


def _group_normalization(view: NodeView) -> States:
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis > 0:
        raise MixesError("it normalizes over the rows")
    return [rows]


def _normalization_from(view: NodeView, *, default: int = -1) -> States:
    """Normalizes over `axis` and all dimensions behind it."""
    view.fixed_but(0)
    rows, axis = view.rows(0), view.axis(default)
    if rows and rows.axis >= axis:
        raise MixesError("it normalizes over the rows")
    return [rows]


def _last_dimension(view: NodeView, *, data: tuple[int, ...] = (0,)) -> States:
    """Normalizes over the last dimension, behind sums of its inputs."""
    view.fixed_but(*data)
    rows = _elementwise(view, (slot for slot in data if view.has(slot)))[0]
    if rows and rows.axis == view.rank(0) - 1:
        raise MixesError("it normalizes over the rows")
    return [rows]


def _along(view: NodeView, what: str, *, default: int = -1) -> States:
    """Works along one dimension, `axis`."""
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis == view.axis(default):
        raise MixesError(f"it {what} the rows")
    return [rows]


def _mean_variance(view: NodeView) -> States:
    axes = [axis % view.rank(0) for axis in view.attributes.get("axes", [0, 2, 3])]
    rows = view.rows(0)
    if rows and rows.axis in axes:
        raise MixesError("it normalizes over the rows")
    return [rows]


def _softmax(view: NodeView) -> States:
    rows = view.rows(0)
    old = view.opset < 13
    axis = view.axis(1 if old else -1)
    if rows and (rows.axis >= axis if old else rows.axis == axis):
        raise MixesError("it normalizes over the rows")
    return [rows]


def _reduce(view: NodeView) -> States:
    view.fixed_but(0)
    rows, rank = view.rows(0), view.rank(0)
    axes = view.attributes.get("axes")
    if axes is None and view.has(1):
        axes = view.fixed(1)
    if not axes and view.attributes.get("noop_with_empty_axes", 0):
        return [rows]
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    return _reduced(view, rows, reduced)


def _arg_reduce(view: NodeView) -> States:
    return _reduced(view, view.rows(0), {view.axis(0)})


def _reduced(view: NodeView, rows: RowAxis | None, reduced: set[int]) -> States:
    if rows and rows.axis in reduced:
        raise MixesError("it reduces the dimension of the rows")
    if rows and not view.attributes.get("keepdims", 1):
        rows = rows.moved(rows.axis - sum(1 for axis in reduced if axis < rows.axis))
    return [rows]


def _cumulative(view: NodeView) -> States:
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis == view.fixed(1)[0] % view.rank(0):
        raise MixesError("it sums along the rows")
    return [rows]


def _top_k(view: NodeView) -> States:
    rows = _along(view, "sorts")[0]
    if rows and view.has(1):
        view.fixed(1)
    return [rows]


def _dft(view: NodeView) -> States:
    rows = view.rows(0)
    axis = view.axis(1)
    if view.opset >= 20:
        axis = view.fixed(2)[0] % view.rank(0) if view.has(2) else view.rank(0) - 2
    if view.has(1) and view.rows(1) is not None:
        raise UnknownError("its length comes from the inputs")
    if rows and rows.axis in (axis, view.rank(0) - 1):
        raise MixesError("it transforms along the rows")
    return [rows]


def _recurrent(view: NodeView) -> States:
    first = bool(view.attributes.get("layout", 0))
    batch = 0 if first else 1
    view.fixed_but(0, 4, 5, 6)
    states = []
    for slot in view.slots():
        rows = view.rows(slot)
        if slot in (0, 5, 6) and rows:
            states.append((slot, rows, batch))
        elif slot == 4 and rows:
            states.append((slot, rows, 0))
    for slot, rows, axis in states:
        if rows.axis != axis:
            raise MixesError(
                "the rows are its steps in time"
                if slot == 0 and rows.axis == 1 - batch
                else "the rows are its features"
            )
    folds = {(rows.outer, rows.inner) for _, rows, _ in states}
    if len(folds) != 1 or not any(slot == 0 for slot, _, _ in states):
        raise UnknownError("its inputs have their rows in different dimensions")
    outer, inner = folds.pop()
    sequence, last = RowAxis(0 if first else 2, outer, inner), RowAxis(batch, outer, inner)
    return [sequence, last, last]


def _reverse_sequence(view: NodeView) -> States:
    batch, steps = int(view.attributes.get("batch_axis", 1)), int(view.attributes.get("time_axis", 0))
    rows, lengths = view.rows(0), view.rows(1)
    if rows is None or rows.axis == steps:
        raise MixesError("it reverses the rows")
    if lengths is not None and (rows.axis != batch or lengths.axis != 0):
        raise UnknownError("its lengths are of something else")
    return [rows]


def _last_two(view: NodeView) -> States:
    """Works on matrices, in the last two dimensions."""
    view.fixed_but(0)
    rows = view.rows(0)
    if rows and rows.axis >= view.rank(0) - 2:
        raise MixesError("its matrices lie across the rows")
    return [rows]


def _loss(view: NodeView) -> States:
    if view.attributes.get("reduction", b"mean") != b"none":
        raise MixesError("it sums over the rows")
    return _samples(view, data=(0, 1), rank=1)


def _rotary(view: NodeView) -> States:
    return _samples(view, data=(0, 3) if view.node.domain in STANDARD_DOMAINS else (0, 1))


def _feature_columns(view: NodeView) -> States:
    """Works on rows of features, and takes a vector for one row."""
    return _samples(view, rank=2)


_ELEMENTWISE: Final = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BitCast",
    "Cast",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
    "Clip",
    "Shrink",
    "RegexFullMatch",
    "StringConcat",
]
_REDUCTIONS: Final = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
_RANDOM: Final = ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]

_STANDARD_RULES: Final[dict[str, Rule]] = {
    **REARRANGEMENT_RULES,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCTIONS], _reduce),
    **dict.fromkeys(["ArgMax", "ArgMin"], _arg_reduce),
    **dict.fromkeys(_RANDOM, _unknown("it draws random numbers")),
    **dict.fromkeys(["Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "LRN", "DepthToSpace", "SpaceToDepth",
                     "STFT", "Col2Im"], _samples),
    "DeformConv": partial(_samples, data=(0, 2, 4)),
    "GridSample": partial(_samples, data=(0, 1)),
    "AffineGrid": _samples,
    "Attention": _all_samples,
    "RotaryEmbedding": _rotary,
    **dict.fromkeys(["AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool"], _pool),
    "MaxPool": _max_pool,
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _per_channel,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _normalization_from,
    "RMSNormalization": _normalization_from,
    "LpNormalization": partial(_along, what="normalizes over"),
    "MeanVarianceNormalization": _mean_variance,
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], _softmax),
    **dict.fromkeys(["CumSum", "CumProd"], _cumulative),
    "TopK": _top_k,
    "DFT": _dft,
    "Dropout": _dropout,
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], _first_elementwise),
    "CastLike": lambda view: [view.rows(0)],
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _qlinear_matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    **dict.fromkeys(["LSTM", "GRU", "RNN"], _recurrent),
    "ReverseSequence": _reverse_sequence,
    **dict.fromkeys(["Trilu", "Det"], _last_two),
    **dict.fromkeys(["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"], _loss),
    "TfIdfVectorizer": _feature_columns,
    "DynamicQuantizeLinear": _mixes("it takes its scale from all rows"),
    **dict.fromkeys(["NonMaxSuppression", "NonZero", "Unique", "Compress"],
                    _mixes("it counts what it finds in all rows together")),
    "If": _unknown("it decides by the inputs' contents, or by the number of rows"),
    **dict.fromkeys(["Loop", "Scan", "SequenceMap"], _unknown("it may carry something from row to row")),
}  # fmt: skip

_MICROSOFT_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(["BiasGelu", "FastGelu", "Gelu", "QuickGelu", "BiasAdd", "BiasSplitGelu"], _elementwise),
    **dict.fromkeys(["QLinearAdd", "QLinearMul"], partial(_elementwise, slots=(0, 3))),
    **dict.fromkeys(["QLinearSigmoid", "QLinearLeakyRelu", "QuantizeLinear", "DequantizeLinear"], _first_elementwise),
    **dict.fromkeys(["FusedConv", "NhwcConv", "NhwcMaxPool", "QLinearConv", "QLinearAveragePool",
                     "QLinearGlobalAveragePool"], _samples),
    "FusedMatMul": _unknown("it may turn its inputs"),
    "FusedGemm": _gemm,
    "MatMulNBits": partial(_along, what="sums over"),
    "MatMulIntegerToFloat": _matmul,
    "LayerNormalization": _normalization_from,
    "SimplifiedLayerNormalization": _normalization_from,
    "SkipLayerNormalization": partial(_last_dimension, data=(0, 1)),
    "SkipSimplifiedLayerNormalization": partial(_last_dimension, data=(0, 1)),
    "EmbedLayerNormalization": partial(_samples, data=(0, 1, 7, 8)),
    "MultiHeadAttention": partial(_samples, data=(0, 1, 2, 4, 5, 6, 7)),
    "RotaryEmbedding": _rotary,
    **dict.fromkeys(["DynamicQuantizeMatMul", "DynamicQuantizeLSTM"], _mixes("it takes its scale from all rows")),
}  # fmt: skip

_ML_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(["Binarizer", "LabelEncoder"], _elementwise),
    **dict.fromkeys(
        ["TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "LinearClassifier", "LinearRegressor",
         "SVMClassifier", "SVMRegressor", "Scaler", "Normalizer", "Imputer", "ArrayFeatureExtractor"],
        _feature_columns,
    ),
    "FeatureVectorizer": _all_samples,
    "OneHotEncoder": _elementwise,
}  # fmt: skip
