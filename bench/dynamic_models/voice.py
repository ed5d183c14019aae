"""silero-vad, which hears where somebody speaks: recordings of several lengths, and the state it carries along.

Its wheel has the network that takes a whole recording at once, one recording at a time. `write_vad` changes that graph
so that it takes rows of recordings of one length, as a Triton batches them; weights and results are the same. The
wheel asks for PyTorch, which its ONNX files do not need: the package is never imported.
"""

from pathlib import Path
from random import Random

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from scipy.signal import resample_poly

from bench.dynamic_models.case import Case, package_folder
from bench.dynamic_models.speech import RATE_HZ as SPOKEN_HZ
from bench.dynamic_models.speech import speak

MODEL = package_folder("silero_vad") / "data" / "silero_vad_16k_sequence.onnx"
RATE_HZ, FRAME, CONTEXT, STATE = 16_000, 512, 64, 128
"""Samples per second; samples of a frame, and of the one before it that it begins with; size of h and of c."""
FRAMES = {32: 12, 64: 10, 128: 8, 256: 5, 512: 3}
"""Lengths of recordings in frames of 32 ms, 1 to 16 s, and how many have each: what is short comes often."""
NOISE = 0.003
SENTENCES = (
    "The tide gate holds water back, and opens when the moment is right.",
    "Please call me back before six, I shall be on the train after that.",
    "No.",
    "Could you say that once more, a little slower?",
    "Forty two, seventeen, three hundred and five.",
    "We had expected rain, but the morning was clear and the harbour full of boats.",
)


def write_vad(path: Path) -> None:
    """Write the network: `speech`, [rows, frames] of 0 to 1, of `audio`, [rows, frames, CONTEXT + FRAME], all FP32.

    The recurrent state goes in as `h` and `c`, zeros to begin with, and comes out as `h_after` and `c_after`, all
    [rows, 1, STATE]: with it a recording can go on in the next request.
    """
    model = onnx.load(MODEL)
    graph = model.graph
    (squeezing,) = (node for node in graph.node if node.output[0] == "/recurrent/Squeeze_output_0")
    (turning,) = (node for node in graph.node if node.output[0] == "/Transpose_output_0")
    (recurrent,) = (node for node in graph.node if node.op_type == "LSTM")
    (shaping,) = (node for node in graph.node if node.output[0] == "speech_probs")
    # Its frames are the rows of its convolutions, and the steps of its recurrent layer, whose rows are ours.
    before = [
        helper.make_node("Reshape", ["audio", "frames_as_rows"], ["input"]),
        helper.make_node("Shape", ["audio"], ["rows_and_frames"], start=0, end=2),
        helper.make_node("Concat", ["rows_and_frames", "state_size"], ["found_by_row"], axis=0),
        helper.make_node("Transpose", ["h"], ["h_before"], perm=[1, 0, 2]),
        helper.make_node("Transpose", ["c"], ["c_before"], perm=[1, 0, 2]),
    ]
    found = turning.input[0]
    turned = [
        helper.make_node("Reshape", [found, "found_by_row"], ["found"]),
        helper.make_node("Transpose", ["found"], list(turning.output), perm=[1, 0, 2]),
    ]
    recurrent.input[5:7] = ["h_before", "c_before"]
    recurrent.output[1:3] = ["h_last", "c_last"]
    squeezing.input[1] = "direction"
    after = [
        helper.make_node("Reshape", [shaping.input[0], "without_channel"], ["speech"]),
        helper.make_node("Transpose", ["h_last"], ["h_after"], perm=[1, 0, 2]),
        helper.make_node("Transpose", ["c_last"], ["c_after"], perm=[1, 0, 2]),
    ]
    middle = [node for each in graph.node for node in (turned if each is turning else [each]) if node is not shaping]
    constants = {
        "frames_as_rows": np.array([-1, CONTEXT + FRAME]),
        "state_size": np.array([STATE]),
        "direction": np.array([1]),
        "without_channel": np.array([0, -1]),
    }
    state = ["rows", 1, STATE]
    inputs = {"audio": ["rows", "frames", CONTEXT + FRAME], "h": state, "c": state}
    outputs = {"speech": ["rows", "frames"], "h_after": state, "c_after": state}
    changed = helper.make_graph(
        [*before, *middle, *after],
        "silero_vad_rows",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [*graph.initializer, *(numpy_helper.from_array(value, name) for name, value in constants.items())],
    )
    result = helper.make_model(changed, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(result, full_check=True)
    onnx.save(result, path)


def write_recordings(folder: Path, *, seed: int = 0) -> None:
    """Write a recording for each entry of FRAMES and each of so many: sentences with pauses, and a noisy room."""
    rng = Random(seed)
    spoken = [resample_poly(said, RATE_HZ, SPOKEN_HZ).astype(np.float32) for said in speak(*SENTENCES)]
    noise = np.random.default_rng(seed)
    frames = [length for length, count in FRAMES.items() for _ in range(count)]
    state = np.zeros((1, STATE), np.float32)
    for number, length in enumerate(frames):
        audio = (NOISE * noise.standard_normal(length * FRAME)).astype(np.float32)
        start = rng.randrange(RATE_HZ // 2)
        while start < len(audio):
            sentence = rng.choice(spoken)[: len(audio) - start]
            audio[start : start + len(sentence)] += rng.uniform(0.2, 0.8) * sentence
            start += len(sentence) + rng.randrange(RATE_HZ // 4, 2 * RATE_HZ)
        np.savez(folder / f"{number:03}.npz", audio=frames_of(audio), h=state, c=state)


def frames_of(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """A recording of whole frames as the network takes it: each begins with the end of the one before it."""
    frames = audio.reshape(-1, FRAME)
    context = np.zeros((len(frames), CONTEXT), np.float32)
    context[1:] = frames[:-1, -CONTEXT:]
    return np.concatenate((context, frames), axis=1)


CASES = (
    Case(
        "voice",
        "recordings of 1 to 16 s: synthesised speech with pauses, and noise",
        slo_ms=150,
        write_model=write_vad,
        write_inputs=write_recordings,
    ),
)
