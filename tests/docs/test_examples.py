"""The Python in the documents runs: every code block of a document, in order, in one namespace."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md"))
    if "```python" in path.read_text(encoding="utf-8")
)
NEEDS_THE_READERS_MODEL = {
    "docs/how-to/generate.md",
    "docs/how-to/pad.md",
    "docs/how-to/split-models.md",
    "docs/reference/generator-notices.md",
    "repo_generator/README.md",
    "triton_models/README.md",
}
"""Only compiled."""


SERVES_LOADS = {"docs/reference/load-generation.md"}
"""Against real servers, for many seconds."""


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.slow if path in SERVES_LOADS else ()) for path in DOCUMENTS],
)
def test_examples_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = list(Sybil([PythonCodeBlockParser()]).parse(ROOT / document).examples())
    assert examples
    for example in examples:
        if document in NEEDS_THE_READERS_MODEL:
            compile(str(example.parsed), document, "exec")
        else:
            example.evaluate()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_imports_of_ours_exist(document: str) -> None:
    """Also where the example itself is only compiled, or runs among the slow tests."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for module, names in re.findall(r"^from (tidegate[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        if find_spec(module.partition(".")[0]):  # else the reader's own package
            missing = [name for name in names.split(", ") if not hasattr(import_module(module), name)]
            assert missing == [], module
