"""Models for the Python backend that behave as the models of Triton's own tests do, and ensembles of these models."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.python_models import write_model

ADDS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            one, other = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            results = [("OUTPUT0", one + other), ("OUTPUT1", one - other)][: %d]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in results]))
        return answers
"""
"""Gives the sum, and unless it gives only one output the difference."""
SAME = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.pairs = [(i["name"], o["name"]) for i, o in zip(config["input"], config["output"])]

    def execute(self, requests):
        answers = []
        for request in requests:
            given = [(o, pb_utils.get_input_tensor_by_name(request, i)) for i, o in self.pairs]
            known = next(tensor.as_numpy() for _, tensor in given if tensor is not None)
            tensors = [pb_utils.Tensor(o, known * 0 if t is None else t.as_numpy()) for o, t in given]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
"""Gives its inputs back, zeros for one that is missing."""
SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = ("INPUT", "START", "READY", "CORRID")
        value, start, ready, key = (pb_utils.get_input_tensor_by_name(request, n).as_numpy().flat[0] for n in names)
        if ready:
            self.sums[key] = value + (0 if start else self.sums.get(key, 0))
        total = np.array([[self.sums.get(key, 0)]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total)])
"""
"""Gives the sum of what a sequence has sent so far."""
REPEATS = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "DELAY", "WAIT")]
            values, delays, (wait,) = (tensor.as_numpy().flatten() for tensor in tensors)
            thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), values, delays))
            thread.start()
            time.sleep(wait / 1e6)

    def answer(self, sender, values, delays):
        for index, value in enumerate(values):
            time.sleep(delays[index] / 1e6)
            tensors = [
                pb_utils.Tensor("OUT", np.array([[value]], np.int32)),
                pb_utils.Tensor("IDX", np.array([[index]], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Answers once for each value, after its delay, and holds the request for a while; times are in microseconds."""
