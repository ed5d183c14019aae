"""Paths in a problem file are relative to the file's folder, wherever the command runs."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.api import VersionedDocument
from tidegate.schemas import read_document
from tidegate_inss.problem import ShareProblem
from tidegate_paris_elsa.change_plan import ReconfigurationProblem
from tidegate_paris_elsa.problem import MigProblem
from tidegate_ppipe.problem import PpipeProblem

PROBLEMS: dict[type[VersionedDocument], str] = {
    PpipeProblem: "classes: [{name: T4, count: 1}]\nmodels: [{name: m, slo_ms: 9, profile: FILE}]",
    MigProblem: "gpus: [{product: A100-40GB, count: 1}]\nmodels: [{name: m, slo_ms: 9, sizes: FILE, profiles: FILE}]",
    ReconfigurationProblem: "present: FILE\nplanned: FILE\nproblem: FILE",
    ShareProblem: "gpus: [{product: V100, count: 1}]\ninterference: FILE\nmodels: [{name: m, slo_ms: 9, rate_rps: 1}]",
}


@pytest.mark.parametrize("kind", PROBLEMS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("absolute", [False, True])
def test_paths_are_relative_to_the_file(
    kind: type[VersionedDocument], absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    given = str(tmp_path / "elsewhere.json") if absolute else "../shared/measured.json"
    (folder / "problem.yaml").write_text(PROBLEMS[kind].replace("FILE", given))

    read = read_document(Path("plans/problem.yaml"), kind).model_dump(mode="json")

    expected = given if absolute else "plans/../shared/measured.json"
    assert texts(read).count(expected) == PROBLEMS[kind].count("FILE")


def texts(given: Any) -> list[str]:
    """Return all texts in a document."""
    if isinstance(given, str):
        return [given]
    values = given.values() if isinstance(given, dict) else given if isinstance(given, list) else ()
    return [text for value in values for text in texts(value)]
