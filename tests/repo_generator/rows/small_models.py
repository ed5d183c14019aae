"""Small models in ONNX's text form, some of which let rows see each other, in as many unlike ways as we know of."""

# ruff: noqa: E501 - a graph is easier to read in one line

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper, parser


@dataclass(frozen=True)
class Small:
    """A model and the truth about it."""

    body: str
    weights: dict[str, Any] = field(default_factory=dict)
    signature: str = "(float[n, 8] x) => (float[n, 8] y)"
    opset: int = 17
    extra: str = ""
    functions: str = ""

    def build(self) -> Any:
        """The ModelProto."""
        header = f'<ir_version: 8, opset_import: ["" : {self.opset}{self.extra}]>'
        model = parser.parse_model(f"{header} g {self.signature} {{ {self.body} }} {self.functions}")
        weights = {name: np.asarray(array) for name, array in self.weights.items()}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
        return model


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SEQUENCE = "(float[n, 5, 8] x) => (float[n, 5, 8] y)"
PICTURE = "(float[n, 3, 8, 8] x) => (float[n, 4] y)"
LABELS = "(float[n, 8] x) => (int64[n, 1] y)"
W = {"w": drawn(8, 8)}
RNN = {"lw": drawn(1, 32, 8), "lr": drawn(1, 32, 8, seed=1)}
ONE, ZERO = {"one": np.array([1])}, {"zero": np.array([0])}

