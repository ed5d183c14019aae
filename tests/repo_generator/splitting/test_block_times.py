"""Measuring blocks, and importing what other tools measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tidegate.schemas import BlockLatencies, DocumentError, write_document
from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.splitting.block_times import measure_blocks, merge_into, new_profile
from tidegate_repo_generator.splitting.imports import ProfilingTool, import_profile
from tidegate_repo_generator.splitting.manifest import Manifest
from tidegate_repo_generator.splitting.split import split_model


@pytest.fixture
def manifest(save_text: Callable[..., Path], tmp_path: Path) -> Manifest:
    """Three blocks: a; b and c; y. In `tmp_path/blocks`."""
    path = save_text("g (float[n, k] x) => (float[n, k] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Add(a, c) }")
    return split_model(path, tmp_path / "blocks", at=["a", "c"], shapes={"x": (4,)})


def test_every_block_and_batch_is_measured(manifest: Manifest, tmp_path: Path) -> None:
    steps: list[int] = []
    profile = measure_blocks(
        tmp_path / "blocks", manifest, [4, 1, 4], device_class="cpu", repeats=3, step=lambda: steps.append(1)
    )
    assert len(steps) == 6
    assert (profile.blocks, profile.cut_bytes, profile.memory_mib) == (["00", "01", "02"], [16, 32], [0, 0, 0])
    assert profile.missing("cpu", [1], [1, 4]) == []
    assert profile.latency_us("cpu", 1, 2, 0, 3) > 0


def test_shares_are_measured_side_by_side(manifest: Manifest, tmp_path: Path) -> None:
    profile = measure_blocks(tmp_path / "blocks", manifest, [2], device_class="cpu", share=2, repeats=2)
    assert [(table.share, table.rows) for table in profile.latencies] == [(2, [2])]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": "NoSuchProvider"}, "has no NoSuchProvider, only .*CPUExecutionProvider"),
        ({"batches": [0]}, "1 or more"),
    ],
)
def test_what_cannot_be_measured(manifest: Manifest, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SplitError, match=said):
        measure_blocks(tmp_path / "blocks", manifest, options.pop("batches", [1]), device_class="cpu", **options)


def table(manifest: Manifest, kind: str, rows: int, first: float) -> Any:
    return new_profile(
        manifest, [BlockLatencies(device_class=kind, share=1, rows=[rows], latency_us=[[first], [2.0], [3.0]])]
    )


def test_a_file_comes_to_hold_all_kinds(manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for kind, rows, first in (("l4", 1, 1.0), ("t4", 1, 5.0), ("l4", 2, 7.0), ("l4", 1, 9.0)):
        write_document(path, merge_into(path, table(manifest, kind, rows, first)))
    merged = merge_into(path, table(manifest, "l4", 4, 1.0))
    assert merged.latency_us("l4", 1, 1, 0, 1) == 9
    assert merged.latency_us("l4", 1, 2, 0, 1) == 7
    assert merged.missing("t4", [1], [1, 2]) == [(1, 2)]


def test_a_file_with_something_else(manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    other = table(manifest, "l4", 1, 1.0).model_copy(update={"model": "other"})
    write_document(path, other)
    with pytest.raises(DocumentError, match=r"profile\.json: two block profiles differ in 'model'"):
        merge_into(path, table(manifest, "l4", 1, 1.0))
    path.write_text("{}")
    with pytest.raises(DocumentError, match=r"profile\.json:\n.*must be given"):
        merge_into(path, table(manifest, "l4", 1, 1.0))


def imported(folder: Path, manifest: Manifest, tool: ProfilingTool, *files: str) -> list[list[float]]:
    profile = import_profile(folder, manifest, tool, files, device_class="p4", share=2, rows=8)
    (latencies,) = profile.latencies
    assert (latencies.device_class, latencies.share, latencies.rows) == ("p4", 2, [8])
    return [[round(value, 3) for value in row] for row in latencies.latency_us]


def layers(path: Path, **milliseconds: float) -> str:
    entries = [{"name": name, "timeMs": 100, "averageMs": ms, "medianMs": ms} for name, ms in milliseconds.items()]
    path.write_text(json.dumps([{"count": 50}, *entries]))
    return str(path)


def test_layers_of_trtexec(manifest: Manifest, tmp_path: Path) -> None:
    names = {
        "Reformatting CopyNode for Input Tensor 0 to a": 0.5,
        "a": 1.0,
        "PWN(PWN(b), c)": 0.25,
        "constant_7 + (Unnamed Layer* 3) [Shuffle] + b": 2.0,
        "{ForeignNode[c]}": 0.125,
        "[HostToDeviceCopy]": 0.0,
        "y": 4.0,
    }
    assert imported(tmp_path / "blocks", manifest, ProfilingTool.TRTEXEC, layers(tmp_path / "t.json", **names)) == [
        [1500],
        [2375],
        [4000],
    ]


def test_times_of_trtexec_per_block(manifest: Manifest, tmp_path: Path) -> None:
    files = []
    for number, name in enumerate(("00", "01", "02"), start=1):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([{"computeMs": number * factor, "latencyMs": 99} for factor in (1, 1, 9)]))
        files.append(f"{name}={path}")
    assert imported(tmp_path / "blocks", manifest, ProfilingTool.TRTEXEC, *files) == [[1000], [2000], [3000]]


def test_kernels_of_onnxruntime(manifest: Manifest, tmp_path: Path) -> None:
    model = onnx.load(tmp_path / "blocks/model.onnx")
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "blocks/model.onnx")
    path = tmp_path / "ort.json"
    times = zip("abcy", (1, 2, 3, 4), strict=True)
    path.write_text(json.dumps([{"cat": "Node", "name": f"{name}_kernel_time", "dur": us} for name, us in times]))
    assert imported(tmp_path / "blocks", manifest, ProfilingTool.ONNXRUNTIME, str(path)) == [[1], [5], [4]]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a": 1.0, "b + c": 1.0}, "has no time for any node of block 02 .*device class 'p4', share 2, batch 8"),
        ({"a + b": 1.0, "c": 1.0, "y": 1.0}, r"layer 'a \+ b' was fused across the blocks 00, 01"),
        ({"a": 1.0, "b": 1.0, "strange": 1.0, "y": 1.0}, "layer 'strange' names no node of any block"),
        ({"{ForeignNode[b...c]}": 1.0}, "names only the ends of what it fused"),
        ({"{ForeignNode[a...y]}": 1.0}, "was fused across the blocks 00, 02"),
        ({}, "has no layers"),
    ],
)
def test_layers_that_cannot_be_told(manifest: Manifest, tmp_path: Path, names: dict[str, float], said: str) -> None:
    with pytest.raises(SplitError, match=said):
        imported(tmp_path / "blocks", manifest, ProfilingTool.TRTEXEC, layers(tmp_path / "t.json", **names))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "there is nothing to import"),
        (["00={t}"], "there is no profile of block 01, 02"),
        (["09={t}"], "there is no block '09'; the blocks: 00, 01, 02"),
        (["00={t}", "00={t}"], "a second profile of block '00'"),
        (["{t}", "00={t}"], "give one profile of the whole model, or"),
        (["{none}"], "No such file"),
        (["{text}"], "is no JSON"),
        (["{object}"], "is no profile of trtexec's"),
        (["{times}"], "has times of the whole model only"),
    ],
)
def test_files_that_cannot_be_imported(manifest: Manifest, tmp_path: Path, files: list[str], said: str) -> None:
    (tmp_path / "text").write_text("no")
    (tmp_path / "object").write_text("{}")
    (tmp_path / "times").write_text('[{"computeMs": 1}]')
    paths = {name: tmp_path / name for name in ("none", "text", "object", "times")}
    paths["t"] = Path(layers(tmp_path / "t", a=1.0))
    with pytest.raises(SplitError, match=said):
        imported(tmp_path / "blocks", manifest, ProfilingTool.TRTEXEC, *(entry.format(**paths) for entry in files))
