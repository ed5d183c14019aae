"""The profile file: what is written is read again, and what is wrong is named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.documents import ModelProfile, Point, ProfileFile, ProfileFileError, read_profiles, write_profile

latencies_ms = st.floats(1e-6, 1e9)
points = st.builds(
    Point, rows=st.integers(1, 64), median_ms=latencies_ms, p95_ms=latencies_ms, samples=st.integers(1, 99)
)
profiles = st.builds(
    ModelProfile,
    model=st.sampled_from("ab"),
    kind=st.sampled_from(("default", "a100")),
    alpha_ms=st.floats(0, 10),
    beta_ms=st.floats(0, 10),
    points=st.lists(points, min_size=1, max_size=4),
)


@given(st.lists(profiles, min_size=1, max_size=5))
def test_the_last_profile_of_every_model_is_kept(
    tmp_path_factory: pytest.TempPathFactory, written: list[ModelProfile]
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "profiles.json"
    for profile in written:
        write_profile(path, profile)
    last = {(profile.model, profile.kind): profile for profile in written}
    assert read_profiles(path).profiles == [last[key] for key in sorted(last)]


@given(profiles)
def test_a_written_profile_can_be_planned_with(profile: ModelProfile) -> None:
    assert profile.to_profile(max_rows=16).max_rows == 16


def test_the_median_is_expected_and_the_high_estimate_planned() -> None:
    measured = [Point(rows=1, median_ms=5, p95_ms=6, samples=9), Point(rows=3, median_ms=7, p95_ms=10, samples=9)]
    profile = ModelProfile(model="m", alpha_ms=1, beta_ms=4, points=measured).to_profile(max_rows=4)
    assert [profile.expected_ns(rows) / 1e6 for rows in (1, 2, 3, 4)] == [5, 6, 7, 8]
    assert [profile.planned_ns(rows) / 1e6 for rows in (1, 2, 3, 4)] == [6, 8, 10, 12]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "document"),
        ('{"version": 2, "profiles": []}', "version"),
        ('{"profiles": [{"model": "m", "alpha_ms": 1, "beta_ms": 1, "points": []}]}', "profiles.0.points"),
        (ProfileFile(profiles=[]).model_dump_json().replace("[]", '[{"model": "m"}]'), "profiles.0.alpha_ms"),
        (
            '{"profiles": [{"model": "m", "alpha_ms": 1, "beta_ms": 1, '
            '"points": [{"rows": 1, "median_ms": 1, "p95_ms": 1e-9, "samples": 1}]}]}',
            "p95_ms",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(text)
    with pytest.raises(ProfileFileError, match=rf"profiles\.json.*{named}.*tidegate profile"):
        read_profiles(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileFileError, match=r"absent\.json"):
        read_profiles(tmp_path / "absent.json")
