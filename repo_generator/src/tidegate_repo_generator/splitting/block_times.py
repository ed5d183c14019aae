"""Measurement of blocks: latency by batch size, on 1/v of a device while all v shares are busy."""

import multiprocessing
import os
import time  # noqa: TID251 - what measures reads the clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any, Final

import onnxruntime as ort

from tidegate.schemas import BlockLatencies, BlockProfile, DocumentError, read_document
from tidegate_repo_generator.dataflow import Dataflow, SplitError
from tidegate_repo_generator.onnx_file import load_proto, read_onnx
from tidegate_repo_generator.onnx_sessions import Arrays, first_line, open_session, run
from tidegate_repo_generator.rows.samples import find_samplers, index_limits
from tidegate_repo_generator.splitting.inputs import with_sizes
from tidegate_repo_generator.splitting.manifest import Manifest

_WARM_UP_RUNS: Final = 3
_MPS_SHARE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True)
class MeasurementSetting:
    """Settings of a measurement: execution provider, share and repeats."""

    provider: str
    """Execution provider of onnxruntime."""
    share: int
    """Number v of processes that run the same block at once.

    With CUDA under MPS each has 1/v of the device; on the CPU, 1/v of the cores.
    """
    repeats: int


def measure_blocks(
    folder: Path,
    manifest: Manifest,
    batches: Sequence[int],
    *,
    device_class: str,
    provider: str = "CPUExecutionProvider",
    share: int = 1,
    repeats: int = 20,
    step: Callable[[], None] = lambda: None,
) -> BlockProfile:
    """Run each block on the outputs of the blocks before it, from random inputs; return the median latencies.

    Raises SplitError. `batches`: batch sizes in rows; `share`: see `MeasurementSetting`; `repeats`: runs per
    measurement; `step`: progress callback. `provider`: execution provider of onnxruntime.
    """
    if provider not in ort.get_available_providers():
        raise SplitError(
            f"this onnxruntime has no {provider}, only {', '.join(ort.get_available_providers())}: install the one for "
            "your device, e.g. onnxruntime-gpu"
        )
    rows_list = sorted(set(batches))
    if not rows_list or rows_list[0] < 1:
        raise SplitError(f"batches {list(batches)}: give numbers of rows, 1 or more")
    shapes = {name: tuple(sizes) for name, sizes in manifest.shapes.items()}
    whole = folder / manifest.file
    inputs = with_sizes(read_onnx(whole).inputs, shapes)
    sampler = find_samplers(open_session(whole, folder), inputs, index_limits(Dataflow(load_proto(whole))))[0]
    setting = MeasurementSetting(provider, share, repeats)
    table: list[list[float]] = [[] for _ in manifest.blocks]
    for rows in rows_list:
        live = sampler.rows(rows)
        for block, row in zip(manifest.blocks, table, strict=True):
            path = folder / block.file
            produced, latency_us = _measure(path, live, setting)
            live |= produced
            row.append(latency_us)
            step()
    latencies = BlockLatencies(device_class=device_class, share=share, rows=rows_list, latency_us=table)
    return new_profile(manifest, [latencies])


def new_profile(manifest: Manifest, latencies: list[BlockLatencies]) -> BlockProfile:
    """Build a profile of these blocks from measured latencies."""
    return BlockProfile(
        model=manifest.model,
        blocks=[block.name for block in manifest.blocks],
        cut_bytes=manifest.cut_bytes,
        memory_mib=[round(block.weight_bytes / 2**20, 3) for block in manifest.blocks],
        latencies=latencies,
    )


def merge_into(path: Path, profile: BlockProfile) -> BlockProfile:
    """Return the profile stored at `path` with the measurements of `profile` added, or `profile` if there is no file.

    Raises DocumentError if the file holds something else, or other blocks.
    """
    if not path.exists():
        return profile
    try:
        return read_document(path, BlockProfile).merged(profile)
    except DocumentError as error:
        text = str(error)
        raise DocumentError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def _measure(path: Path, live: Arrays, setting: MeasurementSetting) -> tuple[Arrays, float]:
    """Return a block's outputs and its median latency in microseconds."""
    try:
        session = _session(path, setting)
        feed = {entry.name: live[entry.name] for entry in session.get_inputs()}
        produced = run(session, feed)
        if setting.share == 1:
            return produced, median(_timed(session, feed, setting.repeats))
        del session
        return produced, median(_timed_together(path, feed, setting))
    except (SplitError, OSError):
        raise
    except Exception as error:  # onnxruntime's exceptions have no common class of their own
        rows = next(iter(live.values())).shape[0]
        raise SplitError(f"{path} cannot be run with {rows} rows on {setting.provider}: {first_line(error)}") from error


def _session(path: Path, setting: MeasurementSetting) -> ort.InferenceSession:
    threads = max(1, len(os.sched_getaffinity(0)) // setting.share)
    return open_session(
        path, path.parent, optimized=True, timed=True, provider=setting.provider, intra_op_num_threads=threads
    )


def _timed(session: ort.InferenceSession, feed: Arrays, repeats: int) -> list[float]:
    for _ in range(_WARM_UP_RUNS):
        session.run(None, feed)
    taken = []
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        session.run(None, feed)
        taken.append((time.perf_counter_ns() - start_ns) / 1000)
    return taken


def _timed_together(path: Path, feed: Arrays, setting: MeasurementSetting) -> list[float]:
    """Time as many processes as there are shares, all at work on the same block (PPipe, section 5.3)."""
    context = multiprocessing.get_context("spawn")
    barrier: Any = context.Barrier(setting.share)
    before = os.environ.get(_MPS_SHARE)
    os.environ[_MPS_SHARE] = str(100 // setting.share)  # read when a process first uses CUDA
    try:
        with context.Pool(setting.share, initializer=_set_barrier, initargs=(barrier,)) as pool:
            jobs = [(path, feed, setting)] * setting.share
            return [taken for times in pool.starmap(_share_of_work, jobs, chunksize=1) for taken in times]
    finally:
        if before is None:
            del os.environ[_MPS_SHARE]
        else:
            os.environ[_MPS_SHARE] = before


_barriers: list[Barrier] = []


def _set_barrier(barrier: Barrier) -> None:
    _barriers[:] = [barrier]


def _share_of_work(path: Path, feed: Arrays, setting: MeasurementSetting) -> list[float]:
    session = _session(path, setting)
    _timed(session, feed, 1)
    _barriers[0].wait(timeout=600)
    return _timed(session, feed, setting.repeats)
