"""Model for Triton's Python backend that emulates the execution time of a GPU.

An instance sleeps for the time that the batch would take, and answers each request with its own inputs, or with as many
bytes as a real model would return. It needs numpy and what Triton provides to every Python model, nothing else. Its
parameters and a configuration example are in the README of tidegate-triton-models.
"""

import ctypes
import fcntl
import itertools
import json
import math
import mmap
import os
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_PR_SET_TIMERSLACK = 29
_NS_PER_MS = 1_000_000


class TritonPythonModel:
    """One model instance: an emulated GPU that runs one batch at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters. Raises TritonModelException, which fails the load, if one is invalid."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._batches = config["max_batch_size"] > 0
        self._time_input = parameters.get("time_input")
        try:
            self._latency_ms = latencies_ms(parameters, args["model_instance_name"])
            self._varying = sorted(entry["name"] for entry in config["input"] if -1 in map(int, entry["dims"]))
            self._jitter = jitter(parameters, args["model_instance_name"])
            self._stall = stalls(parameters, args["model_instance_name"])
            self._sum_times = _time_reduce(parameters) == "sum"
            self._neighbors = neighbors(parameters)
            self._zeros = _zeros(parameters, config)
            self._echoed = (
                _echoed_pairs(config["input"], config["output"], self._time_input) if self._zeros is None else []
            )
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        # The kernel may wake a sleeper 50 us late to save power; this thread asks for 1 ns.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._overshoot = _Overshoot(args["model_name"], args["model_instance_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Occupy the instance for the time of one batch of all `requests`, then answer each with its inputs."""
        start_ns = time.monotonic_ns()
        responses = []
        rows = 0
        times: list[float] = []
        shapes = set()
        for request in requests:
            try:
                own_rows, own_times, shape = self._measure(request)
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error))))
                continue
            rows += own_rows
            times += own_times
            shapes.add(shape)
            # Prepared before the sleep, so that only the sending comes after it.
            responses.append(self._answer(request, own_rows))
        if not rows:  # every request was refused
            return responses
        carried_ms = sum(times) if self._sum_times else max(times, default=0.0)
        hold_ms = max(self._latency_ms(shape, rows) for shape in shapes) + carried_ms
        hold_ms *= self._jitter() * self._stall()
        work_ns = round(hold_ms * _NS_PER_MS)
        self._overshoot.publish()
        if self._neighbors is None:
            end_ns = start_ns + work_ns
            _sleep_until(end_ns)
        else:
            end_ns = self._neighbors.hold(start_ns, work_ns, rows)
        self._overshoot.record(time.monotonic_ns() - end_ns)
        return responses

    def _measure(self, request: Any) -> tuple[int, list[float], str]:  # noqa: ANN401 - Triton's class, known inside its process only
        """Return the rows of a request, the milliseconds that its time input carries, and its shape."""
        rows = request.inputs()[0].shape()[0] if self._batches else 1
        shape = self._shape(request)
        self._latency_ms(shape, rows)  # a shape without a time is refused before anything runs
        if self._time_input is None:
            return rows, [], shape
        tensor = pb_utils.get_input_tensor_by_name(request, self._time_input)
        if tensor is None:
            raise ValueError(f"the request lacks the input '{self._time_input}', which carries its time")
        values = tensor.as_numpy()
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            raise ValueError(f"input '{self._time_input}' must hold milliseconds, finite and not negative")
        return rows, values.ravel().tolist(), shape

    def _shape(self, request: Any) -> str:  # noqa: ANN401
        """Say how large the inputs are whose dimensions vary, as Tidegate does: `x:3,48,320;y:7`, rows not counted."""
        tensors = ((name, pb_utils.get_input_tensor_by_name(request, name)) for name in self._varying)
        first = 1 if self._batches else 0
        return ";".join(f"{name}:{','.join(map(str, tensor.shape()[first:]))}" for name, tensor in tensors if tensor)

    def _echo(self, request: Any) -> Any:  # noqa: ANN401
        wanted = set(request.requested_output_names())
        tensors = []
        for source, target in self._echoed:
            tensor = pb_utils.get_input_tensor_by_name(request, source) if target in wanted else None
            if tensor is not None:
                tensors.append(pb_utils.Tensor(target, tensor.as_numpy()))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _answer(self, request: Any, rows: int) -> Any:  # noqa: ANN401
        if self._zeros is None:
            return self._echo(request)
        zeros = self._zeros[:rows] if self._batches else self._zeros[0]
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, zeros) for name in request.requested_output_names()]
        )


def _sleep_until(end_ns: int) -> None:
    remaining_ns = end_ns - time.monotonic_ns()
    if remaining_ns > 0:
        time.sleep(remaining_ns / 1e9)


