"""Whether the rows of models are independent, where a repository with their ONNX files can be read.

The judgement is that of `tidegate generate`: a trial of rows alone and in company, and a walk along the graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.doctor.facts import Facts, RowsVerdict, Service
from tidegate_proxy.app.doctor.finding import Finding

_MODEL_FILE: Final = "model.onnx"


def judge_rows(repositories: Sequence[Path], services: Mapping[str, Service]) -> dict[str, RowsVerdict]:
    """Run the models that may be merged, as far as their ONNX files are there; what was found, by model.

    It takes seconds for each, and needs the package tidegate-repo-generator.
    """
    if not repositories:
        return {}
    from tidegate_repo_generator.model import GenerateError  # noqa: PLC0415 - an extra; slow to import
    from tidegate_repo_generator.onnx_file import read_onnx  # noqa: PLC0415
    from tidegate_repo_generator.rows.judgement import judge_batching  # noqa: PLC0415

    found = {}
    for name, service in services.items():
        path = _model_file(repositories, service.config)
        if path is None or service.consent.batch == "pass" or service.config.max_batch_size < 1:
            continue
        try:
            verdict = judge_batching(read_onnx(path))
        except (GenerateError, OSError) as error:
            found[name] = RowsVerdict(None, str(error))
        else:
            found[name] = RowsVerdict(verdict.batches, verdict.reason)
    return found


def merged_rows(facts: Facts) -> Iterator[Finding]:
    """Models whose requests are merged though their rows are not independent, or without evidence that they are."""
    for name, verdict in facts.rows.items():
        service = facts.services[name]
        if service.consent.batch != "merge" or verdict.batches:
            continue
        remedy = f"say models.{name}.batch: alone, or drop dynamic_batching and tidegate_batch from its config.pbtxt"
        if verdict.batches is False:
            what = f"its requests are merged, and change each other's answers: {verdict.reason}"
            yield Finding("error", "rows-mixed", f"models.{name}.batch", what, remedy)
        else:
            what = f"its requests are merged, and it is not shown that its rows are independent: {verdict.reason}"
            yield Finding(
                "warning", "rows-in-doubt", f"models.{name}.batch", what, f"{remedy}; or say merge, if you know"
            )


def _model_file(repositories: Sequence[Path], config: model_config_pb2.ModelConfig) -> Path | None:
    """The ONNX file of the newest version of a model; None where there is none."""
    file = str(config.default_model_filename)
    if not file.endswith(".onnx"):  # of the Python backend that is its model.py
        file = str(config.parameters["model_file"].string_value) if "model_file" in config.parameters else _MODEL_FILE
    for repository in repositories:
        folder = Path(repository, str(config.name))
        versions = [path for path in folder.glob("*") if path.name.isdecimal()]
        for version in sorted(versions, key=lambda path: -int(path.name)):
            if (version / file).is_file():
                return version / file
    return None
