"""The Python in the documents runs: every code block of a document, in order, in one namespace."""

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
