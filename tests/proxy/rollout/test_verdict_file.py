"""The file with verdicts on new versions."""

import json
import logging
from pathlib import Path

import pytest

from tidegate_proxy.rollout.verdict_file import StoredVerdict, VerdictFile

VERDICT = StoredVerdict("m", {"stable": 1, "candidate": 2}, "promoted", "it is as good")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    file = VerdictFile(path)
    assert file.differs([VERDICT])
    file.write([VERDICT])
    assert not file.differs([VERDICT])
    again = VerdictFile(path)
    assert again.find("m", {"stable": 1, "candidate": 2}) == VERDICT
    assert again.find("m", {"stable": 1, "candidate": 3}) is None
    assert again.find("other", {"stable": 1, "candidate": 2}) is None
    assert [each.name for each in tmp_path.iterdir()] == ["verdicts.json"]


def test_without_a_file_nothing_is_stored() -> None:
    file = VerdictFile(None)
    assert not file.differs([VERDICT])
    assert file.find("m", {}) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", json.dumps([{"model": "m", "rollout": {}, "state": "shadow", "why": ""}])],
)
def test_an_unreadable_file_is_reported_and_replaced(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "verdicts.json"
    path.write_text(content)
    file = VerdictFile(path)
    assert [record.message for record in caplog.records] == ["verdicts on versions lost"]
    assert file.find("m", {}) is None
    file.write([VERDICT])
    assert VerdictFile(path).find("m", VERDICT.rollout) == VERDICT


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    file = VerdictFile(tmp_path / "nowhere" / "verdicts.json")
    file.write([VERDICT])
    file.write([VERDICT])
    assert [record.message for record in caplog.records] == ["verdicts on versions not stored"]
    assert file.differs([VERDICT]), "and tried again"
