"""Documents of planners: errors name file, field and remedy; the gap says what is known."""

from pathlib import Path

import pytest

from tidegate.api import Plan, VersionedDocument
from tidegate.schemas import DocumentError, read_document, write_document


class Tides(VersionedDocument):
    harbours: int


class Found(Plan):
    @property
    def summary(self) -> str:
        return "high"

    @property
    def table(self) -> list[dict[str, str]]:
        return []


@pytest.mark.parametrize(
    ("objective", "bound", "gap"), [(10, 8, 0.2), (-10, -12, 0.2), (5, 5, 0), (0, 0, 0), (0, -1, 1), (3, None, None)]
)
def test_the_gap_is_a_share_of_the_objective(objective: float, bound: float | None, gap: float | None) -> None:
    assert Found(objective=objective, bound=bound).gap == (None if gap is None else pytest.approx(gap))


@pytest.mark.parametrize(("name", "text"), [("p.json", '{"harbours": 3}'), ("p.yaml", "version: 1\nharbours: 3")])
def test_a_document_is_read_from_json_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_document(tmp_path / name, Tides) == Tides(harbours=3)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_document(tmp_path / "plan.json", Found(objective=2, bound=None))
    assert read_document(tmp_path / "plan.json", Found) == Found(objective=2, bound=None)
    assert (tmp_path / "plan.json").read_text().count("\n") > 3  # a field per line, to be diffed


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", "{", "it is no JSON"),
        ("p.yaml", "[", "it is no YAML"),
        ("p.json", "[]", "must be fields with values, such as harbours: ..., not a list"),
        ("p.json", '{"harbours": 3, "piers": 1}', "piers: there is no such field; there are: version, harbours"),
        ("p.json", '{"harbours": "many"}', "harbours: must be a whole number"),
        ("p.json", '{"version": 2, "harbours": 3}', "version: must be 1"),
        ("p.json", "{}", "harbours: must be given"),
    ],
)
def test_an_error_names_file_field_and_remedy(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DocumentError) as error:
        read_document(path, Tides)
    assert str(error.value).startswith(f"{path}:")
    assert said in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="No such file"):
        read_document(tmp_path / "none.json", Tides)
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DocumentError, match="it is no text"):
        read_document(tmp_path / "b.json", Tides)
