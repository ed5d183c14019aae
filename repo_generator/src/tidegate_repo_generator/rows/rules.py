"""What operators do to rows: for each, where its outputs have them, or why a row then knows of others.

A rule is only as wide as it is sure. What has no rule here is unknown: operators of other domains, loops, sequences.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import numpy as np

from tidegate_repo_generator.rows.axes import STANDARD, MixesError, Rows, UnknownError, View, flat_stride

States = list[Rows | None]
Rule = Callable[[View], States]
_MICROSOFT: Final = "com.microsoft"


def rule_of(node: Any) -> Rule:  # noqa: ANN401
    """The rule of a node's operator; for one without, a rule that says so."""
    domain = "" if node.domain in STANDARD else node.domain
    table = {"": _STANDARD_RULES, _MICROSOFT: _MICROSOFT_RULES, "ai.onnx.ml": _ML_RULES}.get(domain, {})
    return table.get(node.op_type, _no_rule)


def _no_rule(view: View) -> States:
    where = f" of {view.node.domain}" if view.node.domain not in STANDARD else ""
    raise UnknownError(f"there is no rule for this operator{where}")


def _mixes(reason: str) -> Rule:
    def rule(_: View) -> States:
        raise MixesError(reason)

    return rule


def _unknown(reason: str) -> Rule:
    def rule(_: View) -> States:
        raise UnknownError(reason)

    return rule


def _together(view: View, places: Iterable[tuple[int, Rows | None, int]]) -> Rows | None:
    """Where the result has its rows. `places`: an input, its rows, and how far its dimensions shift in the result."""
    found: Rows | None = None
    shifted = [(slot, rows.moved(rows.axis + shift), shift) for slot, rows, shift in places if rows is not None]
    shifted.sort(key=lambda entry: not view.is_data(entry[0]))
    for slot, rows, shift in shifted:
        if found is None:
            found = rows
        elif rows != found and not (
            not view.is_data(slot) and found.axis >= shift and view.agrees(slot, found.moved(found.axis - shift))
        ):
            raise MixesError("it has the rows of its inputs in different dimensions, so that each meets every other")
    return found


def _elementwise(view: View, slots: Iterable[int] | None = None) -> States:
    slots = view.slots() if slots is None else list(slots)
    rank = max((view.rank(slot) for slot in slots), default=0)
    return [_together(view, ((slot, view.rows(slot), rank - view.rank(slot)) for slot in slots))]


def _fixed_but(view: View, *slots: int) -> None:
    """Refuse rows in any other input."""
    for slot in view.slots():
        if slot not in slots and view.rows(slot) is not None:
            raise UnknownError(f"its '{view.node.input[slot]}' comes from the inputs")


def _first_elementwise(view: View) -> States:
    """One input gives the values; the others say how, for the whole tensor or a channel of it."""
    _fixed_but(view, 0)
    return [view.rows(0)]


def _axis(view: View, default: int, rank: int | None = None) -> int:
    rank = view.rank(0) if rank is None else rank
    return int(view.attributes.get("axis", default)) % max(rank, 1)


def _dropout(view: View) -> States:
    if view.opset >= 12:
        training = view.has(2) and any(view.fixed(2))
    else:
        training = view.opset < 7 and not view.attributes.get("is_test", 0)
    if training:
        raise UnknownError("it draws random numbers")
    return [view.rows(0)]


# Products.


def _matmul(view: View, left: int = 0, right: int = 1, *, others: tuple[int, ...] = ()) -> States:
    _fixed_but(view, left, right, *others)
    a, b = view.rows(left), view.rows(right)
    a_rank, b_rank = view.rank(left), view.rank(right)
    if (a and a.axis == a_rank - 1) or (b and b.axis == max(b_rank - 2, 0)):
        raise MixesError("it sums over the rows")
    full = max(a_rank, b_rank, 2)
    found = _together(view, ((left, a, full - max(a_rank, 2) if a_rank > 1 else 0), (right, b, full - b_rank)))
    if found and a_rank == 1 and found.axis > full - 2:
        found = found.moved(found.axis - 1)
    return [found]


def _qlinear_matmul(view: View) -> States:
    return _matmul(view, 0, 3)


def _gemm(view: View, *, left: int = 0, right: int = 1, bias: int = 2) -> States:
    _fixed_but(view, left, right, bias)
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