class _Neighbors:
    """Board of the busy instances on one emulated GPU, a file that all processes map.

    A line of the board is one instance's: until when it is busy, in seconds of the monotonic clock, and the percentages
    of cache and DRAM that it uses meanwhile. Each takes a free line when it starts, and has it by a lock of
    the file: whatever ends the process, the kernel frees it. One that is killed is no neighbor for longer than
    `AWAY_NS`.
    """

    MIN_STEP_NS, MAX_STEP_NS, STEPS = 1_000_000, 4_000_000, 32
    """How often an instance reads the board while it is busy: `STEPS` times a batch, within these limits."""
    AWAY_NS = 50_000_000
    """How long its line lasts without being written: a busy machine lets a process wait for tens of milliseconds."""
    AHEAD_S = 1.0
    """Longest plausible busy time: a line with a longer one is of before the machine was started again."""
    LINES, LINE_BYTES = 64, 24

    def __init__(self, board: str, uses: dict[int, tuple[float, float, float]], minds: list[float]) -> None:
        """`uses`: by rows, its own percentages of cache and DRAM, and the share of its time that is not the bus's."""
        # Open for as long as the process lives: with the first of its descriptors that is closed the lock would go.
        self._file = os.open(board, os.O_RDWR | os.O_CREAT, 0o666)
        if os.fstat(self._file).st_size < self.LINES * self.LINE_BYTES:
            os.ftruncate(self._file, self.LINES * self.LINE_BYTES)
        # Plain floats: numpy's arrays of a few elements took several times as long, in every instance's every step.
        self._board = memoryview(mmap.mmap(self._file, self.LINES * self.LINE_BYTES)).cast("d")
        self._line = self._take_line(board)
        self._mine = 3 * self._line
        """Where its line begins."""
        self._write(0.0, 0.0, 0.0)
        self._uses, self._minds = uses, minds

    def _write(self, until_s: float, cache: float, dram: float) -> None:
        self._board[self._mine], self._board[self._mine + 1], self._board[self._mine + 2] = until_s, cache, dram

    def _take_line(self, board: str) -> int:
        for line in range(self.LINES):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, self.LINE_BYTES, self.LINE_BYTES * line)
            except (BlockingIOError, PermissionError):  # another process holds it; POSIX allows either
                continue
            return line
        raise ValueError(
            f"parameter neighbors: all {self.LINES} lines of the board {board} are taken: no more instances can share "
            "one emulated GPU"
        )

    def hold(self, start_ns: int, work_ns: int, rows: int) -> int:
        """Sleep for as long as work takes beside those that are busy meanwhile; return when it should have ended."""
        known = min((each for each in self._uses if each >= rows), default=max(self._uses))
        cache, dram, computing = self._uses[known]
        now_ns, left_ns = start_ns, float(work_ns)
        longest_ns = min(self.MAX_STEP_NS, max(self.MIN_STEP_NS, work_ns // self.STEPS))
        while left_ns > 0:
            slowdown = 1 + computing * self._felt(now_ns)
            step_ns = min(longest_ns, math.ceil(left_ns * slowdown))
            self._write((now_ns + self.AWAY_NS) / 1e9, cache, dram)
            now_ns += step_ns
            _sleep_until(now_ns)
            left_ns -= step_ns / slowdown
        self._write(0.0, cache, dram)
        return now_ns

    def _felt(self, now_ns: int) -> float:
        """Say by how much computing takes longer, as a share of what it takes alone."""
        now_s = now_ns / 1e9
        cache, dram, each = self._minds
        felt = 0.0
        for at, until_s in zip(range(0, 3 * self.LINES, 3), self._board[::3].tolist(), strict=True):
            if now_s < until_s < now_s + self.AHEAD_S and at != self._mine:
                felt += cache * self._board[at + 1] + dram * self._board[at + 2] + each
        return felt


def neighbors(parameters: dict[str, str]) -> _Neighbors | None:
    """Return the models that share the emulated GPU, from the parameter `neighbors`, or None if it is not shared.

    Raises ValueError for an invalid value.
    """
    text = parameters.get("neighbors")
    if text is None:
        return None
    try:
        record = json.loads(text)
        uses = {}
        for rows, (cache, dram, computing) in record["uses"].items():
            uses[int(rows)] = float(cache), float(dram), float(computing)
        minds = [float(value) for value in record["minds"]]
        board = str(record["board"])
        if not uses or len(minds) != 3 or min(*minds, *(value for mine in uses.values() for value in mine)) < 0:
            raise ValueError("nothing may be negative")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"parameter neighbors is '{text}': expected JSON with board, uses {{rows: [cache, dram, part]}} "
            "and minds [cache, dram, neighbor], nothing negative"
        ) from error
    try:
        return _Neighbors(board, uses, minds)
    except OSError as error:
        raise ValueError(f"parameter neighbors: {board}: {error.strerror}") from error


class _Overshoot:
    """How much longer than promised the batches were held, as a counter on Triton's metrics page."""

    def __init__(self, model: str, instance: str) -> None:
        # The family stays referenced: Triton removes the metrics of one that is collected.
        self._family = pb_utils.MetricFamily(
            name="tidegate_emulated_gpu_overshoot_us",
            description="Time that the emulated GPU held its batches beyond the promised one, in microseconds",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._total_us = self._family.Metric(labels={"model": model, "instance": instance})
        self._unpublished_ns = 0

    def record(self, overshoot_ns: int) -> None:
        self._unpublished_ns += overshoot_ns

    def publish(self) -> None:
        """Publish the batch before: within the next one's hold, this round trip to the server makes no batch longer."""
        if self._unpublished_ns:
            self._total_us.increment(self._unpublished_ns / 1000)
            self._unpublished_ns = 0


def latencies_ms(parameters: dict[str, str], instance: str = "") -> Callable[[str, int], float]:
    """Return the function from the shape and rows of a batch to its latency in milliseconds, without the time input.

    Raises ValueError for an invalid value. `instance`: name of the instance, which begins with the name of its instance
    group.
    """
    if "groups_ms" in parameters:
        of_group = _table(_of_group(parameters, instance))
        return lambda shape, rows: of_group(rows)
    text = parameters.get("shapes_ms")
    if text is None:
        of_rows = latency_ms(parameters)
        return lambda shape, rows: of_rows(rows)
    if others := [key for key in ("alpha_ms", "beta_ms", "table_ms", "time_input") if key in parameters]:
        raise ValueError(f"parameter {others[0]} has no meaning beside shapes_ms, whose times are whole")
    try:
        tables = {shape: _table(json.dumps(table)) for shape, table in json.loads(text).items()}
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f'parameter shapes_ms is \'{text}\': expected JSON such as {{"x:320": {{"1": 5.2, "8": 9.0}}}}'
        ) from error
    if not tables:
        raise ValueError("parameter shapes_ms names no shape")

    def of(shape: str, rows: int) -> float:
        if shape not in tables:
            raise ValueError(f"the request has the shape '{shape}', and shapes_ms has {', '.join(sorted(tables))}")
        return tables[shape](rows)

    return of


def _of_group(parameters: dict[str, str], instance: str) -> str:
    """Find the table of the instance's group, as JSON."""
    text = parameters["groups_ms"]
    ways = ("alpha_ms", "beta_ms", "table_ms", "shapes_ms", "time_input")
    if others := [key for key in ways if key in parameters]:
        raise ValueError(f"parameter {others[0]} has no meaning beside groups_ms, whose times are whole")
    try:
        tables = {group: json.dumps(table) for group, table in json.loads(text).items()}
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f'parameter groups_ms is \'{text}\': expected JSON such as {{"a": {{"1": 5.2}}}}') from error
    # Triton calls the only instance of a group by the group's name, several by that and their number.
    group = instance if instance in tables else instance.rpartition("_")[0]
    if group not in tables:
        raise ValueError(f"parameter groups_ms has {', '.join(sorted(tables))}, and the instance is '{instance}'")
    return tables[group]


