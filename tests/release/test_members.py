"""All distributions are released together: what they share is checked, and the checks can fail."""

from pathlib import Path

import pytest

import release.members
from release.members import ROOT, members, problems_of, version


def test_the_members_go_together() -> None:
    assert problems_of() == []
    assert len(members()) > 10
    assert {member.folder for member in members()} == {
        manifest.parent for pattern in ("*", "plugins/*") for manifest in ROOT.glob(f"{pattern}/pyproject.toml")
    } - {ROOT / "plugins" / "template"}


def test_all_has_all() -> None:
    """`pip install tidegate[all]` brings every distribution, by way of the core's other extras."""
    (core,) = (member for member in members() if member.name == "tidegate")
    extras = core.manifest["project"]["optional-dependencies"]
    named, open_ = set(), ["all"]
    while open_:
        for requirement in extras[open_.pop()]:
            name, _, rest = requirement.partition("[")
            if name == "tidegate":
                open_ += rest.partition("]")[0].split(",")
            named.add(name.partition("~")[0])
    assert {member.name for member in members()} <= named


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository of two distributions that go together."""
    for folder, name in (("core", "tidegate"), ("proxy", "tidegate-proxy")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "LICENSE").write_text("Do as you like.\n")
        (tmp_path / folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\ndynamic = ["version"]\ndependencies = ["tidegate~=2.3.0", "rich>=13"]\n'
        )
    (tmp_path / "LICENSE").write_text("Do as you like.\n")
    (tmp_path / "VERSION").write_text("2.3.4\n")
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["core", "proxy"]\nexclude = []\n')
    chart = tmp_path / "deploy" / "helm" / "tidegate"
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text('version: 2.3.4\nappVersion: "2.3.4"\n')
    monkeypatch.setattr(release.members, "ROOT", tmp_path)
    assert problems_of() == []
    assert version() == "2.3.4"
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("VERSION", "2.3.4", "2.4.0", "proxy/pyproject.toml: 'tidegate~=2.3.0' must ask for tidegate~=2.4.0"),
        ("VERSION", "2.3.4", "2.3.5", "deploy/helm/tidegate/Chart.yaml: must say version: 2.3.5"),
        ("proxy/pyproject.toml", "~=2.3.0", ">=2", "proxy/pyproject.toml: 'tidegate>=2' must ask for tidegate~=2.3.0"),
        ("proxy/pyproject.toml", "~=2.3.0", "[sim]", "'tidegate[sim]' must ask for tidegate[sim]~=2.3.0"),
        ("proxy/pyproject.toml", 'dynamic = ["version"]', 'version = "2.3.4"', "its version must come from VERSION"),
        ("proxy/LICENSE", "Do", "Don't do", "proxy/LICENSE: must be a copy of LICENSE"),
    ],
)
def test_what_does_not_go_together_is_named(another: Path, file: str, old: str, new: str, said: str) -> None:
    path = another / file
    path.write_text(path.read_text().replace(old, new))
    assert any(said in problem for problem in problems_of()), problems_of()
