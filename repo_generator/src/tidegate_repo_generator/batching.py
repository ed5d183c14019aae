"""Whether requests of a model may share a batch: is the first dimension of all its tensors the batch's?"""

from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import OnnxFile
from tidegate_repo_generator.trial import Verdict, try_rows


def judge_batching(model: OnnxFile) -> Verdict:
    """Judge by what the model declares, then by running it.

    Names alone settle little: some exporters give every dynamic dimension a name of its own, some none, and a first
    dimension that is dynamic may also count detections, or steps in time.
    """
    tensors = [("input", tensor) for tensor in model.inputs] + [("output", tensor) for tensor in model.outputs]
    for kind, tensor in tensors:
        obstacle = _fixed(kind, tensor) or _elsewhere(kind, tensor, str(model.inputs[0].shape[0]))
        if obstacle:
            return Verdict(False, obstacle)
    verdict = try_rows(model)
    if verdict.batches is False:
        return verdict
    names = sorted({str(tensor.shape[0]) for tensor in model.inputs} - {""})
    if len(names) > 1:
        return Verdict(None, f"the first dimensions of the inputs have different names: {', '.join(names)}")
    if verdict.batches is None and names and all(tensor.shape[0] == names[0] for _, tensor in tensors):
        return Verdict(True, f"the first dimension of every tensor is called {names[0]}")
    return verdict


def _fixed(kind: str, tensor: Tensor) -> str | None:
    if isinstance(tensor.shape[0], str):
        return None
    return f"the first dimension of {kind} '{tensor.name}' is fixed at {tensor.shape[0]}"


def _elsewhere(kind: str, tensor: Tensor, first: str) -> str | None:
    """Find the batch in another place: its name in the middle of a shape, or in both places (a square matrix)."""
    for position, name in enumerate(tensor.shape[1:], start=1):
        if not isinstance(name, str) or not name:
            continue
        if name == first or ("batch" in name.lower() and "batch" not in str(tensor.shape[0]).lower()):
            return f"'{name}' is dimension {position} of {kind} '{tensor.name}', and a batch's must be the first"
    return None
