"""The examples of a property are the same in every run, whatever tests ran before it in the same process."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    """What a property is tried with."""
    seen: list[int] = []

    @settings(max_examples=200, derandomize=True, database=None)
    @given(st.integers())
    def collect(value: int) -> None:
        seen.append(value)

    collect()
    return seen


def test_what_was_imported_before_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    (tmp_path / "some_constants.py").write_text(f"LIST = {[1_000_003 * number for number in range(1, 500)]}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("some_constants")
    try:
        assert drawn() == before
    finally:
        sys.modules.pop("some_constants", None)