MIXING: dict[str, Small] = {
    # Over the first dimension.
    "softmax": Small("y = Softmax<axis = 0>(x)"),
    "log_softmax_from_the_front": Small("y = LogSoftmax<axis = 0>(x)", opset=11),
    "hardmax": Small("y = Hardmax<axis = 0>(x)"),
    "mean_of_all_rows": Small("m = ReduceMean<axes = [0], keepdims = 1>(x)  y = Sub(x, m)"),
    "mean_and_back": Small("m = ReduceMean<axes = [0], keepdims = 1>(x)  a = Sub(x, m)  y = Add(a, m)"),
    "sum_of_everything": Small("s = ReduceSum<keepdims = 0>(x)  t = Tanh(s)  y = Add(x, t)"),
    "a_little_of_all": Small("m = ReduceMax<keepdims = 1>(x)  t = Mul(m, tiny)  y = Add(x, t)", {"tiny": np.float32(1e-7)}),
    "cumulative_sum": Small("y = CumSum(x, a)", {"a": np.array(0)}),
    "top_rows": Small("v, i = TopK<axis = 0>(x, one)  y = Sub(x, v)", ONE),
    "best_row": Small("i = ArgMax<axis = 0, keepdims = 0>(x)  f = Cast<to = 1>(i)  y = Add(x, f)"),
    "unit_over_rows": Small("y = LpNormalization<axis = 0>(x)"),
    "layer_norm_from_the_front": Small("y = LayerNormalization<axis = 0>(x, s)", {"s": np.ones((1, 8), np.float32)}),
    "mean_variance": Small(
        "a = Unsqueeze(x, ax)  b = MeanVarianceNormalization(a)  y = Squeeze(b, ax)", {"ax": np.array([2, 3])}
    ),
    "batch_norm_in_training": Small(
        "y, m, v = BatchNormalization<training_mode = 1>(x, s, b, m0, v0)",
        {"s": drawn(8), "b": drawn(8), "m0": np.zeros(8, np.float32), "v0": np.ones(8, np.float32)},
    ),
    "instance_norm_across": Small(
        "a = Unsqueeze(x, zero)  b = Transpose<perm = [0, 2, 1]>(a)  c = InstanceNormalization(b, s, o) "
        "d = Transpose<perm = [0, 2, 1]>(c)  y = Squeeze(d, zero)",
        {**ZERO, "s": np.ones(8, np.float32), "o": np.zeros(8, np.float32)},
    ),
    # Rows as something else.
    "rows_as_steps": Small("s = Unsqueeze(x, one)  a, h = LSTM<hidden_size = 8>(s, lw, lr)  y = Squeeze(a, ax)",
                           {**RNN, **ONE, "ax": np.array([1, 2])}),
    "rows_as_steps_of_gru": Small("s = Unsqueeze(x, one)  a, h = GRU<hidden_size = 8>(s, w3, r3)  y = Squeeze(a, ax)",
                                  {"w3": drawn(1, 24, 8), "r3": drawn(1, 24, 8), **ONE, "ax": np.array([1, 2])}),
    "rows_as_channels": Small("a = Unsqueeze(x, zero)  b = Transpose<perm = [0, 2, 1]>(a)  c = MaxPool<kernel_shape = [3], "
                              "pads = [1, 1]>(b)  d = Transpose<perm = [0, 2, 1]>(c)  y = Squeeze(d, zero)", ZERO),
    "rows_as_pixels": Small("a = Unsqueeze(x, front)  b = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a, k)  "
                            "y = Squeeze(b, front)", {"front": np.array([0, 1]), "k": drawn(1, 1, 3, 3)}),
    "reversed": Small("y = Slice(x, last, first, zero, back)",
                      {"last": np.array([-1]), "first": np.array([-(2**31)]), **ZERO, "back": np.array([-1])}),
    "first_row_for_all": Small("f = Gather<axis = 0>(x, zero)  y = Sub(x, f)", ZERO),
    "sliced_first_row": Small("f = Slice(x, zero, one, zero)  y = Mul(x, f)", {**ZERO, **ONE}),
    "shifted": Small("a = Slice(x, zero, minus, zero)  f = Slice(x, minus, much, zero)  y = Concat<axis = 0>(f, a)",
                     {**ZERO, "minus": np.array([-1]), "much": np.array([2**40])}),
    "sorted_rows": Small("s = ReduceSum<keepdims = 0>(x, one)  n1 = Shape<start = 0, end = 1>(x)  "
                         "v, i = TopK<axis = 0>(s, n1)  y = Gather<axis = 0>(x, i)", ONE),
    "scattered": Small("y = ScatterND(x, places, u)", {"places": np.array([[0]]), "u": np.zeros((1, 8), np.float32)}),
    "interleaved": Small("f = Reshape(x, flat)  m = MatMul(f, half)  y = Reshape(m, full)",
                         {"flat": np.array([8, -1]), "half": np.float32(1).reshape(1, 1), "full": np.array([-1, 8])}),
    # Products of rows with rows.
    "attention_over_rows": Small("k = Transpose<perm = [1, 0]>(x)  s = MatMul(x, k)  p = Softmax<axis = 1>(s)  y = MatMul(p, x)"),
    "covariance": Small("t = Transpose<perm = [1, 0]>(x)  c = MatMul(t, x)  y = MatMul(x, c)"),
    "gram_by_gemm": Small("c = Gemm<transA = 1>(x, x)  y = MatMul(x, c)"),
    "gram_by_einsum": Small('c = Einsum<equation = "ni,nj->ij">(x, x)  y = MatMul(x, c)'),
    "all_pairs": Small("a = Unsqueeze(x, zero)  b = Unsqueeze(x, one)  d = Sub(a, b)  y = ReduceMax<axes = [1], keepdims = 0>(d)",
                       {**ZERO, **ONE}),
    "attention_and_labels": Small(
        "q = MatMul(x, w)  qs = Mul(q, soft)  k = Transpose<perm = [1, 0]>(q)  s = MatMul(qs, k)  p = Softmax<axis = 1>(s)  "
        "m = MatMul(p, q)  y = ArgMax<axis = 1, keepdims = 1>(m)", {**W, "soft": np.float32(0.01)}, LABELS),
    "attention_in_half": Small(
        "q = MatMul(x, w)  k = Transpose<perm = [1, 0]>(q)  qk = MatMul(q, k)  s = Mul(qk, soft)  p = Softmax<axis = 1>(s)  "
        "m = MatMul(p, q)  l = ReduceL2<axes = [1], keepdims = 1>(m)  y = Div(m, l)",
        {"w": (drawn(8, 512) / 4).astype(np.float16), "soft": np.float16(0.01)},
        "(float16[n, 8] x) => (float16[n, 512] y)"),
    "attention_over_the_batch_of_sequences": Small(
        "k = Transpose<perm = [1, 2, 0]>(x)  q = Transpose<perm = [1, 0, 2]>(x)  s = MatMul(q, k)  p = Softmax(s)  "
        "m = MatMul(p, q)  y = Transpose<perm = [1, 0, 2]>(m)", {}, SEQUENCE),
    # How many rows there are, and which is which.
    "divided_by_the_number_of_rows": Small("n1 = Shape<start = 0, end = 1>(x)  f = Cast<to = 1>(n1)  y = Div(x, f)"),
    "numbered": Small("n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  r = Range(s0, n0, s1)  f = Cast<to = 1>(r)  "
                      "c = Unsqueeze(f, one)  y = Add(x, c)", {"s0": np.array(0), "s1": np.array(1), **ONE}),
    "otherwise_from_four_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  many = Greater(n1, three)  f = Cast<to = 1>(many)  y = Add(x, f)",
        {"three": np.array([3])}),
    "the_diagonal": Small(
        "n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  r = Range(s0, n0, s1)  c = Unsqueeze(r, one)  k = Mod(c, eight)  "
        "i = Concat<axis = 1>(c, k)  y = GatherND(x, i)", {"s0": np.array(0), "s1": np.array(1), **ONE, "eight": np.array([8])},
        "(float[n, 8] x) => (float[n] y)"),
    "otherwise_from_seventeen_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  m = Div(n1, many)  f = Cast<to = 1>(m)  y = Add(x, f)", {"many": np.array([17])}),
    "a_branch_from_seventeen_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  g = Greater(n1, many)  c = Squeeze(g)  y = If(c) <then_branch = a () => "
        "(float[n, 8] t) { t = Neg(x) }, else_branch = b () => (float[n, 8] e) { e = Relu(x) }>", {"many": np.array([16])}),
    "folded_from_seventeen_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  a = Min(n1, many)  s = Concat<axis = 0>(a, minus, eight)  r = Reshape(x, s)  "
        "m = ReduceMean<axes = [1]>(r)  d = Sub(r, m)  e = Sub(r, d)  f = Reshape(e, b)  h = Expand(f, one)  y = Add(x, h)",
        {"many": np.array([16]), "minus": np.array([-1]), "eight": np.array([8]), "b": np.array([-1, 8]), **ONE}),
    "fewer_columns_from_seventeen_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  a = Div(n1, many)  e = Sub(eight, a)  s = Slice(x, zero, e, one)  "
        "m = ReduceMean<axes = [1]>(s)  y = Add(x, m)",
        {"many": np.array([17]), "eight": np.array([8]), **ZERO, **ONE}),
    "scaled_by_the_number_of_rows": Small(
        "q = QuantizeLinear(x, s, z)  n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  f = Cast<to = 1>(n0)  g = Mul(f, s)  "
        "r = com.microsoft.QLinearAdd(q, g, z, q, s, z, s, z)  y = DequantizeLinear(r, s, z)",
        {"s": np.float32(0.05), "z": np.int8(0)}, extra=', "com.microsoft" : 1'),
    "otherwise_for_every_sixth_number_of_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  r = Mod(n1, six)  n = Equal(r, zero)  c = Squeeze(n)  y = If(c) <then_branch = a () => "
        "(float[n, 8] t) { t = Neg(x) }, else_branch = b () => (float[n, 8] e) { e = Relu(x) }>", {"six": np.array([6]), **ZERO}),
    "two_folds_in_one_product": Small(
        "a = Tile(x, twice)  b = Concat<axis = 1>(x, x)  c = Reshape(b, s)  e = Einsum<equation = \"bd,bd->bd\">(a, c)  "
        "f = Reshape(e, t)  y = ReduceSum(f, one)",
        {"twice": np.array([2, 1]), "s": np.array([-1, 8]), "t": np.array([-1, 2, 8]), "one": np.array([1])},
        "(float[n, 8] x) => (float[n, 1, 8] y)"),
    # What is found in all rows.
    "non_zero": Small("r = Relu(x)  p = NonZero(r)  c = Shape<start = 1, end = 2>(p)  f = Cast<to = 1>(c)  y = Add(x, f)"),
    "unique": Small("u = Unique(x)  c = Shape(u)  f = Cast<to = 1>(c)  y = Add(x, f)"),
    "dynamic_quantization": Small(
        "q, s, z = DynamicQuantizeLinear(x)  a = MatMulInteger(q, wq, z)  f = Cast<to = 1>(a)  y = Mul(f, s)",
        {"wq": np.arange(64, dtype=np.uint8).reshape(8, 8)}),
    "scale_of_all_by_hand": Small(
        "b = Abs(x)  m = ReduceMax<keepdims = 0>(b)  q = Div(x, m)  r = Round(q)  y = Mul(r, m)"),
    "only_when_loud": Small("b = Abs(x)  m = ReduceMax<keepdims = 0>(b)  d = Sub(m, much)  r = Relu(d)  y = Add(x, r)",
                            {"much": np.float32(1e6)}),
    "decides_for_all": Small(
        "s = ReduceSum<keepdims = 0>(x)  c = Greater(s, nought)  y = If(c) <then_branch = a () => (float[n, 8] t) "
        "{ t = Neg(x) }, else_branch = b () => (float[n, 8] e) { e = Relu(x) }>", {"nought": np.float32(0)}),
    "in_a_function": Small("y = own.center(x)", extra=', "own" : 1',
                           functions='<domain: "own", opset_import: ["" : 17]> center (a) => (b) '
                                     "{ m = ReduceMean<axes = [0]>(a)  b = Sub(a, m) }"),
    "behind_a_reshape": Small("r = Reshape(x, s)  p = Softmax<axis = 1>(r)  y = Reshape(p, b)",
                              {"s": np.array([1, -1, 8]), "b": np.array([-1, 8])}),
    "folded_and_normalized": Small("r = Reshape(x, s)  p = Softmax<axis = 0>(r)  y = Reshape(p, b)",
                                   {"s": np.array([-1, 8]), "b": np.array([-1, 5, 8])}, SEQUENCE),
    # Odd paths to the same end.
    "reversed_sequences_of_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  l = Expand(n1, eight)  y = ReverseSequence<batch_axis = 1, time_axis = 0>(x, l)",
        {"eight": np.array([8])}),
    "flattened_and_normalized": Small("f = Flatten<axis = 0>(x)  s = Softmax(f)  y = Reshape(s, b)", {"b": np.array([-1, 8])}),
    "fourier_over_rows": Small("u = Unsqueeze(x, two)  f = DFT<axis = 0>(u)  s = Slice(f, zero, one, two)  y = Squeeze(s, two)",
                               {"two": np.array([2]), **ZERO, **ONE}),
    "resized_over_rows": Small('u = Unsqueeze(x, front)  r = Resize<mode = "linear">(u, , , sizes)  y = Squeeze(r, front)',
                               {"front": np.array([0, 1]), "sizes": np.array([1, 1, 4, 8])}),
    "triangle": Small("y = Trilu<upper = 1>(x)"),
    "identity_matrix": Small("e = EyeLike(x)  y = Add(x, e)"),
    "rolled_by_split": Small(
        "n1 = Shape<start = 0, end = 1>(x)  m = Sub(n1, one)  s = Concat<axis = 0>(one, m)  a, b = Split<axis = 0>(x, s)  "
        "y = Concat<axis = 0>(b, a)", ONE),
    "compressed": Small(
        "s = ReduceSum<keepdims = 0>(x, one)  c = Greater(s, nought)  k = Compress<axis = 0>(x, c)  m = ReduceSum<keepdims = 1>(k)  "
        "y = Add(x, m)", {**ONE, "nought": np.float32(0)}),
    "scanned": Small(
        "f, y = Scan<num_scan_inputs = 1, body = body (float[8] s, float[8] r) => (float[8] t, float[8] o) "
        "{ t = Add(s, r)  o = Identity(t) }>(start, x)", {"start": np.zeros(8, np.float32)}),
    "looped_by_rows": Small(
        "n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  y = Loop(n0, yes, x) <body = b (int64 i, bool k, float[n, 8] s) => "
        "(bool c, float[n, 8] t) { c = Identity(k)  t = Tanh(s) }>", {"yes": np.array(True)}),
    "pooled_places": Small(  # they count through the whole batch
        "u = Unsqueeze(x, one)  p, i = MaxPool<kernel_shape = [8]>(u)  f = Cast<to = 1>(i)  s = Squeeze(f, one)  y = Add(x, s)", ONE),
    "histogram": Small(
        "i = ArgMax<axis = 1, keepdims = 0>(x)  o = OneHot<axis = 0>(i, depth, onoff)  h = ReduceSum<keepdims = 0>(o, one)  y = Add(x, h)",
        {"depth": np.array(8), "onoff": np.array([0, 1], np.float32), **ONE}),
    "interleaved_with_the_others": Small(
        "t = Tile(x, times)  r = Reshape(t, s)  q = Slice(r, zero, one, one)  y = Squeeze(q, one)",
        {"times": np.array([2, 1]), "s": np.array([-1, 2, 8]), **ZERO, **ONE}),
    "a_vector_is_one_sample": Small('y = ai.onnx.ml.Normalizer<norm = "MAX">(x)', {}, "(float[n] x) => (float[n] y)",
                                    extra=', "ai.onnx.ml" : 3'),
    "attention_of_one_sample": Small(
        "u = Unsqueeze(x, zero)  a = com.microsoft.MultiHeadAttention<num_heads = 2>(u, u, u)  y = Squeeze(a, zero)", ZERO,
        extra=', "com.microsoft" : 1'),
    "cut_at_the_longest": Small(
        "f = Cast<to = 1>(l)  m = ReduceMax<keepdims = 0>(f)  u = Unsqueeze(m, zero)  k = Cast<to = 7>(u)  "
        "s = Slice(x, zero, k, one)  r = ReduceMean<axes = [1]>(s)  y = Add(x, r)", {**ZERO, **ONE},
        "(float[n, 8] x, int64[n] l) => (float[n, 8] y)"),
}  # fmt: skip

