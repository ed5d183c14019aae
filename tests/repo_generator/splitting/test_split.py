"""Cuts of small models: what crosses, what is repeated, what is refused; the blocks answer what the whole does."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.splitting.blocks import open_blocks, write_partition
from tidegate_repo_generator.splitting.manifest import Manifest, read_manifest
from tidegate_repo_generator.splitting.probing import size_in_bytes
from tidegate_repo_generator.splitting.split import split_model

Arrays = dict[str, NDArray[Any]]
SaveText = Callable[..., Path]
RunAll = Callable[..., Arrays]
SplitAndCompare = Callable[..., Manifest]
GENERATOR = np.random.default_rng(1)


def floats(*shape: int) -> NDArray[np.float32]:
    return GENERATOR.standard_normal(shape).astype(np.float32)


@pytest.fixture
def split_and_compare(tmp_path: Path, run_all: RunAll) -> SplitAndCompare:
    """Split at tensors; run blocks and every joined partition on `feed`; compare with the whole."""

    def check(path: Path, at: list[str], feed: Arrays, **options: Any) -> Manifest:
        manifest = split_model(path, tmp_path / "blocks", at=at, force=True, **options)
        whole = run_all([path], feed)
        outputs = [entry.name for entry in onnx.load(path, load_external_data=False).graph.output]
        blocks = open_blocks(tmp_path / "blocks")
        count = len(manifest.blocks)
        for middle in range(1, count + 1):
            bounds = sorted({0, 1, middle, count})
            parts = []
            for first, last in pairwise(bounds):
                parts.append(tmp_path / f"part-{first}-{last}.onnx")
                blocks.save(first, last, parts[-1])
            answer = run_all(parts, feed)
            for name in outputs:
                np.testing.assert_allclose(answer[name], whole[name], rtol=1e-5, atol=1e-6)
        files = [tmp_path / "blocks" / block.file for block in manifest.blocks]
        answer = run_all(files, feed)
        for name in outputs:
            np.testing.assert_allclose(answer[name], whole[name], rtol=1e-5, atol=1e-6)
        for file in files:
            onnx.checker.check_model(str(file))
        return manifest

    return check


def crossing(manifest: Manifest, cut: int = 0) -> list[str]:
    return [tensor.name for tensor in manifest.crossings[cut]]


def test_several_tensors_cross(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    path = save_text("""g (float[n, 4] x) => (float[n, 4] y, float[n, 4] early) {
        a = Relu(x)  early = Neg(a)  b = Sigmoid(a)  c = Add(a, b)  y = Mul(c, x) }""")
    manifest = split_and_compare(path, ["b"], {"x": floats(5, 4)})
    assert crossing(manifest) == ["x", "a", "b"]
    assert manifest.cut_bytes == [3 * 16]
    assert manifest.blocks[0].outputs == ["a", "b", "early"]
    tensor = manifest.crossings[0][1]
    assert (tensor.data_type, tensor.shape, tensor.bytes_per_row, tensor.fp16_bytes_per_row) == (
        "FP32",
        ["n", 4],
        16,
        8,
    )


def test_a_tensor_skips_a_block(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Add(c, a) }")
    manifest = split_and_compare(path, ["a", "b", "c"], {"x": floats(2, 4)})
    assert [crossing(manifest, cut) for cut in range(3)] == [["a"], ["a", "b"], ["a", "c"]]
    assert [block.inputs for block in manifest.blocks] == [["x"], ["a"], ["b"], ["a", "c"]]


def test_weights_are_only_where_they_are_used(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    path = save_text(
        """g (float[n, 4] x) => (float[n, 4] y) {
        k = Constant<value = float[4] {1, 2, 3, 4}>()  s = Neg(both)
        a = MatMul(x, w)  b = Add(a, s)  c = MatMul(b, v)  d = Mul(c, s)  y = Add(d, k) }""",
        {"w": floats(4, 4), "v": floats(4, 4), "both": floats(4)},
    )
    manifest = split_and_compare(path, ["b"], {"x": floats(3, 4)})
    names = [
        sorted(tensor.name for tensor in onnx.load(tmp_path / "blocks" / block.file).graph.initializer)
        for block in manifest.blocks
    ]
    assert names == [["both", "w"], ["both", "v"]]
    assert [block.weight_bytes for block in manifest.blocks] == [80, 96]
    assert manifest.blocks[0].nodes == ["a", "b"]


def test_shape_arithmetic_is_computed_again(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    """The batch size of x, taken early and used late: x itself need not cross for its shape."""
    path = save_text(
        """g (float[n, 3, h, w] x) => (float[n, m] y) {
        s = Shape(x)  i = Constant<value = int64[1] {0}>()  m1 = Constant<value = int64[1] {-1}>()
        batch = Gather<axis = 0>(s, i)  target = Concat<axis = 0>(batch, m1)
        a = Relu(x)  b = GlobalAveragePool(a)  c = Exp(b)  y = Reshape(c, target) }"""
    )
    manifest = split_and_compare(path, ["b"], {"x": floats(4, 3, 8, 6)}, shapes={"x": (3, 8, 6)})
    assert crossing(manifest) == ["b"]
    operators = [node.op_type for node in onnx.load(tmp_path / "blocks" / "01.onnx").graph.node]
    assert operators == ["Shape", "Gather", "Concat", "Cast", "Exp", "Reshape"]


def test_sizes_that_no_crossing_tensor_has_bring_their_tensor_along(
    save_text: SaveText, split_and_compare: SplitAndCompare
) -> None:
    path = save_text(
        """g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) {
        s = Shape(x)  b = GlobalAveragePool(x)  c = Exp(b)  y = Expand(c, s) }"""
    )
    manifest = split_and_compare(path, ["b"], {"x": floats(2, 3, 5, 7)})
    assert crossing(manifest) == ["x", "b"]


def test_positions_in_the_batch_do_not_cross(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    """0, 1, 2... has the batch first, but a row's number is another one in another batch."""
    path = save_text(
        """g (float[n, 4] x) => (float[n] y) {
        s = Shape(x)  i = Constant<value = int64 {0}>()  n1 = Gather<axis = 0>(s, i)
        zero = Constant<value = int64 {0}>()  one = Constant<value = int64 {1}>()
        rows = Range(zero, n1, one)  m1 = Constant<value = int64[2] {-1, 1}>()  r = Reshape(rows, m1)
        a = Exp(x)  z = Mul(r, zero)  index = Concat<axis = 1>(r, z)  y = GatherND(a, index) }"""
    )
    manifest = split_and_compare(path, ["a"], {"x": floats(3, 4)})
    assert crossing(manifest) == ["a"]