def _einsum(view: View) -> States:
    equation = view.attributes["equation"].decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    letters = terms.split(",")
    if not arrow or "..." in equation:
        raise UnknownError(f"its equation is {equation}")
    marks: dict[str, Rows] = {}
    for slot, term in enumerate(letters):
        rows = view.rows(slot)
        if rows is None:
            continue
        letter = term[rows.axis]
        if term.count(letter) > 1 or letter not in result:
            raise MixesError("it sums over the rows")
        marks[letter] = rows
    if len(marks) > 1:
        raise MixesError("it multiplies rows with rows")
    return [rows.moved(result.index(letter)) for letter, rows in marks.items()] or [None]


# Operators that take samples one by one.


def _samples(view: View, *, data: tuple[int, ...] = (0,), rank: int = 2) -> States:
    """The first dimension counts samples: of the inputs `data`, and of every output."""
    _fixed_but(view, *data)
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


def _all_samples(view: View) -> States:
    """As `_samples`, with any of the inputs."""
    return _samples(view, data=tuple(view.slots()), rank=1)


def _pool(view: View) -> States:
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis > 1:
        raise MixesError("its windows lie across the rows")
    return [rows]


def _max_pool(view: View) -> States:
    rows = _pool(view)[0]
    if len(view.node.output) > 1 and view.node.output[1] and view.analysis.is_read(view.node.output[1]):
        raise UnknownError("its second output counts through the whole batch")
    return [rows]


def _batch_normalization(view: View) -> States:
    if view.opset < 7:
        training = not view.attributes.get("is_test", 0)
    elif view.opset < 14:
        training = any(view.node.output[1:])
    else:
        training = bool(view.attributes.get("training_mode", 0))
    if training:
        raise MixesError("in training mode it normalises over the rows")
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis == 1 and view.rank(0) > 1:
        raise UnknownError("the rows are its channels")
    return [rows]


def _per_channel(view: View) -> States:
    """Normalises over the dimensions behind the channels."""
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis > 1:
        raise MixesError("it normalises over the rows")
    return [rows]


def _group_normalization(view: View) -> States:
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis > 0:
        raise MixesError("it normalises over the rows")
    return [rows]


def _normalization_from(view: View, *, default: int = -1) -> States:
    """Normalises over `axis` and all dimensions behind it."""
    _fixed_but(view, 0)
    rows, axis = view.rows(0), _axis(view, default)
    if rows and rows.axis >= axis:
        raise MixesError("it normalises over the rows")
    return [rows]


def _last_dimension(view: View, *, data: tuple[int, ...] = (0,)) -> States:
    """Normalises over the last dimension, behind sums of its inputs."""
    _fixed_but(view, *data)
    rows = _elementwise(view, (slot for slot in data if view.has(slot)))[0]
    if rows and rows.axis == view.rank(0) - 1:
        raise MixesError("it normalises over the rows")
    return [rows]


def _along(view: View, what: str, *, default: int = -1) -> States:
    """Works along one dimension, `axis`."""
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis == _axis(view, default):
        raise MixesError(f"it {what} the rows")
    return [rows]


def _mean_variance(view: View) -> States:
    axes = [axis % view.rank(0) for axis in view.attributes.get("axes", [0, 2, 3])]
    rows = view.rows(0)
    if rows and rows.axis in axes:
        raise MixesError("it normalises over the rows")
    return [rows]


def _softmax(view: View) -> States:
    rows = view.rows(0)
    old = view.opset < 13
    axis = _axis(view, 1 if old else -1)
    if rows and (rows.axis >= axis if old else rows.axis == axis):
        raise MixesError("it normalises over the rows")
    return [rows]


def _reduce(view: View) -> States:
    _fixed_but(view, 0)
    rows, rank = view.rows(0), view.rank(0)
    axes = view.attributes.get("axes")
    if axes is None and view.has(1):
        axes = view.fixed(1)
    if not axes and view.attributes.get("noop_with_empty_axes", 0):
        return [rows]
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    return _reduced(view, rows, reduced)


def _arg_reduce(view: View) -> States:
    return _reduced(view, view.rows(0), {_axis(view, 0)})


def _reduced(view: View, rows: Rows | None, reduced: set[int]) -> States:
    if rows and rows.axis in reduced:
        raise MixesError("it reduces the dimension of the rows")
    if rows and not view.attributes.get("keepdims", 1):
        rows = rows.moved(rows.axis - sum(1 for axis in reduced if axis < rows.axis))
    return [rows]


def _cumulative(view: View) -> States:
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis == view.fixed(1)[0] % view.rank(0):
        raise MixesError("it sums along the rows")
    return [rows]


def _top_k(view: View) -> States:
    rows = _along(view, "sorts")[0]
    if rows and view.has(1):
        view.fixed(1)
    return [rows]