def stalls(parameters: dict[str, str], instance: str) -> Callable[[], float]:
    """Return a source of latency factors: `stall_factor` (10) with probability `stall_probability`, otherwise 1.

    Raises ValueError for an invalid value.
    """
    probability = _number(parameters, "stall_probability", 0.0)
    factor = _number(parameters, "stall_factor", 10.0)
    if probability > 1:
        raise ValueError(f"parameter stall_probability is '{probability}': expected a number from 0 to 1")
    if probability == 0:
        return lambda: 1.0
    generator = np.random.default_rng([_seed(parameters), zlib.crc32(instance.encode()), 1])
    return lambda: factor if generator.random() < probability else 1.0


def latency_ms(parameters: dict[str, str]) -> Callable[[int], float]:
    """Return the function from the rows of a batch to its latency in milliseconds, without the time input.

    Raises ValueError for an invalid value.
    """
    ways = [key for key in ("alpha_ms", "table_ms", "time_input") if key in parameters]
    if len(ways) != 1:
        raise ValueError(f"exactly one of the parameters alpha_ms, table_ms and time_input must be set, not {ways}")
    if "table_ms" in parameters:
        if "beta_ms" in parameters:
            raise ValueError("parameter beta_ms has no meaning beside table_ms, whose times are whole")
        return _table(parameters["table_ms"])
    alpha = _number(parameters, "alpha_ms", 0.0)
    beta = _number(parameters, "beta_ms", 0.0)
    return lambda rows: alpha * rows + beta


