"""What is planned with at first: for every device class, and every shape, what was measured."""

import pytest

from tidegate.api import Model, Worker
from tidegate.schemas import Device, Layout, ModelProfile, ProfileFile, ProfilePoint
from tidegate_proxy.base.labels import label
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.messages.padding import PaddedAxis
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.initial_profiles import said_of_others, starting_profiles, unmatched_shapes


def _measured(model: str, ms: float, kind: str = "default", shape: str = "") -> ModelProfile:
    points = [ProfilePoint(rows=1, median_ms=ms, p95_ms=ms, samples=9)]
    return ModelProfile(model=model, alpha_ms=0, beta_ms=ms, points=points, device_class=kind, shape=shape)


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


def test_who_has_no_profile_hears_on_what_kinds_the_model_was_measured() -> None:
    measured = ProfileFile(profiles=[_measured("wide", 1, kind="T4"), _measured("wide", 1, kind="A100")])
    assert (
        said_of_others(measured, "wide")
        == " (there is one for 'A100', 'T4': if they are such, say so in tritons[].device_class)"
    )
    assert said_of_others(measured, "narrow") == ""


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


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ("x:3,48,320", True),
        ("mask:7;x:3,48,320", True),
        ("", True),
        ("x:3,48", False),
        ("x:4,48,320", False),
        ("mask:7", False),
        ("fixed:7;x:3,48,320", False),
        ("y:1;x:3,48,320", False),
    ],
)
def test_a_measured_shape_that_no_request_can_have_is_named(shape: str, fits: bool) -> None:
    inputs = {
        "x": TensorSpec("FP32", (3, -1, -1)),
        "mask": TensorSpec("FP32", (-1,), optional=True),
        "fixed": TensorSpec("FP32", (7,)),
    }
    catalog = _catalog("default")
    catalog.signatures["wide"] = ModelSignature("wide", inputs, frozenset(), 4)
    shape = ";".join(sorted(shape.split(";")))
    measured = ProfileFile(profiles=[_measured("wide", 1, shape=shape), _measured("gone", 1, shape="x:1")])
    remedy = "what varies in them is mask:-1; x:3,-1,-1; measure it again with `tidegate profile`"
    said = f"no request of 'wide' has the shape {shape!r}, which was measured: {remedy}"
    assert unmatched_shapes(catalog, measured) == ([] if fits else [said])


def test_a_measured_shape_that_is_padded_is_named_with_the_one_in_which_it_runs() -> None:
    catalog = _catalog("default")
    width = PaddedAxis("x", 2, (320, 480), 0, ())
    catalog.signatures["wide"] = ModelSignature("wide", {"x": TensorSpec("FP32", (3, -1))}, frozenset(), 4, (width,))
    measured = ProfileFile(profiles=[_measured("wide", 1, shape=f"x:3,{size}") for size in (320, 321, 480, 481)])
    remedy = "are padded to 'x:3,480': measure that with `tidegate profile`"
    said = f"requests of 'wide' with the shape 'x:3,321', which was measured, {remedy}"
    assert unmatched_shapes(catalog, measured) == [said]
