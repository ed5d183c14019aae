"""The pictures of pages: the commands that make these are right, and pictures end where pages do."""

from pathlib import Path

import pytest
import yaml
from PIL import Image

from release.screens import MARGIN, PAGES, main, trimmed, write_scenarios
from tests.command_line import APP
from tidegate.workload import read_scenario


def test_the_commands_are_there_and_their_scenarios_are_right(tmp_path: Path) -> None:
    write_scenarios(tmp_path)
    known = {command.name for command in APP.registered_commands}
    for command in PAGES.values():
        name, scenario, *_ = command.split()
        assert name in known
        read_scenario(tmp_path / scenario)
    assert yaml.safe_load((tmp_path / "ten.yaml").read_text())["duration_s"] == 3


def test_a_picture_ends_where_the_page_does() -> None:
    picture = Image.new("RGB", (400, 900), "white")
    picture.paste("black", (10, 10, 20, 100))
    assert trimmed(picture).size == (400, 100 + MARGIN)
    assert trimmed(Image.new("RGB", (400, 900), "white")).size == (400, MARGIN)


def test_without_chromium_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "apt-get install chromium" in capsys.readouterr().err
