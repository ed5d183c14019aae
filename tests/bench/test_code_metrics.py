"""The house in figures, of a house that is small enough to count by hand."""

from pathlib import Path

import pytest

from bench.code_metrics import circles, main, survey

FILES = {
    "core/src/tidegate/__init__.py": "",
    "core/src/tidegate/api/__init__.py": "from tidegate.api.model import Model\n\n__all__ = ['Model', 'Other']\n",
    "core/src/tidegate/api/model.py": (
        "from typing import TYPE_CHECKING\n"
        "\n"
        "if TYPE_CHECKING:\n"
        "    from tidegate.api.late import Late\n"
        "\n"
        "class Model:\n"
        "    def one(self):\n"
        "        return 1\n"
        "\n"
        "    def two(self):\n"
        "        from tidegate.api import late\n"
        "        return late\n"
    ),
    "core/src/tidegate/api/late.py": "import tidegate.api.model\n",
    "proxy/src/tidegate_proxy/here.py": "from tidegate_proxy.there import there\n",
    "proxy/src/tidegate_proxy/there.py": "from tidegate_proxy import here\n",
    "plugins/template/src/tidegate_template/policy.py": "from tidegate.api import Model, Other\nimport json\n",
    "tests/test_it.py": "\n" * 20,
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_sizes_names_and_circles_are_counted(checkout: Path) -> None:
    house = survey(checkout)
    assert house.lines == 3 + 12 + 1 + 1 + 1 + 2
    assert [str(sized) for sized in house.classes] == ["7 (tidegate.api.model.Model)"]
    assert sorted(sized.lines for sized in house.functions) == [2, 3]
    assert house.exported == {"tidegate.api": 2}
    assert house.learned == 2
    assert circles(house.at_start) == [["tidegate_proxy.here", "tidegate_proxy.there"]]
    assert circles(house.imports) == [
        ["tidegate.api.late", "tidegate.api.model"],
        ["tidegate_proxy.here", "tidegate_proxy.there"],
    ]


def test_checkouts_stand_side_by_side(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"before={checkout}", f"now={checkout}"])
    printed = capsys.readouterr().out
    assert "|  | before | now |" in printed
    assert "| lines of tests per line of code | 1.00 | 1.00 |" in printed
    assert "now: imported in a circle: tidegate_proxy.here, tidegate_proxy.there" in printed


def test_what_is_no_checkout_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkout of Tidegate, there is no core/src"):
        survey(tmp_path)
