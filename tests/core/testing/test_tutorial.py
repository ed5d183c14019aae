"""The tests that the tutorial shows pass under pytest, as its reader would run them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "first-policy.md"


@pytest.mark.slow
def test_the_tests_of_the_tutorial_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_patient.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("declares itself best-effort") == 1
    assert re.search(r"^\d\d passed, 2 skipped in", done.stdout.splitlines()[-1]), done.stdout
