"""The convention for subjects of commits, and histories in which it cannot be checked."""

import subprocess
from pathlib import Path

import pytest

from checks.commits import problems_of, subjects_since


@pytest.mark.parametrize(
    "subject",
    [
        "engine: keep a worker for the most urgent request",
        "docs, metrics: say that a slow policy is replaced",
        "proxy/http: process chunked bodies",
        "tests: feed the proxy half a request",
    ],
)
def test_what_follows_the_convention(subject: str) -> None:
    assert problems_of(subject) == []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("Nobody is told of idle workers", "component"),
        ("engine: Keep a worker", "component"),
        ("engine: kept", "component"),
        ("engine: adds a worker", "imperative"),
        ("engine: added a worker", "imperative"),
        ("engine: adding a worker", "imperative"),
        ("engine: add a worker.", "full stop"),
        (f"engine: add {'a' * 70}", "82 characters"),
    ],
)
def test_what_does_not(subject: str, problem: str) -> None:
    assert problem in " ".join(problems_of(subject))


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_only_later_commits_are_read(tmp_path: Path) -> None:
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "Before")
    since = _git(tmp_path, "rev-parse", "HEAD")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "engine: add a worker", "-m", "The body.")
    assert [subject for _, subject in subjects_since(since, tmp_path) or []] == ["engine: add a worker"]


def test_where_the_history_is_missing_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert subjects_since("0" * 40, tmp_path) is None, "no repository"
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "engine: add a worker")
    assert subjects_since("0" * 40, tmp_path) is None, "a shallow clone"
    monkeypatch.setenv("PATH", "")
    assert subjects_since("0" * 40, tmp_path) is None, "no git"
