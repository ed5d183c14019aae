"""Ensemble of rapidocr's models: detection, cropping in Python, direction, recognition; and the pictures that it reads.

The pictures are parts of two photographs, each with one to MAX_LINES lines of text, all of one size. From the crop
step on, a row is a line, as in Triton's own tutorial on text recognition.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from shutil import copyfile
from typing import Final

import cv2
import numpy as np
import rapidocr_onnxruntime
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2

from bench.dynamic_models.detector import prepared
from bench.dynamic_models.ocr import PHOTOGRAPHS, photograph
from demo.read_text import model_path
from tidegate_repo_generator.generate import generate_model

ENSEMBLE: Final = "ocr"
BATCHED_STEPS: Final = ("text_detection", "text_direction", "text_recognition")
"""Steps whose requests may share batches; a picture is cropped by itself."""
MAX_ROWS: Final = 16
MAX_LINES: Final = 6
"""Number of lines that a picture has at most, so that several pictures share a batch of lines."""
PICTURES: Final = 48
WIDTH, HEIGHT = 320, 160
"""Size of the pictures in pixels."""
WINDOW_WIDTH, WINDOW_HEIGHT = 200, 100
"""Size of the parts of photographs that are scaled to pictures, in pixels."""
CROP: Final = f"""
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.ch_ppocr_det.text_detect import TextDetector
from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess

class TritonPythonModel:
    def initialize(self, args):
        cv2.setNumThreads(1)
        self.post_process = DBPostProcess(thresh=0.3, box_thresh=0.5, unclip_ratio=1.6, use_dilation=True)
        self.detector = TextDetector.__new__(TextDetector)  # for its filters: it has no session
        self.reader = RapidOCR.__new__(RapidOCR)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        picture, text = (pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("IMAGE", "MAP"))
        pixels = ((picture[0].transpose(1, 2, 0) * 0.5 + 0.5) * 255).astype(np.uint8)
        boxes, _ = self.post_process(text, pixels.shape[:2])
        boxes = self.detector.filter_tag_det_res(boxes, pixels.shape[:2])
        crops = self.reader.get_crop_img_list(pixels, self.reader.sorted_boxes(boxes)) if len(boxes) else [pixels]
        crops = crops[:{MAX_LINES}]
        tensors = [
            pb_utils.Tensor(name, np.stack([self.prepared(crop, width) for crop in crops]))
            for name, width in (("SHORT", 192), ("LINES", 320))
        ]
        return pb_utils.InferenceResponse(tensors)

    def prepared(self, crop, longest):
        width = min(longest, -(-crop.shape[1] * 48 // crop.shape[0]))
        scaled = cv2.resize(crop, (width, 48)).astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
        return np.pad(scaled, ((0, 0), (0, 0), (0, longest - width)))
"""
RECOGNIZE: Final = """
import json
from pathlib import Path
import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
        known = self.session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.characters = ["", *known, " "]
        self.name = self.session.get_inputs()[0].name

    def execute(self, requests):
        lines, directions = (
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in ("LINES", "DIRECTION")
        )
        together = np.concatenate(lines)
        for row in np.flatnonzero(np.concatenate(directions)[:, 1] > 0.9):
            width = np.flatnonzero(together[row].any(axis=(0, 1)))[-1] + 1
            together[row, :, :, :width] = together[row, :, ::-1, :width][:, :, ::-1].copy()
        texts = [self.text(best) for best in self.session.run(None, {self.name: together})[0].argmax(2)]
        answers = []
        for rows in map(len, lines):
            own, texts = texts[:rows], texts[rows:]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array(own, object)[:, None])]))
        return answers

    def text(self, best):
        kept = best[np.append(True, best[1:] != best[:-1]) & (best != 0)]
        return "".join(self.characters[index] for index in kept).encode()
"""
PIXELS: Final = "data_type: TYPE_FP32 dims: [ 3, -1, -1 ]"
PYTHON: Final = f'backend: "python"\nmax_batch_size: {MAX_ROWS}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n'
CONFIGS: Final = {
    "text_crop": f"""{PYTHON}
input [ {{ name: "IMAGE" {PIXELS} }}, {{ name: "MAP" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }} ]
output [ {{ name: "SHORT" {PIXELS} }}, {{ name: "LINES" {PIXELS} }} ]
""",
    "text_recognition": f"""{PYTHON}