def _dft(view: View) -> States:
    rows = view.rows(0)
    axis = _axis(view, 1)
    if view.opset >= 20:
        axis = view.fixed(2)[0] % view.rank(0) if view.has(2) else view.rank(0) - 2
    if view.has(1) and view.rows(1) is not None:
        raise UnknownError("its length comes from the inputs")
    if rows and rows.axis in (axis, view.rank(0) - 1):
        raise MixesError("it transforms along the rows")
    return [rows]


# Moving data.


def _transpose(view: View) -> States:
    rows = view.rows(0)
    order = list(view.attributes.get("perm", range(view.rank(0) - 1, -1, -1)))
    return [rows and rows.moved(order.index(rows.axis))]


def _reshape(view: View) -> States:
    """The elements stay in their order: the rows are as far apart as before."""
    if any(view.is_data(slot) for slot in view.slots()[1:]):
        raise UnknownError("its shape depends on the inputs' contents")
    rows = view.rows(0)
    if rows is None:
        return [None]
    shapes = [(run.rows, view.shape(0, i), view.out_shape(0, i)) for i, run in enumerate(view.analysis.seen)]
    if view.node.op_type == "Reshape" and view.has(1) and not view.attributes.get("allowzero", 0):
        for count in view.counts()[len(shapes) :]:
            before = list(view.shape(0))
            before[rows.axis] = rows.outer * count * rows.inner
            shapes.append((count, tuple(before), _target(before, view.at(1, count))))
    # A dimension of 1 may be anywhere: what one row shows must only not contradict the others.
    found = {_restrided(rows, *each) for each in shapes if each[0] > 1}
    if len(found) > 1:
        raise UnknownError("where it puts the rows depends on how many there are")
    return [found.pop()]


def _target(before: list[int], sizes: list[int]) -> tuple[int, ...]:
    """The shape that a reshape makes."""
    shape = [before[place] if size == 0 else size for place, size in enumerate(sizes)]
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = math.prod(before) // known if known else 0
    if math.prod(shape) != math.prod(before):
        raise UnknownError("its shape depends on the number of rows")
    return tuple(shape)