def jitter(parameters: dict[str, str], instance: str) -> Callable[[], float]:
    """Return a source of latency factors with mean 1 and the parameter `jitter` as coefficient of variation.

    Raises ValueError for an invalid value.
    """
    variation = _number(parameters, "jitter", 0.0)
    kind = parameters.get("jitter_kind", "lognormal")
    seed = _seed(parameters)
    if kind not in {"lognormal", "gamma"}:
        raise ValueError(f"parameter jitter_kind is '{kind}': expected lognormal or gamma")
    if variation == 0:
        return lambda: 1.0
    # The instance's name keeps instances of one model apart, and the same from run to run.
    generator = np.random.default_rng([seed, zlib.crc32(instance.encode())])
    if kind == "gamma":
        return lambda: float(generator.gamma(1 / variation**2, variation**2))
    variance = math.log(1 + variation**2)
    return lambda: float(generator.lognormal(-variance / 2, math.sqrt(variance)))


def _table(text: str) -> Callable[[int], float]:
    """Read `{"rows": milliseconds, ...}`: flat before the first entry, linear between, the last slope beyond."""
    try:
        entries = sorted((int(rows), float(value)) for rows, value in json.loads(text).items())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f'parameter table_ms is \'{text}\': expected JSON such as {{"1": 5.2, "8": 9.0}}') from error
    if not entries or entries[0][0] < 1 or not all(math.isfinite(value) and value >= 0 for _, value in entries):
        raise ValueError(f"parameter table_ms is '{text}': expected rows from 1 and milliseconds, not negative")
    if any(left[0] == right[0] for left, right in itertools.pairwise(entries)):
        raise ValueError(f"parameter table_ms is '{text}': it gives one number of rows twice")
    rows_known = [rows for rows, _ in entries]
    times = [value for _, value in entries]
    slope = (times[-1] - times[-2]) / (rows_known[-1] - rows_known[-2]) if len(entries) > 1 else 0.0

    def of(rows: int) -> float:
        if rows > rows_known[-1]:
            return max(0.0, times[-1] + slope * (rows - rows_known[-1]))
        return float(np.interp(rows, rows_known, times))

    return of


def _time_reduce(parameters: dict[str, str]) -> str:
    reduce = parameters.get("time_reduce", "max")
    if reduce not in {"max", "sum"}:
        raise ValueError(f"parameter time_reduce is '{reduce}': expected max or sum")
    if "time_reduce" in parameters and "time_input" not in parameters:
        raise ValueError("parameter time_reduce has a meaning beside time_input only")
    return reduce


def _zeros(parameters: dict[str, str], config: dict[str, Any]) -> "np.ndarray[Any, Any] | None":
    """Make the rows of the largest batch that the parameter `output_bytes` asks for; None where it is not given."""
    text = parameters.get("output_bytes")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"parameter output_bytes is '{text}': expected a whole number of at least 1")
    for entry in config["output"]:
        if entry["data_type"] != "TYPE_UINT8":
            raise ValueError(
                f"parameter output_bytes gives every output bytes, but output '{entry['name']}' is "
                f"{entry['data_type']}: make it TYPE_UINT8"
            )
    return np.zeros((max(1, config["max_batch_size"]), int(text)), np.uint8)


def _echoed_pairs(
    inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], time_input: str | None
) -> list[tuple[str, str]]:
    """Pair inputs with outputs in the order of config.pbtxt; the time input is left out where outputs are one fewer."""
    if time_input is not None:
        entry = next((entry for entry in inputs if entry["name"] == time_input), None)
        if entry is None or entry["data_type"] != "TYPE_FP32":
            raise ValueError(
                f"parameter time_input is '{time_input}': config.pbtxt has no TYPE_FP32 input of that name"
            )
    sources = inputs
    if len(outputs) != len(inputs):
        sources = [entry for entry in inputs if entry["name"] != time_input]
    if len(sources) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs cannot be echoed to {len(outputs)} outputs: they are paired in order")
    for source, target in zip(sources, outputs, strict=True):
        if source["data_type"] != target["data_type"]:
            raise ValueError(
                f"input '{source['name']}' is {source['data_type']}, but output '{target['name']}', which echoes it, "
                f"is {target['data_type']}"
            )
        if source["data_type"] == "TYPE_BF16":
            raise ValueError(f"input '{source['name']}' is TYPE_BF16, which numpy 1 does not have")
    return [(source["name"], target["name"]) for source, target in zip(sources, outputs, strict=True)]


def _seed(parameters: dict[str, str]) -> int:
    text = parameters.get("seed", "0")
    if not text.isdecimal():
        raise ValueError(f"parameter seed is '{text}': expected a whole number, not negative")
    return int(text)


def _number(parameters: dict[str, str], key: str, default: float) -> float:
    text = parameters.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"parameter {key} is '{text}': expected a number, not negative")
    return value
