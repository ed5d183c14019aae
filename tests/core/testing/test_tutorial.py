"""The tutorial for authors, as its reader would follow it: files where they are told to be put, and tests run there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "first-policy.md"
MAX_CONCEPTS = 12


def _files() -> dict[str, str]:
    """Return the text of each file by its path, in the order of the page."""
    files: dict[str, str] = {}
    path = ""
    text = TUTORIAL.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if named := re.match(r"# ((?:src|tests)/\S+\.py)(?:, which begins with: (.*))?\n", block):
            path = named[1]
            files[path] = f"{named[2] or ''}\n"
        files[path] += block
    (files["pyproject.toml"],) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return files


def test_a_first_policy_needs_few_concepts() -> None:
    """Names of Tidegate that it imports, overrides and reads; `queue.head.arrival_ns` is one."""
    tree = ast.parse(_files()["src/tidegate_patient/policy.py"])
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    concepts = {name.name for node in imports if (node.module or "").startswith("tidegate") for name in node.names}
    concepts |= {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute) and node not in inner}
    concepts |= {argument.arg for node in functions for argument in node.args.args} - {"self"}
    assert [node.name for node in functions] == ["queue_changed"]
    assert {"FirstComeFirstServed", "SetTimer", "queue", "now_ns", "super().queue_changed"} <= concepts
    assert len(concepts) <= MAX_CONCEPTS, concepts


@pytest.mark.slow
def test_the_tests_of_the_tutorial_pass_where_they_are_put(tmp_path: Path) -> None:
    for path, text in {**_files(), "src/tidegate_patient/__init__.py": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", "pythonpath=src", "tests"],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("declares itself best-effort") == 1
    assert re.search(r"^\d\d passed, 2 skipped in", done.stdout.splitlines()[-1]), done.stdout
