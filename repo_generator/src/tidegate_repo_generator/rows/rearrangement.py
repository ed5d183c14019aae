"""Rules of operators that rearrange elements: permute, join, cut, gather or fill."""

import math
from typing import Any, Final

import numpy as np

from tidegate_repo_generator.rows.axes import MixesError, NodeView, RowAxis, Rule, States, UnknownError, flat_stride


def _transpose(view: NodeView) -> States:
    rows = view.rows(0)
    order = list(view.attributes.get("perm", range(view.rank(0) - 1, -1, -1)))
    return [rows and rows.moved(order.index(rows.axis))]


def _reshape(view: NodeView) -> States:
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


def _restrided(rows: RowAxis, count: int, before: tuple[int, ...], after: tuple[int, ...]) -> RowAxis:
    stride = flat_stride(before, rows)
    if stride == 0:
        raise UnknownError("it has no elements")
    for axis, size in enumerate(after):
        unit = math.prod(after[axis + 1 :])
        if stride % unit == 0 and unit * size % (stride * count) == 0 and stride * count <= unit * size:
            return RowAxis(axis, unit * size // (stride * count), stride // unit)
    raise MixesError(f"it spreads the rows over dimensions, {list(before)} to {list(after)}")


def _concat(view: NodeView) -> States:
    axis = view.axis(1)
    slots = view.slots()
    states = [view.rows(slot) for slot in slots]
    found = next((rows for slot, rows in zip(slots, states, strict=True) if rows and view.is_data(slot)), None)
    if found is None:
        raise UnknownError("it has no rows")
    if found.axis != axis:
        return [view.together(((slot, rows, 0) for slot, rows in zip(slots, states, strict=True)))]
    if any(rows is None or rows.axis != axis or rows.inner != found.inner for rows in states):
        raise MixesError("it joins what is no row to the rows")
    return [RowAxis(axis, sum(rows.outer for rows in states if rows), found.inner)]


def _split(view: NodeView) -> States:
    rows, axis = view.rows(0), view.axis(0)
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


def _part(view: NodeView, rows: RowAxis, sizes: list[int]) -> RowAxis:
    """Rows of a part of the dimension that they lie along: whole repetitions of all of them."""
    parts = {
        size // (run.rows * rows.inner) if size % (run.rows * rows.inner) == 0 else 0
        for size, run in zip(sizes, view.analysis.seen, strict=True)
    }
    if len(parts) > 1 or 0 in parts:
        raise MixesError("it takes some of the rows apart from the others")
    return RowAxis(rows.axis, parts.pop(), rows.inner)


def _slice(view: NodeView) -> States:
    rows, rank = view.rows(0), view.rank(0)
    found: set[RowAxis | None] = set()
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


def _stretch(count: int, rows: RowAxis, taken: tuple[int, int, int]) -> RowAxis:
    period = count * rows.inner
    if taken[0] % period or taken[1] % period or taken[1] <= taken[0]:
        raise MixesError("it takes some of the rows apart from the others")
    return RowAxis(rows.axis, (taken[1] - taken[0]) // period, rows.inner)


def _gather(view: NodeView) -> States:
    axis = view.axis(0)
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


def _gather_elements(view: NodeView) -> States:
    axis = view.axis(0)
    data, picked = view.rows(0), view.rows(1)
    if data and data.axis == axis:
        raise MixesError("it picks among the rows")
    if data is None and picked is not None and picked.axis == axis:
        return [picked]
    if data is None or picked is None or (data != picked and not view.agrees(1, data)):
        raise UnknownError("its inputs have their rows in different dimensions")
    return [data]


def _gather_nd(view: NodeView) -> States:
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


def _scatter_elements(view: NodeView) -> States:
    axis = view.axis(0)
    states = [view.rows(slot) for slot in view.slots()]
    found = next((rows for slot, rows in enumerate(states) if rows and view.is_data(slot)), None)
    if found is None or found.axis == axis or not all(view.agrees(slot, found) for slot in view.slots()):
        raise UnknownError("it writes at places that may be of other rows")
    return [found]


def _scatter_nd(view: NodeView) -> States:
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


def _own_place(view: NodeView, slot: int, data: RowAxis, coordinate: int) -> RowAxis:
    """Where indices, which do not depend on data, have the rows: each must lead to its own."""
    if view.is_data(slot) or (data.outer, data.inner) != (1, 1):
        raise UnknownError("it picks among the rows")
    for axis in range(view.rank(slot) - 1):
        if _leads_home(view, slot, coordinate, axis):
            return RowAxis(axis)
    raise UnknownError("it picks among the rows")


def _leads_home(view: NodeView, slot: int, coordinate: int, axis: int) -> bool:
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


def _expand(view: NodeView) -> States:
    if view.is_data(1):
        raise UnknownError("its shape depends on the inputs' contents")
    rows = view.rows(0)
    moved = rows and rows.moved(rows.axis + len(view.out_shape()) - view.rank(0))
    view.same_but(1, moved)
    return [moved]


def _tile(view: NodeView) -> States:
    rows = view.rows(0)
    times = view.fixed(1)
    return [rows and RowAxis(rows.axis, rows.outer * times[rows.axis], rows.inner)]


def _pad(view: NodeView) -> States:
    rows, rank = view.rows(0), view.rank(0)
    pads = list(view.attributes.get("pads", ())) if view.opset < 11 else view.fixed(1)
    if any(view.rows(slot) is not None for slot in view.slots()[1:]):
        raise UnknownError("how it pads depends on the inputs' contents")
    axes = [axis % rank for axis in view.fixed(3)] if view.has(3) else list(range(rank))
    for place, axis in enumerate(axes):
        if rows and axis == rows.axis and (pads[place] or pads[place + len(axes)]):
            raise MixesError("it adds to the dimension of the rows")
    return [rows]


def _one_hot(view: NodeView) -> States:
    rows = view.rows(0)
    view.fixed_but(0)
    view.fixed(1)
    axis = int(view.attributes.get("axis", -1)) % (view.rank(0) + 1)
    return [rows and rows.moved(rows.axis + (axis <= rows.axis))]


def _resize(view: NodeView) -> States:
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


REARRANGEMENT_RULES: Final[dict[str, Rule]] = {
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
}
"""Rules by operator of the standard domain."""
