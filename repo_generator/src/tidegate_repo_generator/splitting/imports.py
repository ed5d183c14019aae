"""Import of block latencies from profiles that trtexec and onnxruntime wrote.

A profile covers one block, or the whole model; then each layer must be assigned to one block by the names of its nodes.
Ambiguous layers are an error, never guessed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from tidegate.schemas import BlockLatencies, BlockProfile
from tidegate_repo_generator.dataflow import Dataflow, SplitError
from tidegate_repo_generator.onnx_file import load_proto
from tidegate_repo_generator.splitting.block_times import new_profile
from tidegate_repo_generator.splitting.manifest import Manifest
from tidegate_repo_generator.splitting.run_times import data_times, read_profile, times_from_profile


class ProfilingTool(StrEnum):
    """Tool that wrote a profile."""

    TRTEXEC = "trtexec"
    ONNXRUNTIME = "onnxruntime"


# TensorRT's names of what it adds around the layers of the model.
_AROUND: Final = re.compile(
    r"^(?:Reformatting CopyNode for (?:Input|Output) Tensor \d+ to |Reformatted (?:Input|Output) Tensor \d+ to )"
)
_RANGE: Final = re.compile(r"ForeignNode\[([^\]]*)\]")
_TAG: Final = re.compile(r"\s*\[[^\]]*\]\s*|\s*_myl\d+_\d+$")
_SEPARATOR: Final = re.compile(r"\s*\+\s*|\s*,\s*|\.\.\.")
_MS: Final = 1000.0


def import_profile(
    folder: Path,
    manifest: Manifest,
    tool: ProfilingTool,
    files: Iterable[str],
    *,
    device_class: str,
    share: int,
    rows: int,
) -> BlockProfile:
    """Read profiles of one batch size: `FILE` of the whole model, or `BLOCK=FILE` for each of the blocks.

    Raises SplitError that names what is missing or ambiguous. `share`: see `MeasurementSetting`; `rows`: the batch
    size.
    """
    blocks = [block.name for block in manifest.blocks]
    of_block, whole = _sort(files, blocks)
    if whole and (of_block or len(whole) > 1):
        raise SplitError("give one profile of the whole model, or one BLOCK=FILE for each block")
    if whole:
        latencies = _of_model(folder, manifest, tool, whole[0])
        missing = [name for name in blocks if latencies.get(name, 0) <= 0]
        why = f"{whole[0]} has no time for any node of"
    else:
        latencies = {name: _total_us(tool, path) for name, path in of_block.items()}
        missing = [name for name in blocks if latencies.get(name, 0) <= 0]
        why = "there is no profile of"
    if missing:
        raise SplitError(
            f"the profile would be incomplete: {why} block {', '.join(missing)} "
            f"(device class '{device_class}', share {share}, "
            f"batch {rows}): give --file BLOCK=FILE for each of {', '.join(blocks)}"
        )
    table = BlockLatencies(
        device_class=device_class, share=share, rows=[rows], latency_us=[[latencies[name]] for name in blocks]
    )
    return new_profile(manifest, [table])


def _sort(files: Iterable[str], blocks: list[str]) -> tuple[dict[str, Path], list[Path]]:
    of_block: dict[str, Path] = {}
    whole: list[Path] = []
    for entry in files:
        name, equals, path = entry.partition("=")
        if not equals:
            whole.append(Path(entry))
        elif name not in blocks:
            raise SplitError(f"--file {entry}: there is no block '{name}'; the blocks: {', '.join(blocks)}")
        elif name in of_block:
            raise SplitError(f"--file {entry}: a second profile of block '{name}'")
        else:
            of_block[name] = Path(path)
    if not of_block and not whole:
        raise SplitError("there is nothing to import: give --file FILE, or --file BLOCK=FILE for each block")
    return of_block, whole


def _layers(tool: ProfilingTool, path: Path) -> dict[str, float]:
    """Microseconds by layer, or {"": total} if a file has only that of the whole inference."""
    if tool is ProfilingTool.ONNXRUNTIME:
        return read_profile(path)
    entries = _read_json(path)
    try:
        if any("computeMs" in entry for entry in entries):  # --exportTimes
            return {"": median(float(entry["computeMs"]) for entry in entries) * _MS}
        layers: dict[str, float] = {}
        for entry in entries:
            if "name" in entry:  # --exportProfile; its first entry counts the runs
                value = float(entry["medianMs"] if "medianMs" in entry else entry["averageMs"]) * _MS
                layers[entry["name"]] = layers.get(entry["name"], 0.0) + value
    except (KeyError, TypeError, ValueError) as error:
        raise SplitError(f"{path} is no profile of trtexec's: make it with --exportProfile or --exportTimes") from error
    if not layers:
        raise SplitError(f"{path} has no layers: make it with trtexec --exportProfile or --exportTimes")
    return layers


def _read_json(path: Path) -> list[Mapping[str, Any]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SplitError(f"{path}: {error.strerror}: give a JSON file that trtexec wrote") from error
    except ValueError as error:
        raise SplitError(f"{path} is no JSON: make it with trtexec --exportProfile or --exportTimes") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SplitError(f"{path} is no profile of trtexec's: make it with --exportProfile or --exportTimes")
    return entries


def _total_us(tool: ProfilingTool, path: Path) -> float:
    return sum(_layers(tool, path).values())


def _of_model(folder: Path, manifest: Manifest, tool: ProfilingTool, path: Path) -> dict[str, float]:
    if tool is ProfilingTool.ONNXRUNTIME:
        flow = Dataflow(load_proto(folder / manifest.file))
        times = data_times(flow, times_from_profile(flow, path))
        spans = pairwise([0, *manifest.cuts, len(times)])
        return {block.name: sum(times[slice(*span)]) for block, span in zip(manifest.blocks, spans, strict=True)}
    block_of = {node: block.name for block in manifest.blocks for node in block.nodes}
    latencies: dict[str, float] = {}
    for layer, microseconds in _layers(tool, path).items():
        if not layer:
            raise SplitError(f"{path} has times of the whole model only: make it with --exportProfile, or per block")
        names = _nodes_of(layer)
        found = sorted({block_of[name] for name in names if name in block_of})
        if not found and microseconds == 0:
            continue
        if len(found) == 1 and (not _RANGE.search(layer) or len(set(names)) == 1):
            latencies[found[0]] = latencies.get(found[0], 0.0) + microseconds
            continue
        if len(found) > 1:
            why = f"was fused across the blocks {', '.join(found)}"
        else:
            why = "names only the ends of what it fused" if found else "names no node of any block"
        raise SplitError(
            f"{path}: layer '{layer}' {why}, so its time cannot be separated: profile each block on its own, --file "
            "BLOCK=FILE"
        )
    return latencies


def _nodes_of(layer: str) -> list[str]:
    """Names of the nodes in a layer of TensorRT, e.g. `A + B`, `PWN(A, B)`, `Reformatting CopyNode for ... to A`.

    Other names there are of constants and of what TensorRT added.
    """
    fused = _RANGE.search(layer)
    name = fused[1] if fused else _TAG.sub("", _AROUND.sub("", layer)).replace("PWN(", "")
    return [part for part in (piece.strip("{} ()") for piece in _SEPARATOR.split(name)) if part]
