"""What is known of shape vectors without running: against what a run gives."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tidegate_repo_generator.dataflow import Dataflow
from tidegate_repo_generator.splitting.symbols import KnownShape, known_values, read_symbols


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("v = Shape(x)", KnownShape(("batch", 3, "x_2"))),
        ("v = Shape<start = 1>(x)", KnownShape((3, "x_2"))),
        ("s = Shape(x)  v = Cast<to = 6>(s)", KnownShape(("batch", 3, "x_2"), data_type=6)),
        ("s = Shape(x)  v = Cast<to = 1>(s)", None),
        ("s = Shape(x)  i = Constant<value = int64 {-1}>()  v = Gather(s, i)", KnownShape(("x_2",), scalar=True)),
        (
            """s = Shape(x)  a = Constant<value_ints = [0]>()  b = Constant<value_ints = [1]>()  p = Slice(s, a, b, a)
            m = Constant<value_ints = [-1]>()  v = Concat<axis = 0>(p, m)""",
            KnownShape(("batch", -1)),
        ),
        (
            """s = Shape(x)  i = Constant<value = int64 {1}>()  c = Gather(s, i)  k = Constant<value_int = 2>()
            q = Mul(c, k)  e = Sub(q, i)  d = Div(e, k)  z = Constant<value_ints = [0]>()  v = Unsqueeze(d, z)""",
            KnownShape((2,)),
        ),
        ("s = Shape(x)  k = Constant<value_int = 2>()  v = Mul(s, k)", KnownShape((None, 6, None))),
    ],
)
def test_known_elements(save_text: Callable[..., Path], body: str, known: KnownShape | None) -> None:
    flow = Dataflow(onnx.load(save_text(f"g (float[n, 3, ?] x) => (float[n, 3, ?] y) {{ {body}  y = Relu(x) }}")))
    assert known_values(flow, read_symbols(flow).shapes).get("v") == known
