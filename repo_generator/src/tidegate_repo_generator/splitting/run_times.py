"""Run time of each node, from a profile of onnxruntime, and cuts between blocks of equal run time."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import onnx
from onnx import inliner

from tidegate_repo_generator.dataflow import Dataflow, Nature, SplitError, all_nodes
from tidegate_repo_generator.onnx_sessions import Arrays, open_session, run
from tidegate_repo_generator.splitting.cutting import CutRefused, Cutter

_WARM_UP_RUNS: Final = 3
_RUNS: Final = 10
_KERNEL: Final = "_kernel_time"
_MOST_UNKNOWN: Final = 0.02
"""Share of the run time of a profile that may belong to no node of the model."""


def measure_nodes(
    flow: Dataflow, folder: Path, feed: Arrays, step: Callable[[], None] = lambda: None, runs: int = _RUNS
) -> list[float]:
    """Return the microseconds of each node of the main graph: medians of warm, unoptimized runs on the CPU.

    `feed`: inputs of the runs; `runs`: their number; `step`: progress callback.
    """
    with TemporaryDirectory(prefix="tidegate-") as scratch:
        session = open_session(
            _named_by_index(flow),
            folder,
            timed=True,
            enable_profiling=True,
            profile_file_prefix=str(Path(scratch, "profile")),
        )
        for _ in range(_WARM_UP_RUNS + runs):
            run(session, feed)
            step()
        times = read_profile(Path(session.end_profiling()), skip=_WARM_UP_RUNS)
    per_node = [0.0] * len(flow.nodes)
    for name, microseconds in times.items():
        if name.startswith("n"):
            per_node[int(name[1:].partition("_")[0])] += microseconds
    return per_node


def times_from_profile(flow: Dataflow, path: Path) -> list[float]:
    """Return the microseconds of each node of the main graph, from a given profile. Raises SplitError."""
    times = read_profile(path)
    indices = {node.name: index for index, node in enumerate(flow.nodes) if node.name}
    if len(indices) < sum(1 for node in flow.nodes if node.name):
        raise SplitError(f"{path}: nodes of the model share names, so times are ambiguous: leave --profile out")
    inner = {node.name for node in all_nodes(flow.nodes)} - set(indices)
    unknown = {name: time for name, time in times.items() if name not in indices and name not in inner}
    total = sum(time for name, time in times.items() if name not in inner)
    if sum(unknown.values()) > _MOST_UNKNOWN * total:
        worst = sorted(unknown, key=lambda name: -unknown[name])[:3]
        raise SplitError(
            f"{path}: {sum(unknown.values()) / total:.0%} of its time belongs to no node of the model, e.g. "
            f"{', '.join(worst)}: profile this model with graph optimizations disabled, or leave --profile out"
        )
    return [times.get(node.name, 0.0) for node in flow.nodes]


def read_profile(path: Path, *, skip: int = 0) -> dict[str, float]:
    """Return the median microseconds of each kernel by node name, without its first `skip` runs. Raises SplitError."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
        durations: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
                durations[event["name"].removesuffix(_KERNEL)].append(float(event["dur"]))
    except OSError as error:
        raise SplitError(f"{path}: {error.strerror}: give a profile that onnxruntime wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SplitError(f"{path} is no profile of onnxruntime's: set SessionOptions.enable_profiling") from error
    if not durations:
        raise SplitError(f"{path} has no kernel times: make it with SessionOptions.enable_profiling and run the model")
    return {name: median(values[skip:] or values) for name, values in durations.items()}


def data_times(flow: Dataflow, times: list[float]) -> list[float]:
    """Return the microseconds of each node on data; constants and shapes count where they are first needed."""
    carried = list(times)
    first_use: dict[int, int] = {}
    for index in reversed(range(len(flow.nodes))):
        into = index if flow.nature[index] is Nature.DATA else first_use.get(index)
        if into is None:
            continue
        if into != index:
            carried[into] += times[index]
        for name in flow.reads[index]:
            source = flow.producer.get(name)
            if source is not None and flow.nature[source] is not Nature.DATA:
                first_use[source] = min(into, first_use.get(source, into))
    return [carried[index] for index in flow.data_nodes]


def equal_cuts(cutter: Cutter, times_us: list[float], blocks: int, slack: float = 0.0) -> list[int]:
    """Return the positions of the cuts between `blocks` blocks of about equal run time (PPipe, section 5.2).

    Each cut comes where the run time up to it is closest to its fraction of the total, so that errors do not add up in
    the last block. `times_us`: run time of each node on data. `slack`: fraction of a block's run time by which a cut
    may move to where fewer bytes cross it; PPipe has none. Raises SplitError.
    """
    until = [0.0]
    for time in times_us:
        until.append(until[-1] + time)
    refusals: dict[int, CutRefused] = {}
    places: Sequence[int] = range(1, cutter.end)
    positions = _nearest(cutter, until, blocks, slack, places, refusals)
    if len(positions) < blocks - 1:
        # Too many places were impossible for the room that was left to later cuts: now all are tried.
        places = [place for place in places if _is_possible(cutter, place, refusals)]
        positions = _nearest(cutter, until, blocks, slack, places, refusals)
    if len(positions) < blocks - 1:
        why = f"; the first that is impossible: {refusals[min(refusals)]}" if refusals else ""
        raise SplitError(
            f"the model cannot be cut into {blocks} blocks: {len(places)} of {cutter.end - 1} places are possible, and "
            f"every block must make something that is sent on; ask for fewer --blocks{why}"
        )
    return positions


def _nearest(
    cutter: Cutter,
    until: list[float],
    blocks: int,
    slack: float,
    places: Sequence[int],
    refusals: dict[int, CutRefused],
) -> list[int]:
    """Take the nearest possible place for one cut after the other, or a cheaper one near it; fewer if there is none."""
    positions: list[int] = []
    first = 0  # of the places
    for number in range(1, blocks):
        target = until[-1] * number / blocks
        candidates = range(first, len(places) - (blocks - 1 - number))
        distance = {index: abs(until[places[index]] - target) for index in candidates}
        near = [
            index
            for index in candidates
            if distance[index] <= slack * until[-1] / blocks and _is_possible(cutter, places[index], refusals)
        ]
        near.sort(key=lambda index: (cutter.bytes_per_row(places[index]), distance[index]))
        for candidate in (*near, *sorted(candidates, key=distance.__getitem__)):
            place, start = places[candidate], positions[-1] if positions else 0
            if _is_possible(cutter, place, refusals) and cutter.outputs(start, place, cutter.crossing(place)):
                positions.append(place)
                first = candidate + 1
                break
        else:
            break
    return positions


def _is_possible(cutter: Cutter, place: int, refusals: dict[int, CutRefused]) -> bool:
    if place in refusals:
        return False
    try:
        cutter.crossing(place)
    except CutRefused as refusal:
        refusals[place] = refusal
        return False
    return True


def _named_by_index(flow: Dataflow) -> Any:  # noqa: ANN401
    """Build a copy with calls of local functions inlined, as onnxruntime does, and nodes named after the original's."""
    model = onnx.ModelProto()
    model.CopyFrom(flow.proto)
    if model.functions:
        model = inliner.inline_local_functions(model)
    index, missing = 0, _made_by(flow, 0)
    for node in model.graph.node:
        for inner in all_nodes([node]):
            inner.name = ""
        node.name = f"n{index}_{node.op_type}"
        missing -= set(node.output)
        while not missing and index + 1 < len(flow.nodes):
            index += 1
            missing = _made_by(flow, index)
    return model


def _made_by(flow: Dataflow, index: int) -> set[str]:
    return {name for name in flow.nodes[index].output if name}
