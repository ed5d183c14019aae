"""Initial latency profiles of the Tritons' models, from the profile file or the layout."""

from msgspec.structs import replace

from tidegate.api import Profile
from tidegate.schemas import DEFAULT_DEVICE_CLASS, ProfileFile, read_shape
from tidegate_proxy.base.labels import label
from tidegate_proxy.messages.padding import padded
from tidegate_proxy.messages.request import shape_of
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.workers import SERIALIZED_SUFFIX

DEFAULT_LATENCY = {"alpha_ms": 0.05, "beta_ms": 0.5}
"""Latency of a model without measurements: milliseconds per row and per batch."""


def starting_profiles(catalog: Catalog, measured: ProfileFile) -> tuple[Profile, ...]:
    """Return the initial profiles of a model for each device class: from the layout, measurements, or a default.

    The default is too small to cause drops. Measurements of shapes apply with a layout too. All are corrected online by
    observed latency.
    """
    profiles: list[Profile] = []
    if catalog.layout:
        for planned in catalog.layout.contract()[2]:
            profiles.append(planned)
            if planned.partition in catalog.models:
                shaped = measured.profiles_of(planned.partition, planned.device_class, planned.max_rows)
                profiles += [profile for profile in shaped if profile.shape]
    else:
        homeless = catalog.models.keys() - {name for name, _ in hosted(catalog)}
        for name, device_class in [*hosted(catalog), *((name, DEFAULT_DEVICE_CLASS) for name in sorted(homeless))]:
            max_rows = catalog.models[name].max_rows
            alpha_ms, beta_ms = DEFAULT_LATENCY["alpha_ms"], DEFAULT_LATENCY["beta_ms"]
            guess = Profile.linear(
                name, alpha_ms=alpha_ms, beta_ms=beta_ms, max_rows=max_rows, device_class=device_class
            )
            known = measured.profiles_of(name, device_class.removesuffix(SERIALIZED_SUFFIX), max_rows)
            profiles += [replace(profile, device_class=device_class) for profile in known] or [guess]
    return tuple(profile.of_shape(label(profile.shape)) for profile in profiles)


def hosted(catalog: Catalog) -> list[tuple[str, str]]:
    """Return every existing pair of a partition and a device class."""
    return sorted({(partition, worker.device_class) for worker in catalog.workers for partition in worker.hosts})


def said_of_others(measured: ProfileFile, model: str) -> str:
    """Return text that lists the other device classes for which a model was measured; "" if none."""
    kinds = sorted({profile.device_class for profile in measured.profiles if profile.model == model})
    return (
        f" (there is one for {', '.join(map(repr, kinds))}: if they are such, say so in tritons[].device_class)"
        if kinds
        else ""
    )


def unmatched_shapes(catalog: Catalog, measured: ProfileFile) -> list[str]:
    """Return a line for each measured shape that no request has: the model has changed, or requests are padded."""
    lines = []
    for profile in measured.profiles:
        signature = catalog.signatures.get(profile.model)
        if signature is None or not profile.shape:
            continue
        sizes = read_shape(profile.shape)
        varying = {name: spec for name, spec in signature.inputs.items() if -1 in spec.dims}
        if (
            sizes.keys() <= varying.keys()
            and all(name in sizes or spec.optional for name, spec in varying.items())
            and all(varying[name].accepts(varying[name].datatype, (1, *given)) for name, given in sizes.items())
        ):
            shapes = {name: (1, *given) for name, given in sizes.items()}
            if as_run := padded(signature.padding, shapes, dict.fromkeys(shapes, 1)):
                lines.append(
                    f"requests of {profile.model!r} with the shape {profile.shape!r}, which was measured, are padded "
                    f"to {shape_of(as_run.shapes.items(), signature)!r}: measure that with `tidegate profile`"
                )
            continue
        has = "; ".join(f"{name}:{','.join(map(str, spec.dims))}" for name, spec in sorted(varying.items()))
        lines.append(
            f"no request of {profile.model!r} has the shape {profile.shape!r}, which was measured: what varies in them "
            f"is {has or 'nothing'}; measure it again with `tidegate profile`"
        )
    return lines
