"""The profile file: what is written is read again, and what is wrong is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.schemas import ModelProfile, ProfileFile, ProfileFileError, ProfilePoint, read_profiles, write_profile

latencies_ms = st.floats(1e-6, 1e9)
points = st.builds(
    ProfilePoint, rows=st.integers(1, 64), median_ms=latencies_ms, p95_ms=latencies_ms, samples=st.integers(1, 99)
)
profiles = st.builds(
    ModelProfile,
    model=st.sampled_from("ab"),
    device_class=st.sampled_from(("default", "a100")),
    shape=st.sampled_from(("", "x:3,48,320", "x:3,48,640")),
    alpha_ms=st.floats(0, 10),
    beta_ms=st.floats(0, 10),
    points=st.lists(points, min_size=1, max_size=4, unique_by=lambda point: point.rows),
)


@given(st.lists(profiles, min_size=1, max_size=5))
def test_the_last_profile_of_every_model_is_kept(
    tmp_path_factory: pytest.TempPathFactory, written: list[ModelProfile]
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "profiles.json"
    for profile in written:
        write_profile(path, profile)
    last = {(profile.model, profile.device_class, profile.shape): profile for profile in written}
    assert read_profiles(path).profiles == [last[key] for key in sorted(last)]


@given(profiles)
def test_a_written_profile_can_be_planned_with(profile: ModelProfile) -> None:
    planned = profile.to_profile(max_rows=16)
    assert planned.max_rows == 16
    assert planned.key == (profile.model, profile.device_class, profile.shape)


@given(st.lists(profiles, max_size=6, unique_by=lambda profile: profile.key), st.sampled_from(("a100", "h100")))
def test_whatever_was_measured_there_is_a_profile_of_the_empty_shape_first(
    measured: list[ModelProfile], kind: str
) -> None:
    found = ProfileFile(profiles=measured).profiles_of("a", kind, 16)
    kinds = {profile.device_class for profile in measured if profile.model == "a"}
    counts = kind if kind in kinds else "default"
    shapes = {profile.shape for profile in measured if (profile.model, profile.device_class) == ("a", counts)}
    assert [profile.shape for profile in found] == (sorted({"", *shapes}) if shapes else [])
    assert all(profile.key[:2] == ("a", kind) and profile.max_rows == 16 for profile in found)
    if shapes and "" not in shapes:
        unknown, *others = found
        for rows in (1, 16):
            assert unknown.expected_ns(rows) == max(other.expected_ns(rows) for other in others)
            assert unknown.upper_ns(rows) == max(other.upper_ns(rows) for other in others)


def _measured(ms: float, *, rows: int = 1, kind: str = "default", shape: str = "") -> ModelProfile:
    points = [ProfilePoint(rows=at, median_ms=ms * at, p95_ms=2 * ms * at, samples=9) for at in {1, rows}]
    return ModelProfile(model="m", alpha_ms=ms, beta_ms=0, points=points, device_class=kind, shape=shape)


def test_what_was_measured_of_a_kind_goes_before_what_was_measured_of_any() -> None:
    file = ProfileFile(profiles=[_measured(3, shape="x:1"), _measured(1, kind="a100", shape="x:2")])
    assert [profile.key for profile in file.profiles_of("m", "a100", 4)] == [("m", "a100", ""), ("m", "a100", "x:2")]
    assert [profile.key for profile in file.profiles_of("m", "h100", 4)] == [("m", "h100", ""), ("m", "h100", "x:1")]
    assert file.profiles_of("other", "a100", 4) == ()


def test_a_part_of_a_gpu_without_its_own_profiles_has_those_of_the_whole_one() -> None:
    file = ProfileFile(profiles=[_measured(1), _measured(2, kind="a100"), _measured(7, kind="a100/mps-50")])
    kinds = ("a100/mps-50", "a100/mps-25", "a100", "h100/mps-25")
    assert [file.profiles_of("m", kind, 1)[0].expected_ns(1) / 1e6 for kind in kinds] == [7, 2, 2, 1]


def test_shapes_measured_up_to_unlike_rows_are_told_of_as_many() -> None:
    file = ProfileFile(profiles=[_measured(1, rows=8, shape="x:1"), _measured(3, rows=2, shape="x:3")])
    slowest, one, three = file.profiles_of("m", "default", 4)
    assert [each.expected_ns(4) / 1e6 for each in (one, three, slowest)] == [4, 12, 12]
    assert [each.upper_ns(4) / 1e6 for each in (one, three, slowest)] == [8, 24, 24]


ONE = '{"rows": 1, "median_ms": 1, "p95_ms": 1, "samples": 1}'


def _with_shapes(*shapes: str) -> str:
    measured = _measured(1).model_dump()
    return json.dumps({"profiles": [measured | {"shape": shape} for shape in shapes]})


def test_the_median_is_expected_and_the_high_estimate_planned() -> None:
    measured = [
        ProfilePoint(rows=1, median_ms=5, p95_ms=6, samples=9),
        ProfilePoint(rows=3, median_ms=7, p95_ms=10, samples=9),
    ]
    profile = ModelProfile(model="m", alpha_ms=1, beta_ms=4, points=measured).to_profile(max_rows=4)
    assert [profile.expected_ns(rows) / 1e6 for rows in (1, 2, 3, 4)] == [5, 6, 7, 8]
    assert [profile.upper_ns(rows) / 1e6 for rows in (1, 2, 3, 4)] == [6, 8, 10, 12]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "is no JSON"),
        ('{"version": 2, "profiles": []}', "version"),
        ('{"profiles": [{"model": "m", "alpha_ms": 1, "beta_ms": 1, "points": []}]}', "profiles.0.points"),
        (ProfileFile(profiles=[]).model_dump_json().replace("[]", '[{"model": "m"}]'), "profiles.0.alpha_ms"),
        (
            '{"profiles": [{"model": "m", "alpha_ms": 1, "beta_ms": 1, '
            '"points": [{"rows": 1, "median_ms": 1, "p95_ms": 1e-9, "samples": 1}]}]}',
            "p95_ms",
        ),
        (_with_shapes("x:3").replace('"default"', '""'), r"profiles\.0\.device_class"),
        (_with_shapes("x:3").replace('"alpha_ms": 1.0', '"alpha_ms": NaN'), r"profiles\.0\.alpha_ms: .*finite"),
        (
            _with_shapes("x:3").replace('"points": [', f'"points": [{ONE}, '),
            r"profiles\.0\.points: a batch of 1 rows stands there 2 times: keep one",
        ),
        (_with_shapes("3,48"), r"profiles\.0\.shape: '3,48' is no shape: write NAME:3,48,320"),
        (_with_shapes("y:7;x:3"), r"profiles\.0\.shape: write 'x:3;y:7', as requests have it, not 'y:7;x:3'"),
        (_with_shapes("x:3", "x:3"), "profiles: 'm', device class 'default', shape 'x:3' is listed twice: keep one"),
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