SQUARES = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for _ in range(int(value.flat[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Answers a value as many times as it says."""
COUNTS_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            names = ("INPUT", "START", "READY", "CORRID")
            value, start, ready, key = (pb_utils.get_input_tensor_by_name(request, n).as_numpy().flat[0] for n in names)
            sender = request.get_response_sender()
            if not ready:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            self.left[key] = (int(value) if start else self.left[key]) - 1
            tensor = pb_utils.Tensor("OUTPUT", np.array([[self.left[key]]], np.int32))
            if self.left[key] > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(pb_utils.InferenceResponse([tensor]))
            else:
                sender.send(pb_utils.InferenceResponse([tensor]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
"""Counts down to zero, with one response in each iteration of a sequence."""
TELLS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = len(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            text = json.dumps(json.loads(request.parameters()), sort_keys=True).encode()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([[text]] * rows, object))]))
        return answers
"""
"""Gives the parameters of its request."""
WAITS = """
import json, time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = Path(json.loads(args["model_config"])["parameters"]["gate"]["string_value"])

    def execute(self, requests):
        self.gate.with_name("entered").touch()
        while not self.gate.exists():
            time.sleep(0.002)
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor)]) for tensor in tensors]
"""
"""Waits for a file."""

CONTROLS = """
sequence_batching { %s max_sequence_idle_microseconds: %d control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
  { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } ] }
] }
"""
IDLE_US = 2_000_000
"""After as long a pause Triton ends a sequence."""
QUEUE = """
dynamic_batching { preferred_batch_size: [ 1 ] default_queue_policy {
  max_queue_size: %d default_timeout_microseconds: %d allow_timeout_override: true
} }
"""
CACHED = "response_cache { enable: true }\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def _tensors(**tensors: str) -> str:
    """Inputs and outputs: `INPUT0="INT32[16]"`, with `?` where it is optional and `>[...]` where it is reshaped."""
    lines = []
    for name, declared in tensors.items():
        kind, _, rest = declared.partition("[")
        dims, _, more = rest.partition("]")
        reshape = f"reshape {{ shape: {more[1:]} }}" if more.startswith(">") else ""
        direction = "output" if name.startswith(("OUT", "IDX", "TOLD")) else "input"
        optional = "optional: true" if more == "?" else ""
        lines.append(f'{direction} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {optional} {reshape} }}')
    return "\n".join(lines) + "\n"


Step = tuple[str, int, dict[str, str], dict[str, str]]
"""Model and version of a step, with its inputs and outputs as tensors of the ensemble."""


def _ensemble(tensors: str, steps: Iterable[Step], rows: int, more: str = "") -> str:
    lines = []
    for model, version, inputs, outputs in steps:
        maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
        maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
        lines.append(f'{{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}')
    steps_text = ",\n".join(lines)
    scheduling = f"ensemble_scheduling {{ step [ {steps_text} ] }}\n"
    return f'platform: "ensemble"\nmax_batch_size: {rows}\n{tensors}{more}{scheduling}'


def _passing(names: Sequence[tuple[str, str]], model: str) -> Step:
    """A step of a model that gives its inputs back, for these pairs of tensors."""
    return (
        model,
        -1,
        {f"INPUT{index}": source for index, (source, _) in enumerate(names)},
        {f"OUTPUT{index}": target for index, (_, target) in enumerate(names)},
    )


PAIR = _tensors(INPUT0="INT32[16]", INPUT1="INT32[16]", OUTPUT0="INT32[16]", OUTPUT1="INT32[16]")
OPTIONAL = _tensors(INPUT0="FP32[1]?", INPUT1="FP32[1]?", OUTPUT0="FP32[1]", OUTPUT1="FP32[1]")
OF_SEQUENCE = _tensors(INPUT="INT32[1]", OUTPUT="INT32[1]")
REPEATED = _tensors(IN="INT32[-1]", DELAY="UINT32[-1]", WAIT="UINT32[1]", OUT="INT32[1]", IDX="UINT32[1]")
SQUARED = REPEATED.replace(_tensors(IDX="UINT32[1]"), "")
BOTH = {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}

ENSEMBLES = {
    "ensemble_add_sub": _ensemble(
        PAIR, [("simple", 1, BOTH, {"OUTPUT1": "OUTPUT1"}), ("simple", 2, BOTH, {"OUTPUT0": "OUTPUT0"})], 8
    ),
    "ensemble_latest": _ensemble(
        PAIR,
        [
            ("add_sub", -1, BOTH, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
            ("add_sub", -1, {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
        ],
        8,
    ),
    "ensemble_partial": _ensemble(PAIR, [("partial", -1, BOTH, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})], 8),
    "ensemble_gap": _ensemble(
        PAIR,
        [
            ("partial", -1, BOTH, {"OUTPUT0": "sum", "OUTPUT1": "missing"}),
            ("add_sub", -1, {"INPUT0": "sum", "INPUT1": "missing"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
        ],
        8,
    ),
    "ensemble_optional": _ensemble(OPTIONAL, [("optional", -1, BOTH, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})], 4),
    "ensemble_optional_chain": _ensemble(
        OPTIONAL,
        [
            ("optional", -1, BOTH, {"OUTPUT0": "between0", "OUTPUT1": "between1"}),
            _passing((("between0", "OUTPUT0"), ("between1", "OUTPUT1")), "optional"),
        ],
        4,
    ),
    "ensemble_unconnected": _ensemble(
        _tensors(INPUT0="FP32[1]", INPUT1="FP32[1]", OUTPUT0="FP32[1]", OUTPUT1="FP32[1]"),
        [
            ("optional", -1, BOTH, {"OUTPUT0": "between"}),
            ("optional", -1, {"INPUT1": "between"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
        ],
        4,
    ),
    "ensemble_reshaped": _ensemble(
        _tensors(INPUT0="FP32[4]", OUTPUT0="FP32[4]"),
        [_passing((("INPUT0", "between"),), "reshaped"), _passing((("between", "OUTPUT0"),), "reshaped")],
        4,
    ),
    "ensemble_flat": _ensemble(
        _tensors(INPUT0="FP32[-1]", OUTPUT0="FP32[-1]"), [_passing((("INPUT0", "OUTPUT0"),), "flat")], 0
    ),
    "ensemble_tells": _ensemble(
        _tensors(INPUT0="FP32[1]", TOLD="STRING[1]"),
        [_passing((("INPUT0", "between"),), "same"), ("tells", -1, {"INPUT0": "between"}, {"TOLD": "TOLD"})],
        4,
    ),
    "ensemble_queue": _ensemble(
        _tensors(INPUT="FP32[1]", OUTPUT="FP32[1]"),
        [("queue", -1, {"INPUT": "INPUT"}, {"OUTPUT": "OUTPUT"})],
        1,
    ),
    "ensemble_of_cached": _ensemble(
        _tensors(INPUT0="FP32[1]", OUTPUT0="FP32[1]"), [_passing((("INPUT0", "OUTPUT0"),), "cached")], 4
    ),
    "simple_sums": _ensemble(OF_SEQUENCE, [("sums", -1, {"INPUT": "INPUT"}, {"OUTPUT": "OUTPUT"})], 4),
    "sequence_sums": _ensemble(
        OF_SEQUENCE,
        [
            _passing((("INPUT", "before"),), "same_int"),
            ("sums", -1, {"INPUT": "before"}, {"OUTPUT": "after"}),
            _passing((("after", "OUTPUT"),), "same_int"),
        ],
        4,
    ),
    "simple_repeat": _ensemble(
        REPEATED,
        [("repeat", -1, {name: name for name in ("IN", "DELAY", "WAIT")}, {"OUT": "OUT", "IDX": "IDX"})],
        1,
    ),
    "sequence_repeat": _ensemble(
        SQUARED,
        [
            _passing((("IN", "values"),), "any_int"),
            ("repeat", -1, {"IN": "values", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "between"}),
            _passing((("between", "OUT"),), "any_int"),
        ],
        1,
    ),
    "repeat_square": _ensemble(
        SQUARED,
        [
            ("repeat", -1, {name: name for name in ("IN", "DELAY", "WAIT")}, {"OUT": "between"}),
            ("square", -1, {"IN": "between"}, {"OUT": "OUT"}),
        ],
        1,
    ),
    "nested_square": _ensemble(
        SQUARED,
        [("repeat_square", -1, {name: name for name in ("IN", "DELAY", "WAIT")}, {"OUT": "OUT"})],
        1,
    ),
}


def _python(repository: Path, name: str, source: str, config: str, rows: int, versions: int = 1) -> None:
    common = f'backend: "python"\nmax_batch_size: {rows}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n'
    version = write_model(repository, name, source, common + config)
    for number in range(2, versions + 1):
        (version.parent / str(number)).mkdir()
        (version.parent / str(number) / "model.py").write_text(source)


def write_models(repository: Path, gate: Path) -> None:
    """Write all models into a repository; `gate`: the file for which the model `queue` waits."""
    one, same = _tensors(INPUT0="FP32[1]", OUTPUT0="FP32[1]"), _tensors(INPUT0="INT32[1]", OUTPUT0="INT32[1]")
    _python(repository, "simple", ADDS % 2, PAIR + "version_policy { all {} }\n", 8, versions=2)
    _python(repository, "add_sub", ADDS % 2, PAIR, 8)
    _python(repository, "partial", ADDS % 1, PAIR, 8)
    _python(repository, "optional", SAME, OPTIONAL, 4)
    _python(repository, "same", SAME, one, 4)
    _python(repository, "same_int", SAME, same, 4)
    _python(repository, "any_int", SAME, same.replace("[ 1 ]", "[ -1 ]"), 4)
    reshaped = _tensors(INPUT0="FP32[4]>[2, 2]", OUTPUT0="FP32[4]>[2, 2]")
    _python(repository, "reshaped", SAME, reshaped, 4)
    _python(repository, "flat", SAME, _tensors(INPUT0="FP32[-1]", OUTPUT0="FP32[-1]"), 0)
    _python(repository, "tells", TELLS, _tensors(INPUT0="FP32[1]", TOLD="STRING[1]"), 4)
    _python(repository, "cached", SAME, one + CACHED, 4)
    waits = _tensors(INPUT="FP32[1]", OUTPUT="FP32[1]") + QUEUE % (2, 60_000_000)
    _python(repository, "queue", WAITS, waits + f'parameters {{ key: "gate" value: {{ string_value: "{gate}" }} }}', 1)
    oldest = "oldest { max_candidate_sequences: 4 }"
    _python(repository, "sums", SUMS, OF_SEQUENCE + CONTROLS % ("direct {}", IDLE_US, "UINT64"), 4)
    _python(repository, "oldest", SUMS, OF_SEQUENCE + CONTROLS % (oldest, IDLE_US, "UINT64"), 4)
    _python(repository, "named", SUMS, OF_SEQUENCE + CONTROLS % (oldest, IDLE_US, "STRING"), 4)
    _python(repository, "solo", SUMS, OF_SEQUENCE + CONTROLS % ("direct {}", IDLE_US, "UINT64"), 1)
    _python(repository, "repeat", REPEATS, REPEATED + DECOUPLED, 1)
    _python(repository, "square", SQUARES, _tensors(IN="INT32[1]", OUT="INT32[1]") + DECOUPLED, 1)
    iterative = CONTROLS % ("iterative_sequence: true", IDLE_US, "UINT64")
    _python(repository, "iterative", COUNTS_DOWN, OF_SEQUENCE + DECOUPLED + iterative, 1)
    for name, config in ENSEMBLES.items():
        write_model(repository, name, "", config)