def test_a_transposed_tensor_is_transposed_again(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    path = save_text("""g (float[n, 4, 2] x) => (float[n, 4, 2] y) {
        a = Relu(x)  t = Transpose<perm = [1, 0, 2]>(a)  b = Exp(t)  c = Add(b, t)
        y = Transpose<perm = [1, 0, 2]>(c) }""")
    manifest = split_and_compare(path, ["b"], {"x": floats(3, 4, 2)})
    assert crossing(manifest) == ["a"]


def test_a_tensor_with_the_batch_elsewhere_crosses_transposed(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    """Two LSTM in a row, [time, batch, features] between them; their initial states are zeros by the shape of x."""
    path = save_text(
        """g (float[n, t, 3] x) => (float[n, t, 2] y) {
        s = Shape(x)  i = Constant<value = int64 {0}>()  rows = Gather(s, i)  z = Constant<value_ints = [0]>()
        n1 = Unsqueeze(rows, z)  state = Concat<axis = 0>(one, n1, two)  h = ConstantOfShape(state)
        time_first = Transpose<perm = [1, 0, 2]>(x)
        first = LSTM<hidden_size = 2>(time_first, w, r, , , h, h)  a = Squeeze(first, one)
        second = LSTM<hidden_size = 2>(a, v, r, , , h, h)  b = Squeeze(second, one)
        y = Transpose<perm = [1, 0, 2]>(b) }""",
        {"one": np.array([1]), "two": np.array([2]), "w": floats(1, 8, 3), "v": floats(1, 8, 2), "r": floats(1, 8, 2)},
    )
    feed = {"x": floats(5, 7, 3)}
    manifest = split_and_compare(path, ["first", "second"], feed, shapes={"x": (4, 3)})
    assert [crossing(manifest, cut) for cut in range(2)] == [["first_batch_first"], ["second_batch_first"]]
    tensor = manifest.crossings[0][0]
    assert (tensor.value, tensor.shape[0], len(tensor.shape), tensor.bytes_per_row) == ("first", "n", 4, 4 * 2 * 4)
    halved = split_model(path, tmp_path / "halved", at=["first"], fp16=True)
    assert crossing(halved) == ["first_batch_first_fp16"]
    operators = [node.op_type for node in onnx.load(tmp_path / "halved/01.onnx").graph.node]
    assert operators[:2] == ["Cast", "Transpose"]


def branches(save_text: SaveText) -> Path:
    """`If` with captured values: data (`a`), a weight (`w`), and one captured through an inner `If` (`b`)."""
    then_inner = helper.make_graph([helper.make_node("Add", ["a", "b"], ["ti"])], "ti", [], [info("ti")])
    else_inner = helper.make_graph([helper.make_node("Sub", ["a", "b"], ["ei"])], "ei", [], [info("ei")])
    inner = helper.make_node("If", ["yes"], ["tn"], then_branch=then_inner, else_branch=else_inner)
    then = helper.make_graph([inner, helper.make_node("Mul", ["tn", "w"], ["to"])], "then", [], [info("to")])
    other = helper.make_graph([helper.make_node("Neg", ["a"], ["eo"])], "else", [], [info("eo")])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Sigmoid", ["x"], ["c"]),
        helper.make_node("If", ["yes"], ["d"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    model = onnx.load(path)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    weights = {"w": floats(4), "yes": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def info(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])


def test_values_that_subgraphs_capture_cross(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    manifest = split_and_compare(branches(save_text), ["c"], {"x": floats(3, 4)})
    assert crossing(manifest) == ["a", "b", "c"]
    second = onnx.load(tmp_path / "blocks" / "01.onnx").graph
    assert [node.op_type for node in second.node] == ["If", "Add"]
    assert {tensor.name for tensor in second.initializer} == {"w", "yes"}


def test_a_loop_stays_whole(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    path = save_text("""g (float[n, 4] x) => (float[n, 4] y) {
        trips = Constant<value = int64 {3}>()  yes = Constant<value_int = 1>()  go = Cast<to = 9>(yes)
        a = Relu(x)  b = Exp(a)
        c = Loop(trips, go, b) <body = body (int64 i, bool keep, float[n, 4] s) => (bool next, float[n, 4] t) {
            next = Identity(keep)  t = Add(s, a) }>
        y = Neg(c) }""")
    with pytest.raises(SplitError, match=r"what node 'c' \(Loop\) does to rows is unknown.* say --independent-rows"):
        split_and_compare(path, ["b", "c"], {"x": floats(2, 4)})
    manifest = split_and_compare(path, ["b", "c"], {"x": floats(2, 4)}, independent_rows=True)
    assert crossing(manifest, 0) == ["a", "b"]
    assert crossing(manifest, 1) == ["c"]


def test_local_functions_domains_opsets_and_metadata_stay(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    path = save_text(
        "g (float[n, 4] x) => (float[n, 4] y) { a = own.twice(x)  b = own.once(a)  y = com.microsoft.Gelu(b) }",
        header='<ir_version: 8, opset_import: ["" : 16, "own" : 3, "com.microsoft" : 1], producer_name: "us", '
        'metadata_props: ["character" : "abc"]>',
        functions="""<domain: "own", opset_import: ["" : 16, "own" : 3]> once (u) => (v) { v = Relu(u) }
        <domain: "own", opset_import: ["" : 16, "own" : 3]> twice (u) => (v) { t = own.once(u)  v = Neg(t) }""",
    )
    original = onnx.load(path)
    manifest = split_and_compare(path, ["a", "b"], {"x": floats(2, 4)}, independent_rows=True)
    models = [onnx.load(tmp_path / "blocks" / block.file) for block in manifest.blocks]
    for model in models:
        assert list(model.opset_import) == list(original.opset_import)
        assert list(model.metadata_props) == list(original.metadata_props)
        assert (model.ir_version, model.producer_name) == (8, "us")
    assert [[entry.name for entry in model.functions] for model in models] == [["once", "twice"], ["once"], []]


def test_external_data(save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path) -> None:
    path = save_text(
        "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, v) }",
        {"w": floats(64, 64), "v": floats(64, 64)},
    )
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin")
    split_and_compare(path, ["b"], {"x": floats(2, 64)})
    written = {file.name: file.stat().st_size for file in (tmp_path / "blocks").iterdir()}
    assert written["00.onnx.data"] == written["01.onnx.data"] == 64 * 64 * 4
    assert written["model.onnx.data"] == 2 * 64 * 64 * 4
    assert "00.onnx.data" in {
        entry.value
        for entry in onnx.load(tmp_path / "blocks/00.onnx", load_external_data=False).graph.initializer[0].external_data
    }


def test_fp16_at_the_boundary(save_text: SaveText, run_all: RunAll, tmp_path: Path) -> None:
    path = save_text(
        """g (float[n, 4] x, int64[n] k) => (float[n, 4] y, int64[n] z) {
        a = Tanh(x)  b = Neg(k)  y = Exp(a)  z = Abs(b) }"""
    )
    manifest = split_model(path, tmp_path / "blocks", at=["b"], fp16=True)
    assert [(t.name, t.value, t.data_type, t.bytes_per_row) for t in manifest.crossings[0]] == [
        ("a_fp16", "a", "FP16", 8),
        ("b", "b", "INT64", 8),
    ]
    assert manifest.verification.fp16_max_difference is not None
    assert 1e-6 < manifest.verification.fp16_max_difference < 1e-3
    feed = {"x": floats(3, 4), "k": np.arange(3)}
    answer = run_all([tmp_path / "blocks/00.onnx", tmp_path / "blocks/01.onnx"], feed)
    np.testing.assert_allclose(answer["y"], np.exp(np.tanh(feed["x"]).astype(np.float16).astype(np.float32)), rtol=1e-6)
    assert answer["a_fp16"].dtype == np.float16
    write_partition(tmp_path / "blocks", 0, 2, tmp_path / "whole.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "whole.onnx").graph.node] == ["Tanh", "Neg", "Exp", "Abs"]


def test_an_output_that_crosses_as_fp16_is_also_answered_in_full(
    save_text: SaveText, run_all: RunAll, tmp_path: Path
) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] a, float[n, 4] y) { a = Tanh(x)  y = Exp(a) }")
    manifest = split_model(path, tmp_path / "blocks", at=["a"], fp16=True)
    assert manifest.blocks[0].outputs == ["a", "a_fp16"]
    feed = {"x": floats(2, 4)}
    answer = run_all([tmp_path / "blocks/00.onnx", tmp_path / "blocks/01.onnx"], feed)
    np.testing.assert_allclose(answer["a"], np.tanh(feed["x"]), rtol=1e-6)


def test_strings_cross(save_text: SaveText, run_all: RunAll, tmp_path: Path) -> None:
    path = save_text("""g (string[n, 2] x, float[n, 2] u) => (string[n, 2] y, float[n, 2] v) {
        a = Identity(x)  b = Neg(u)  y = Identity(a)  v = Exp(b) }""")
    manifest = split_model(path, tmp_path / "blocks", at=["b"])
    assert [(tensor.name, tensor.data_type) for tensor in manifest.crossings[0]] == [("a", "STRING"), ("b", "FP32")]
    feed = {"x": np.array([["a", "bc"], ["d", ""]], dtype=object), "u": floats(2, 2)}
    answer = run_all([tmp_path / "blocks/00.onnx", tmp_path / "blocks/01.onnx"], feed)
    np.testing.assert_array_equal(answer["y"], feed["x"])


def test_old_files_list_their_weights_among_the_inputs(
    save_text: SaveText, split_and_compare: SplitAndCompare, tmp_path: Path
) -> None:
    path = save_text(
        "g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { a = Relu(x)  y = MatMul(a, w) }",
        {"w": floats(4, 4)},
        header='<ir_version: 3, opset_import: ["" : 9]>',
    )
    manifest = split_and_compare(path, ["a"], {"x": floats(2, 4)})
    assert manifest.blocks[1].inputs == ["a"]
    assert [value.name for value in onnx.load(tmp_path / "blocks/01.onnx").graph.input] == ["a", "w"]


def test_dynamic_axes_stay_dynamic(
    save_text: SaveText, split_and_compare: SplitAndCompare, run_all: RunAll, tmp_path: Path
) -> None:
    path = save_text(
        """g (float[n, c, h, w] x) => (float[n, c, h, w] y) {
        a = Relu(x)  b = MaxPool<kernel_shape = [2, 2]>(a)  y = Neg(b) }"""
    )
    manifest = split_and_compare(path, ["b"], {"x": floats(3, 2, 9, 5)}, shapes={"x": (2, 8, 8)})
    assert manifest.crossings[0][0].shape[:2] == ["n", "x_1"]
    assert manifest.crossings[0][0].bytes_per_row == 2 * 7 * 7 * 4
    feed = {"x": floats(1, 1, 30, 4)}
    files = [tmp_path / "blocks/00.onnx", tmp_path / "blocks/01.onnx"]
    np.testing.assert_array_equal(run_all(files, feed)["y"], run_all([path], feed)["y"])


def test_an_output_made_of_shapes_comes_last(save_text: SaveText, split_and_compare: SplitAndCompare) -> None:
    path = save_text("""g (float[n, 4] x) => (float[n, 4] y, int64[n, 4] z) {
        s = Shape(x)  z = ConstantOfShape<value = int64[1] {7}>(s)  a = Relu(x)  y = Exp(a) }""")
    manifest = split_and_compare(path, ["a"], {"x": floats(3, 4)})
    assert [block.outputs for block in manifest.blocks] == [["a"], ["y", "z"]]


def test_the_manifest_is_read_again(save_text: SaveText, tmp_path: Path) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)  y = Exp(a) }")
    manifest = split_model(path, tmp_path / "blocks", blocks=2)
    assert read_manifest(tmp_path / "blocks") == (tmp_path / "blocks", manifest)
    assert read_manifest(tmp_path / "blocks" / "blocks.json")[1] == manifest
    assert manifest.verification.max_difference == 0
    assert all(block.run_time_us is not None for block in manifest.blocks)


@pytest.mark.parametrize("at", [["a"], ["a", "b"]])
def test_inputs_that_come_back_are_given_by_the_first_block(
    save_text: SaveText, split_and_compare: SplitAndCompare, at: list[str]
) -> None:
    """A ticket beside the answer, and a mask that is also used."""
    path = save_text("""g (float[n, 4] x, int64[n, 1] ticket, float[n, 4] mask)
        => (float[n, 4] y, int64[n, 1] ticket, float[n, 4] mask) {
        m = Mul(x, mask)  a = Relu(m)  b = Exp(a)  y = Mul(b, mask) }""")
    tickets = np.array([[41], [42]])
    manifest = split_and_compare(path, at, {"x": floats(2, 4), "ticket": tickets, "mask": floats(2, 4)})
    assert manifest.blocks[0].inputs == ["mask", "ticket", "x"]
    assert {"ticket", "mask"} <= set(manifest.blocks[0].outputs)
    assert manifest.blocks[-1].outputs == ["y"]


def test_an_input_that_no_node_reads_is_taken_by_the_first_block(
    save_text: SaveText, split_and_compare: SplitAndCompare
) -> None:
    path = save_text("g (float[n, 4] x, float[n, 2] unread) => (float[n, 4] y) { a = Relu(x)  y = Exp(a) }")
    manifest = split_and_compare(path, ["a"], {"x": floats(2, 4), "unread": floats(2, 2)})
    assert manifest.blocks[0].inputs == ["unread", "x"]


@pytest.mark.parametrize(
    ("data_type", "elements", "size"),
    [
        (onnx.TensorProto.INT4, 7, 4),
        (onnx.TensorProto.UINT4, 8, 4),
        (onnx.TensorProto.FLOAT4E2M1, 2, 1),
        (onnx.TensorProto.FLOAT8E4M3FN, 3, 3),
        (onnx.TensorProto.BFLOAT16, 3, 6),
        (onnx.TensorProto.FLOAT, 3, 12),
        (onnx.TensorProto.BOOL, 3, 3),
        (onnx.TensorProto.STRING, 3, 12),
    ],
)
def test_elements_that_share_a_byte(data_type: int, elements: int, size: int) -> None:
    assert size_in_bytes(data_type, elements) == size