input [ {{ name: "LINES" {PIXELS} }}, {{ name: "DIRECTION" data_type: TYPE_FP32 dims: [ 2 ] }} ]
output {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }}
""",
    ENSEMBLE: f"""platform: "ensemble"
max_batch_size: {MAX_ROWS}
input {{ name: "IMAGE" {PIXELS} }}
output {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }}
ensemble_scheduling {{ step [
  {{ model_name: "text_detection" model_version: -1
    input_map {{ key: "x" value: "IMAGE" }} output_map {{ key: "DETECTED" value: "map" }} }},
  {{ model_name: "text_crop" model_version: -1
    input_map [ {{ key: "IMAGE" value: "IMAGE" }}, {{ key: "MAP" value: "map" }} ]
    output_map [ {{ key: "SHORT" value: "short" }}, {{ key: "LINES" value: "lines" }} ] }},
  {{ model_name: "text_direction" model_version: -1
    input_map {{ key: "x" value: "short" }} output_map {{ key: "TURNED" value: "direction" }} }},
  {{ model_name: "text_recognition" model_version: -1
    input_map [ {{ key: "LINES" value: "lines" }}, {{ key: "DIRECTION" value: "direction" }} ]
    output_map {{ key: "TEXT" value: "TEXT" }} }}
] }}
""",
}
"""Each config.pbtxt that is not generated; DETECTED and TURNED stand for the outputs of generated models."""


def write_models(repository: Path, tuning: Mapping[str, float]) -> None:
    """Write the steps and the ensemble into a repository.

    `tuning`: options of Triton's batcher, `max_queue_delay_ms` and `default_timeout_ms`, the same for each step.
    """
    outputs = {}
    for model, word in (("text_detection", "DETECTED"), ("text_direction", "TURNED")):
        generated = generate_model(model_path(model), repository, name=model, max_batch=MAX_ROWS)
        outputs[word] = generated.outputs[0].name
    for model, source in (("text_crop", CROP), ("text_recognition", RECOGNIZE), (ENSEMBLE, "")):
        version = repository / model / "1"
        version.mkdir(parents=True)
        config = CONFIGS[model]
        for word, name in outputs.items():
            config = config.replace(word, name)
        (version.parent / "config.pbtxt").write_text(config)
        if source:
            (version / "model.py").write_text(source)
    copyfile(model_path("text_recognition"), repository / "text_recognition" / "1" / "model.onnx")
    for model in BATCHED_STEPS:
        file = repository / model / "config.pbtxt"
        parsed = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
        batching = parsed.dynamic_batching
        batching.max_queue_delay_microseconds = round(1000 * tuning.get("max_queue_delay_ms", 0.0))
        if "default_timeout_ms" in tuning:
            queue = batching.default_queue_policy
            queue.default_timeout_microseconds = round(1000 * tuning["default_timeout_ms"])
        file.write_text(text_format.MessageToString(parsed))


def requests() -> list[service_pb2.ModelInferRequest]:
    """Return a request for each of the pictures, which have text in them."""
    rng, reader = Random(0), rapidocr_onnxruntime.RapidOCR()
    reader.text_det.limit_side_len = HEIGHT  # it reads pictures as small as the ensemble does
    messages: list[service_pb2.ModelInferRequest] = []
    while len(messages) < PICTURES:
        photo = photograph(rng.choice(PHOTOGRAPHS))
        top, left = (
            rng.randint(0, photo.shape[axis] - part) for axis, part in enumerate((WINDOW_HEIGHT, WINDOW_WIDTH))
        )
        part = np.ascontiguousarray(photo[top : top + WINDOW_HEIGHT, left : left + WINDOW_WIDTH])
        boxes, _ = reader.text_det(cv2.resize(part, (WIDTH, HEIGHT)))
        if boxes is None or not 1 <= len(boxes) <= MAX_LINES:
            continue
        messages.append(_request(prepared(part, WIDTH, HEIGHT)))
    return messages


def _request(picture: NDArray[np.float32]) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=ENSEMBLE)
    message.inputs.add(name="IMAGE", datatype="FP32", shape=[1, *picture.shape])
    message.raw_input_contents.append(picture.tobytes())
    return message