INDEPENDENT: dict[str, Small] = {
    "dense": Small("h = MatMul(x, w)  r = Relu(h)  y = Gemm(r, w)", W),
    "softmax": Small("h = MatMul(x, w)  y = Softmax(h)", W),
    "old_softmax": Small("y = Softmax(x)", opset=11),
    "layer_norm": Small("a = LayerNormalization(x, s)  y = Erf(a)", {"s": np.ones(8, np.float32)}),
    "unit_rows": Small("y = LpNormalization<axis = 1>(x)"),
    "cumulative_sum": Small("y = CumSum(x, a)", {"a": np.array(1)}),
    "labels": Small("h = MatMul(x, w)  y = ArgMax<axis = 1, keepdims = 1>(h)", W, LABELS),
    "half": Small("h = MatMul(x, w)  l = ReduceL2<axes = [1], keepdims = 1>(h)  y = Div(h, l)",
                  {"w": (drawn(8, 512) / 4).astype(np.float16)}, "(float16[n, 8] x) => (float16[n, 512] y)"),
    "convolution": Small(
        "c = Conv(x, k)  b = BatchNormalization(c, s, o, m, v)  r = Relu(b)  p = GlobalAveragePool(r)  y = Flatten(p)",
        {"k": drawn(4, 3, 3, 3), "s": drawn(4), "o": drawn(4), "m": drawn(4), "v": np.ones(4, np.float32)}, PICTURE),
    "squeeze_and_excite": Small(
        "c = Conv(x, k)  p = GlobalAveragePool(c)  h = Sigmoid(p)  m = Mul(c, h)  q = MaxPool<kernel_shape = [2, 2]>(m)  "
        "y = ReduceMean<axes = [2, 3], keepdims = 0>(q)", {"k": drawn(4, 3, 3, 3)}, PICTURE),
    "resized": Small(
        'c = Conv<pads = [1, 1, 1, 1]>(x, k)  r = Resize<mode = "linear">(c, , scales)  y = ReduceMax<axes = [2, 3], keepdims = 0>(r)',
        {"k": drawn(4, 3, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)}, PICTURE),
    "shuffled_channels": Small(
        "c = Conv(x, k)  a = Reshape(c, s)  t = Transpose<perm = [0, 2, 1, 3, 4]>(a)  r = Reshape(t, b)  "
        "y = ReduceMean<axes = [2, 3], keepdims = 0>(r)",
        {"k": drawn(4, 3, 3, 3), "s": np.array([-1, 2, 2, 6, 6]), "b": np.array([-1, 4, 6, 6])}, PICTURE),
    "static_quantization": Small(
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, w)",
        {**W, "s": np.float32(0.02), "z": np.uint8(128)}),
    "attention_over_steps": Small(
        "q = MatMul(x, w)  k = Transpose<perm = [0, 2, 1]>(x)  s = MatMul(q, k)  p = Softmax(s)  y = MatMul(p, x)", W, SEQUENCE),
    "heads_as_exported": Small(
        "q = MatMul(x, w)  a = Reshape(q, s)  t = Transpose<perm = [0, 2, 1, 3]>(a)  k = Transpose<perm = [0, 1, 3, 2]>(t)  "
        "m = MatMul(t, k)  p = Softmax(m)  v = MatMul(p, t)  b = Transpose<perm = [0, 2, 1, 3]>(v)  y = Reshape(b, j)",
        {**W, "s": np.array([0, 0, 2, 4]), "j": np.array([0, 0, 8])}, SEQUENCE),
    "heads_beside_rows": Small(  # [rows * heads, steps, size]
        "n1 = Shape<start = 0, end = 1>(x)  nh = Mul(n1, two)  sh = Concat<axis = 0>(nh, five, four)  "
        "sa = Concat<axis = 0>(n1, two, five, four)  q = MatMul(x, w)  a = Reshape(q, apart)  "
        "t = Transpose<perm = [0, 2, 1, 3]>(a)  f = Reshape(t, sh)  k = Transpose<perm = [0, 2, 1]>(f)  m = MatMul(f, k)  "
        "p = Softmax(m)  v = MatMul(p, f)  u = Reshape(v, sa)  b = Transpose<perm = [0, 2, 1, 3]>(u)  y = Reshape(b, j)",
        {**W, "two": np.array([2]), "four": np.array([4]), "five": np.array([5]), "apart": np.array([0, 0, 2, 4]),
         "j": np.array([0, 0, 8])}, SEQUENCE),
    "steps_first_inside": Small(  # as torch.nn.MultiheadAttention: [steps, rows * heads, size]
        "t = Transpose<perm = [1, 0, 2]>(x)  q = MatMul(t, w)  a = Reshape(q, s)  f = Transpose<perm = [1, 0, 2]>(a)  "
        "k = Transpose<perm = [0, 2, 1]>(f)  m = MatMul(f, k)  p = Softmax(m)  v = MatMul(p, f)  "
        "b = Transpose<perm = [1, 0, 2]>(v)  c = Reshape(b, j)  y = Transpose<perm = [1, 0, 2]>(c)",
        {**W, "s": np.array([5, -1, 4]), "j": np.array([5, -1, 8])}, SEQUENCE),
    "folded_dense": Small("f = Reshape(x, s)  h = Gemm(f, w)  r = Tanh(h)  y = Reshape(r, b)",
                          {**W, "s": np.array([-1, 8]), "b": np.array([-1, 5, 8])}, SEQUENCE),
    "embedding": Small(
        "e = Gather(table, ids)  p = ReduceMean<axes = [1], keepdims = 0>(e)  y = MatMul(p, w)", {**W, "table": drawn(100, 8)},
        "(int64[n, 5] ids) => (float[n, 8] y)"),
    "masked_mean": Small(
        "e = Gather(table, ids)  f = Cast<to = 1>(mask)  m = Unsqueeze(f, two)  h = Mul(e, m)  s = ReduceSum<keepdims = 0>(h, one)  "
        "c = ReduceSum<keepdims = 1>(f, one)  d = Max(c, little)  y = Div(s, d)",
        {"table": drawn(100, 8), "two": np.array([2]), **ONE, "little": np.float32(1e-6)},
        "(int64[n, 5] ids, int64[n, 5] mask) => (float[n, 8] y)"),
    "positions_of_steps": Small(
        "n1 = Shape(x)  t = Gather(n1, s1)  r = Range(s0, t, s1)  p = Gather(table, r)  h = Add(x, p)  y = MatMul(h, w)",
        {**W, "s0": np.array(0), "s1": np.array(1), "table": drawn(16, 8)}, "(float[n, t, 8] x) => (float[n, t, 8] y)"),
    "a_token_in_front": Small(
        "n1 = Shape<start = 0, end = 1>(x)  s = Concat<axis = 0>(n1, one, eight)  c = Expand(token, s)  "
        "h = Concat<axis = 1>(c, x)  k = Transpose<perm = [0, 2, 1]>(h)  m = MatMul(h, k)  p = Softmax(m)  v = MatMul(p, h)  "
        "y = Gather<axis = 1>(v, s0)",
        {**ONE, "eight": np.array([8]), "token": drawn(1, 1, 8), "s0": np.array(0)}, "(float[n, 5, 8] x) => (float[n, 8] y)"),
    "causal_mask": Small(
        "q = MatMul(x, w)  k = Transpose<perm = [0, 2, 1]>(q)  m = MatMul(q, k)  a = Add(m, mask)  p = Softmax(a)  y = MatMul(p, q)",
        {**W, "mask": np.triu(np.full((5, 5), -1e9, np.float32), 1)}, SEQUENCE),
    "lstm": Small(
        "t = Transpose<perm = [1, 0, 2]>(x)  a, h = LSTM<hidden_size = 8>(t, lw, lr)  s = Squeeze(a, one)  "
        "y = Transpose<perm = [1, 0, 2]>(s)", {**RNN, **ONE}, SEQUENCE),
    "lstm_with_a_first_state": Small(
        "n1 = Shape<start = 0, end = 1>(x)  s = Concat<axis = 0>(one, n1, eight)  h0 = ConstantOfShape(s)  "
        "t = Transpose<perm = [1, 0, 2]>(x)  a, h = LSTM<hidden_size = 8>(t, lw, lr, , , h0, h0)  y = Squeeze(h, zero)",
        {**RNN, **ONE, **ZERO, "eight": np.array([8])}, "(float[n, 5, 8] x) => (float[n, 8] y)"),
    "gru_last_state": Small("t = Transpose<perm = [1, 0, 2]>(x)  a, h = GRU<hidden_size = 8>(t, w3, r3)  y = Squeeze(h, zero)",
                            {"w3": drawn(1, 24, 8), "r3": drawn(1, 24, 8), **ZERO}, "(float[n, 5, 8] x) => (float[n, 8] y)"),
    "pieces": Small("a, b = Split<axis = 1>(x)  c = Sigmoid(b)  d = Mul(a, c)  y = Concat<axis = 1>(d, a)"),
    "twins": Small(  # two inputs through one encoder, stacked and cut apart again
        "n1 = Shape<start = 0, end = 1>(x)  nn = Add(n1, n1)  s = Concat<axis = 0>(x, z)  h = MatMul(s, w)  "
        "a = Slice(h, zero, n1, zero)  b = Slice(h, n1, nn, zero)  y = Mul(a, b)", {**W, **ZERO},
        "(float[n, 8] x, float[n, 8] z) => (float[n, 8] y)"),
    "columns": Small("a = Slice(x, zero, four, one)  p = Pad(a, pads)  y = Where(m, p, x)",
                     {**ZERO, **ONE, "four": np.array([4]), "pads": np.array([0, 2, 0, 2]), "m": np.arange(8) % 2 == 0}),
    "sorted_features": Small("v, i = TopK<axis = 1>(x, k)  y = GatherElements<axis = 1>(x, i)", {"k": np.array([8])}),
    "products_by_einsum": Small('y = Einsum<equation = "nti,nsi->nts">(x, x)', {}, "(float[n, 5, 8] x) => (float[n, 5, 5] y)"),
    "a_choice_of_shape": Small(
        "s = Shape<start = 1, end = 2>(x)  c = Equal(s, eight)  y = If(c) <then_branch = a () => (float[n, 8] t) "
        "{ t = Neg(x) }, else_branch = b () => (float[n, 8] e) { m = ReduceMean<axes = [0]>(x)  e = Sub(x, m) }>",
        {"eight": np.array([8])}),
    "in_a_function": Small("y = own.center(x)", extra=', "own" : 1',
                           functions='<domain: "own", opset_import: ["" : 17]> center (a) => (b) '
                                     "{ m = ReduceMean<axes = [1]>(a)  b = Sub(a, m) }"),
    "written_in_place": Small(  # as torch exports x[:, 0] = ...
        "n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  r = Range(s0, n0, s1)  c = Unsqueeze(r, one)  k = Mul(c, s0)  "
        "i = Concat<axis = 1>(c, k)  g = Gather<axis = 1>(x, s1)  y = ScatterND(x, i, g)",
        {"s0": np.array(0), "s1": np.array(1), **ONE}),
    "an_element_of_each_row": Small(
        "n1 = Shape<start = 0, end = 1>(x)  n0 = Squeeze(n1)  r = Range(s0, n0, s1)  c = Unsqueeze(r, one)  k = Mul(c, s0)  "
        "i = Concat<axis = 1>(c, k)  h = MatMul(x, w)  y = GatherND(h, i)", {**W, "s0": np.array(0), "s1": np.array(1), **ONE},
        "(float[n, 8] x) => (float[n] y)"),
    "one_hot": Small("o = OneHot(ids, depth, onoff)  y = MatMul(o, w)",
                     {**W, "depth": np.array(8), "onoff": np.array([0, 1], np.float32)}, "(int64[n] ids) => (float[n, 8] y)"),
    "tiled": Small("u = Unsqueeze(x, one)  t = Tile(u, times)  y = ReduceSum<keepdims = 0>(t, one)",
                   {**ONE, "times": np.array([1, 3, 1])}),
    "trees": Small(
        "y = ai.onnx.ml.LinearRegressor<coefficients = [0.5, 1.0, 2.0, 3.0, 1.0, 0.1, 0.2, 0.3], intercepts = [1.0]>(x)",
        signature="(float[n, 8] x) => (float[n, 1] y)", extra=', "ai.onnx.ml" : 3'),
    "gelu": Small("a = Div(x, root)  e = Erf(a)  o = Add(e, one)  m = Mul(x, o)  y = Mul(m, half)",
                  {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}),
    "detector_head": Small(
        "c = Conv(x, k)  r = Reshape(c, s)  t = Transpose<perm = [0, 2, 1]>(r)  p = Sigmoid(t)  y = ReduceMax<axes = [1], keepdims = 0>(p)",
        {"k": drawn(4, 3, 3, 3), "s": np.array([0, 4, -1])}, PICTURE),
    "empty_cache": Small("k = Concat<axis = 1>(past, x)  y = ReduceMean<axes = [1], keepdims = 0>(k)", {},
                         "(float[n, 5, 8] x, float[n, p, 8] past) => (float[n, 8] y)"),
}  # fmt: skip
