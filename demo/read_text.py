"""Read the text of a picture with three models that a Triton server runs: text detection, direction, recognition.

A plain tritonclient program: it is given a server's address and knows nothing of what is behind it.

    python demo/read_text.py localhost:8001 picture.png

What happens to pixels before and after the models is rapidocr's own code; only its onnxruntime sessions are replaced
by calls to the server.
"""

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import rapidocr_onnxruntime
from numpy.typing import NDArray
from rapidocr_onnxruntime.ch_ppocr_cls import text_cls
from rapidocr_onnxruntime.ch_ppocr_det import text_detect
from rapidocr_onnxruntime.ch_ppocr_rec import text_recognize
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

MODEL_FILES = {
    "text_detection": "ch_PP-OCRv4_det_infer.onnx",
    "text_direction": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "text_recognition": "ch_PP-OCRv4_rec_infer.onnx",
}
"""The models' names on the server, and their files in the rapidocr-onnxruntime wheel."""


def model_path(name: str) -> Path:
    """Where the wheel keeps a model."""
    return Path(rapidocr_onnxruntime.__file__).parent / "models" / MODEL_FILES[name]


class TritonSession:
    """Stands in for rapidocr's onnxruntime session: the same calls, answered by the server."""

    client: ClassVar[InferenceServerClient]

    def __init__(self, config: dict[str, Any]) -> None:
        file = Path(config["model_path"])
        self._model = next(name for name, known in MODEL_FILES.items() if known == file.name)
        metadata = self.client.get_model_metadata(self._model)
        self._input = metadata.inputs[0].name
        self._output = metadata.outputs[0].name
        self._file = file

    def __call__(self, pixels: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Run the model on a batch of pictures, shape [rows, 3, height, width]."""
        tensor = InferInput(self._input, pixels.shape, "FP32")
        tensor.set_data_from_numpy(pixels)
        result = self.client.infer(self._model, [tensor], outputs=[InferRequestedOutput(self._output)])
        return [result.as_numpy(self._output)]

    def have_key(self, key: str = "character") -> bool:
        """Whether the model file carries the alphabet."""
        return key in self._metadata()

    def get_character_list(self, key: str = "character") -> list[str]:
        """The alphabet that the recognizer's classes stand for."""
        return self._metadata()[key].splitlines()

    def _metadata(self) -> dict[str, str]:
        model = onnx.load(self._file, load_external_data=False)
        return {entry.key: entry.value for entry in model.metadata_props}


def read_text(address: str, picture: Path) -> list[tuple[str, float]]:
    """The lines of text in a picture, each with its confidence, top to bottom."""
    with InferenceServerClient(address) as client:
        TritonSession.client = client
        for module in (text_detect, text_cls, text_recognize):
            module.OrtInferSession = TritonSession
        lines, _ = rapidocr_onnxruntime.RapidOCR()(str(picture))
    return [(text, float(confidence)) for _, text, confidence in lines or ()]


if __name__ == "__main__":
    for line, score in read_text(sys.argv[1], Path(sys.argv[2])):
        print(f"{score:.4f}  {line}")
