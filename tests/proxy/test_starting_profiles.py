"""What is planned with at first: for every kind of worker, and every shape, what was measured."""

import pytest

from tidegate.api import Model, Worker
from tidegate.documents import Device, Layout, ModelProfile, Point, ProfileFile
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.discovery import starting_profiles
from tidegate_proxy.labels import label


def _measured(model: str, ms: float, **key: str) -> ModelProfile:
    points = [Point(rows=1, median_ms=ms, p95_ms=ms, samples=9)]
    return ModelProfile(model=model, alpha_ms=0, beta_ms=ms, points=points, **key)


def _catalog(*kinds: str) -> Catalog:
    models = {name: Model(name, 4) for name in ("narrow", "wide")}
    workers = [Worker(number, kind, tuple(models), kind) for number, kind in enumerate(kinds)]
    return Catalog(models=models, workers=workers)


def _told(catalog: Catalog, *measured: ModelProfile) -> dict[tuple[str, str, str], float]:
    profiles = starting_profiles(catalog, ProfileFile(profiles=list(measured)))
    assert len({profile.key for profile in profiles}) == len(profiles)
    return {profile.key: profile.expected_ns(1) / 1e6 for profile in profiles}


def test_every_kind_has_its_own_profiles_and_every_shape() -> None:
    told = _told(
        _catalog("A100", "T4", "T4"),
        _measured("wide", 2, shape="x:3,48,320", kind="A100"),
        _measured("wide", 4, shape="x:3,48,640", kind="A100"),
        _measured("wide", 9, kind="T4"),
        _measured("narrow", 1),
        _measured("unknown", 7),
    )
    assert told == {
        ("narrow", "A100", ""): 1,
        ("narrow", "T4", ""): 1,
        ("wide", "A100", ""): 4,
        ("wide", "A100", "x:3,48,320"): 2,
        ("wide", "A100", "x:3,48,640"): 4,
        ("wide", "T4", ""): 9,
    }


def test_what_was_not_measured_is_guessed_for_every_kind() -> None:
    told = _told(_catalog("A100", "T4"), _measured("wide", 2, kind="H100"))
    guess_ms = pytest.approx(0.55)
    assert told == {(model, kind, ""): guess_ms for model in ("narrow", "wide") for kind in ("A100", "T4")}


def test_a_shape_that_is_too_long_for_a_label_is_cut_as_that_of_requests_is() -> None:
    shape = ";".join(f"input_{number}:{number},{number},{number}" for number in range(10))
    assert label(shape) != shape
    assert ("wide", "default", label(shape)) in _told(_catalog("default"), _measured("wide", 2, shape=shape))


def test_with_a_layout_shapes_count_and_the_empty_one_is_the_plans() -> None:
    layout = Layout.model_validate(
        {
            "models": [{"name": "wide", "pipelines": [{"partitions": ["wide"], "batch": 2}]}],
            "partitions": [{"name": "wide", "model": "wide", "blocks": [0, 1], "latency_ms": {"T4": [5, 6]}}],
            "workers": [{"name": "w", "device": {"node": "n", "id": 0, "product": "T4"}, "hosts": ["wide"]}],
        }
    )
    device = Device("n", 0, "T4")
    catalog = Catalog(models={"wide": Model("wide", 2)}, workers=[Worker(0, "w", ("wide",), device=device)])
    catalog.layout = layout
    told = _told(
        catalog, _measured("wide", 2), _measured("wide", 3, shape="x:1"), _measured("wide.front", 1, shape="x:1")
    )
    assert told == {("wide", "T4", ""): 5, ("wide", "T4", "x:1"): 3}
