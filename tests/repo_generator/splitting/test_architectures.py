"""Real architectures, cut into 2, 3 and 10 blocks: in a row they answer what the whole answers."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.splitting.blocks import Blocks, open_model
from tidegate_repo_generator.splitting.cutting import CutRefused, Cutter
from tidegate_repo_generator.splitting.run_times import data_times, equal_cuts, measure_nodes
from tidegate_repo_generator.splitting.verification import RELATIVE_TOLERANCE, compose, reference

COUNTS = (2, 3, 10)
TRIES = 5
"""How often nodes are timed."""


def check(path: Path, shapes: dict[str, tuple[int, ...]], *, batch_dim: bool) -> Cutter:
    cutter, _, source = open_model(path, shapes, batch_dim=batch_dim)
    feed = cutter.probe.sampler.rows(1)
    for tries in count(1):
        times = data_times(cutter.flow, measure_nodes(cutter.flow, source.folder, feed, runs=1))
        try:
            cuts = {number: Blocks(cutter, source, equal_cuts(cutter, times, number)) for number in COUNTS}
            break
        except SplitError:  # a busy machine may stretch one node so far that too few places are left for ten blocks
            if tries == TRIES:
                raise
    inner = frozenset[str]().union(*(value for blocks in cuts.values() for value in blocks.crossings))
    expected = reference(cutter.flow, source.folder, cutter.probe.sampler, inner)
    for output in expected.outputs.values():
        assert output.std() > 1e-6  # a saturated output would hide what goes wrong before it
    for parts, blocks in cuts.items():
        assert len(blocks.spans) == parts
        models = (blocks.model(number, number + 1) for number in range(parts))
        assert compose(models, source.folder, expected, lambda: None) <= RELATIVE_TOLERANCE
        joined = [blocks.model(0, 1), blocks.model(1, parts)]
        assert compose(joined, source.folder, expected, lambda: None) <= RELATIVE_TOLERANCE
    return cutter


@pytest.mark.parametrize(
    "name",
    [
        "shufflenet",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("squeezenet", "inception_v1", "inception_v2", "resnet50", "densenet121")
        ),
        *(pytest.param(name, marks=pytest.mark.huge) for name in ("bvlc_alexnet", "zfnet512", "vgg19")),
    ],
)
def test_light_models(light_model: Callable[[str], Path], name: str) -> None:
    check(light_model(name), {}, batch_dim=True)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cls", (3, 48, 192)),
        ("rec", (3, 48, 96)),
        pytest.param("det", (3, 64, 96), marks=pytest.mark.slow),
    ],
)
def test_text_recognition(ocr_models: dict[str, Path], name: str, sizes: tuple[int, ...]) -> None:
    check(ocr_models[name], {"x": sizes}, batch_dim=False)


def test_an_encoder(save_text: Callable[..., Path]) -> None:
    """Causal attention as PyTorch exports it: heads split by shape arithmetic, products over [rows * heads, t, d]."""
    body = """
        s = Shape(ids)  i0 = Constant<value = int64 {0}>()  i1 = Constant<value = int64 {1}>()
        z = Constant<value_ints = [0]>()  one = Constant<value_ints = [1]>()
        b0 = Gather(s, i0)  t0 = Gather(s, i1)  b = Unsqueeze(b0, z)  t = Unsqueeze(t0, z)
        two = Constant<value_ints = [2]>()  d4 = Constant<value_ints = [4]>()  d8 = Constant<value_ints = [8]>()
        bh = Mul(b, two)  flat = Concat<axis = 0>(bh, t, d4)  apart = Concat<axis = 0>(b, t, two, d4)
        heads = Concat<axis = 0>(b, two, t, d4)  joined = Concat<axis = 0>(b, t, d8)
        place = Range(i0, t0, i1)  places = Gather(wp, place)  words = Gather(we, ids)  x0 = Add(words, places)
        row = Unsqueeze(place, one)  column = Unsqueeze(place, z)  later = Less(row, column)
        low = Constant<value = float {-10000.0}>()  zero = Constant<value = float {0.0}>()
        mask = Where(later, low, zero)"""
    generator = np.random.default_rng(0)
    sizes = {"wp": (64, 8), "we": (2, 8)}
    for n in range(2):
        for q in "qkv":
            sizes[f"w{n}{q}"] = (8, 8)
            body += f"""
        {q}{n}a = MatMul(x{n}, w{n}{q})  {q}{n}b = Reshape({q}{n}a, apart)
        {q}{n}c = Transpose<perm = [0, 2, 1, 3]>({q}{n}b)  {q}{n} = Reshape({q}{n}c, flat)"""
        body += f"""
        k{n}t = Transpose<perm = [0, 2, 1]>(k{n})  a{n} = MatMul(q{n}, k{n}t)  m{n} = Add(a{n}, mask)
        p{n} = Softmax<axis = -1>(m{n})  c{n} = MatMul(p{n}, v{n})  c{n}a = Reshape(c{n}, heads)
        c{n}b = Transpose<perm = [0, 2, 1, 3]>(c{n}a)  c{n}c = Reshape(c{n}b, joined)  x{n + 1} = Add(c{n}c, x{n})"""
    weights = {name: generator.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    path = save_text(f"g (int64[n, t] ids) => (float[n, t, 8] x2) {{ {body} }}", weights)
    cutter = check(path, {"ids": (6,)}, batch_dim=False)
    refused = []
    for position in range(1, cutter.end):
        try:
            assert cutter.crossing(position).isdisjoint({"mask", "places", "later"})  # all made of shapes
        except CutRefused:
            refused.append(cutter.flow.label(cutter.flow.data_nodes[position - 1]))
    assert refused == ["a0", "m0", "p0", "c0", "a1", "m1", "p1", "c1"]  # between the products, rows are not apart