def _restrided(rows: Rows, count: int, before: tuple[int, ...], after: tuple[int, ...]) -> Rows:
    stride = flat_stride(before, rows)
    if stride == 0:
        raise UnknownError("it has no elements")
    for axis, size in enumerate(after):
        unit = math.prod(after[axis + 1 :])
        if stride % unit == 0 and unit * size % (stride * count) == 0 and stride * count <= unit * size:
            return Rows(axis, unit * size // (stride * count), stride // unit)
    raise MixesError(f"it spreads the rows over dimensions, {list(before)} to {list(after)}")


def _concat(view: View) -> States:
    axis = _axis(view, 1)
    slots = view.slots()
    states = [view.rows(slot) for slot in slots]
    found = next((rows for slot, rows in zip(slots, states, strict=True) if rows and view.is_data(slot)), None)
    if found is None:
        raise UnknownError("it has no rows")
    if found.axis != axis:
        return [_together(view, ((slot, rows, 0) for slot, rows in zip(slots, states, strict=True)))]
    if any(rows is None or rows.axis != axis or rows.inner != found.inner for rows in states):
        raise MixesError("it joins what is no row to the rows")
    return [Rows(axis, sum(rows.outer for rows in states if rows), found.inner)]


def _split(view: View) -> States:
    rows, axis = view.rows(0), _axis(view, 0)
    if view.has(1) and view.is_data(1):
        raise UnknownError("its sizes depend on the inputs' contents")
    if view.has(1) and (rows is None or rows.axis != axis):
        view.fixed(1)
    if rows is None or rows.axis != axis:
        return [rows] * len(view.node.output)
    return [
        _part(view, rows, [view.out_shape(place, run)[axis] for run in range(len(view.analysis.seen))])
        for place in range(len(view.node.output))
    ]


def _part(view: View, rows: Rows, sizes: list[int]) -> Rows:
    """Rows of a part of the dimension that they lie along: whole repetitions of all of them."""
    parts = {
        size // (run.rows * rows.inner) if size % (run.rows * rows.inner) == 0 else 0
        for size, run in zip(sizes, view.analysis.seen, strict=True)
    }
    if len(parts) > 1 or 0 in parts:
        raise MixesError("it takes some of the rows apart from the others")
    return Rows(rows.axis, parts.pop(), rows.inner)


def _slice(view: View) -> States:
    rows, rank = view.rows(0), view.rank(0)
    found: set[Rows | None] = set()
    others: set[tuple[Any, ...]] = set()
    for count in view.counts():
        if view.opset < 10:
            starts, ends = list(view.attributes["starts"]), list(view.attributes["ends"])
            axes, steps = list(view.attributes.get("axes", range(len(starts)))), [1] * len(starts)
        else:
            starts, ends = (view.at(slot, count) for slot in (1, 2))
            axes = view.at(3, count) if view.has(3) else list(range(len(starts)))
            steps = view.at(4, count) if view.has(4) else [1] * len(starts)
        state = rows
        for start, end, axis, step in zip(starts, ends, (axis % rank for axis in axes), steps, strict=True):
            if rows is None or axis != rows.axis:
                # What is taken of other dimensions must not depend on the number of rows.
                taken = slice(start, end, step).indices(view.shape(0)[axis]) if step > 0 else (start, end, step)
                others.add((axis, taken))
            elif step != 1:
                raise MixesError("it reorders the rows")
            else:
                state = _stretch(count, rows, slice(start, end).indices(rows.outer * count * rows.inner))
        found.add(state)
    if len(others) != len({axis for axis, _ in others}) or len(found) > 1:
        raise UnknownError("what it takes depends on the number of rows")
    return [found.pop()]


def _stretch(count: int, rows: Rows, taken: tuple[int, int, int]) -> Rows:
    period = count * rows.inner
    if taken[0] % period or taken[1] % period or taken[1] <= taken[0]:
        raise MixesError("it takes some of the rows apart from the others")
    return Rows(rows.axis, (taken[1] - taken[0]) // period, rows.inner)


def _gather(view: View) -> States:
    axis = _axis(view, 0)
    data, picked = view.rows(0), view.rows(1)
    if data and data.axis == axis:
        raise MixesError("it picks among the rows")
    places = []
    if data:
        places.append((0, data.moved(data.axis if data.axis < axis else data.axis + view.rank(1) - 1), 0))
    if picked:
        places.append((1, picked.moved(picked.axis + axis), 0))
    if len({rows for _, rows, _ in places}) > 1:
        raise MixesError("each row picks among all rows")
    return [places[0][1] if places else None]


def _gather_elements(view: View) -> States:
    axis = _axis(view, 0)
    data, picked = view.rows(0), view.rows(1)
    if data and data.axis == axis:
        raise MixesError("it picks among the rows")
    if data is None and picked is not None and picked.axis == axis:
        return [picked]
    if data is None or picked is None or (data != picked and not view.agrees(1, data)):
        raise UnknownError("its inputs have their rows in different dimensions")
    return [data]


def _gather_nd(view: View) -> States:
    batch = int(view.attributes.get("batch_dims", 0))
    data, depth = view.rows(0), view.shape(1)[-1]
    if data and batch <= data.axis < batch + depth:
        return [_own_place(view, 1, data, data.axis - batch)]
    picked = view.rows(1)
    if picked and picked.axis == view.rank(1) - 1:
        raise MixesError("the rows are its coordinates")
    if data is None:
        return [picked]
    if data.axis < batch:
        if picked is None or (picked != data and not view.agrees(1, data)):
            raise UnknownError("its inputs have their rows in different dimensions")
        return [data]
    if picked is not None:
        raise MixesError("each row picks among all rows")
    return [data.moved(view.rank(1) - 1 + data.axis - batch - depth)]


def _scatter_elements(view: View) -> States:
    axis = _axis(view, 0)
    states = [view.rows(slot) for slot in view.slots()]
    found = next((rows for slot, rows in enumerate(states) if rows and view.is_data(slot)), None)
    if found is None or found.axis == axis or not all(view.agrees(slot, found) for slot in view.slots()):
        raise UnknownError("it writes at places that may be of other rows")
    return [found]


def _scatter_nd(view: View) -> States:
    """Each element of the indices must lead the row's updates to the row's own place."""
    data, updates = view.rows(0), view.rows(2)
    depth = view.shape(1)[-1]
    leading = view.rank(1) - 1
    if data is None or view.is_data(1):
        raise UnknownError("it writes at places that may be of other rows")
    if data.axis >= depth:
        view.fixed(1)
        if updates is not None and not view.agrees(2, data.moved(leading + data.axis - depth)):
            raise UnknownError("its inputs have their rows in different dimensions")
        return [data]
    place = _own_place(view, 1, data, data.axis)
    if updates is None or not view.agrees(2, place):
        raise UnknownError("it writes at places that may be of other rows")
    return [data]


def _own_place(view: View, slot: int, data: Rows, coordinate: int) -> Rows:
    """Where indices, which do not depend on data, have the rows: each must lead to its own."""
    if view.is_data(slot) or (data.outer, data.inner) != (1, 1):
        raise UnknownError("it picks among the rows")
    for axis in range(view.rank(slot) - 1):
        if _leads_home(view, slot, coordinate, axis):
            return Rows(axis)
    raise UnknownError("it picks among the rows")


def _leads_home(view: View, slot: int, coordinate: int, axis: int) -> bool:
    """Whether the indices of the n-th row along a dimension are of the n-th row, at places that all rows share."""
    others = []
    for count, indices in view.analysis.known(view.node.input[slot]):
        places = np.moveaxis(indices, axis, 0)
        if len(places) != count:
            return False
        own = np.arange(count).reshape([-1] + [1] * (places.ndim - 2)) + 0 * places[..., coordinate]
        if not np.array_equal(places[..., coordinate] % count, own):
            return False
        rest = np.delete(places, coordinate, axis=-1)
        others += list(rest)
    return all(np.array_equal(others[0], other) for other in others[1:])


def _expand(view: View) -> States:
    if view.is_data(1):
        raise UnknownError("its shape depends on the inputs' contents")
    rows = view.rows(0)
    moved = rows and rows.moved(rows.axis + len(view.out_shape()) - view.rank(0))
    view.same_but(1, moved)
    return [moved]


def _tile(view: View) -> States:
    rows = view.rows(0)
    times = view.fixed(1)
    return [rows and Rows(rows.axis, rows.outer * times[rows.axis], rows.inner)]


def _pad(view: View) -> States:
    rows, rank = view.rows(0), view.rank(0)
    pads = list(view.attributes.get("pads", ())) if view.opset < 11 else view.fixed(1)
    if any(view.rows(slot) is not None for slot in view.slots()[1:]):
        raise UnknownError("how it pads depends on the inputs' contents")
    axes = [axis % rank for axis in view.fixed(3)] if view.has(3) else list(range(rank))
    for place, axis in enumerate(axes):
        if rows and axis == rows.axis and (pads[place] or pads[place + len(axes)]):
            raise MixesError("it adds to the dimension of the rows")
    return [rows]


def _one_hot(view: View) -> States:
    rows = view.rows(0)
    _fixed_but(view, 0)
    view.fixed(1)
    axis = int(view.attributes.get("axis", -1)) % (view.rank(0) + 1)
    return [rows and rows.moved(rows.axis + (axis <= rows.axis))]


def _resize(view: View) -> States:
    """Resizes the dimensions behind the channels."""
    rows = view.rows(0)
    if any(view.is_data(slot) for slot in view.slots()[1:]):
        raise UnknownError("its sizes depend on the inputs' contents")
    if view.attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        raise UnknownError("it crops")
    if rows and rows.axis > 1:
        raise MixesError("it resizes across the rows")
    for slot in view.slots()[1:]:
        view.same_but(slot, rows)
    return [rows]


def _recurrent(view: View) -> States:
    first = bool(view.attributes.get("layout", 0))
    batch = 0 if first else 1
    _fixed_but(view, 0, 4, 5, 6)
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
    sequence, last = Rows(0 if first else 2, outer, inner), Rows(batch, outer, inner)
    return [sequence, last, last]


def _reverse_sequence(view: View) -> States:
    batch, steps = int(view.attributes.get("batch_axis", 1)), int(view.attributes.get("time_axis", 0))
    rows, lengths = view.rows(0), view.rows(1)
    if rows is None or rows.axis == steps:
        raise MixesError("it reverses the rows")
    if lengths is not None and (rows.axis != batch or lengths.axis != 0):
        raise UnknownError("its lengths are of something else")
    return [rows]


def _last_two(view: View) -> States:
    """Works on matrices, in the last two dimensions."""
    _fixed_but(view, 0)
    rows = view.rows(0)
    if rows and rows.axis >= view.rank(0) - 2:
        raise MixesError("its matrices lie across the rows")
    return [rows]


def _loss(view: View) -> States:
    if view.attributes.get("reduction", b"mean") != b"none":
        raise MixesError("it sums over the rows")
    return _samples(view, data=(0, 1), rank=1)


def _rotary(view: View) -> States:
    return _samples(view, data=(0, 3) if view.node.domain in STANDARD else (0, 1))


def _feature_columns(view: View) -> States:
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
    "LpNormalization": partial(_along, what="normalises over"),
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
    "Transpose": _transpose,
    **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], _reshape),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    **dict.fromkeys(["ScatterElements", "Scatter"], _scatter_elements),
    "ScatterND": _scatter_nd,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "OneHot": _one_hot,
    **dict.fromkeys(["Resize", "Upsample"], _resize),
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
