"""MIG geometry: the instances into which NVIDIA cuts a GPU, and the memory slices at which each may start.

The facts come from NVIDIA's MIG user guide and from the output of `nvidia-smi mig -lgip` and `-lgipp` on such GPUs.
`MigGeometry.inferred` lists the facts that no such output has confirmed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations

import msgspec

from tidegate.api.device import Mig


class MigProfile(msgspec.Struct, frozen=True):
    """A MIG instance profile of one GPU product."""

    name: str
    """Name by NVIDIA, e.g. `3g.20gb`; `+me` includes the media engines."""
    id: int
    """Profile id of `nvidia-smi mig -lgip`."""
    nvml: str
    """Name in NVML, after `NVML_GPU_INSTANCE_PROFILE_`."""
    compute_slices: int
    """Number of GPCs."""
    memory_slices: int
    """Number of contiguous memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may start."""
    most: int
    """Maximum number of such instances on a GPU."""
    memory_gib: float
    """Memory in GiB as the driver reports it; drivers differ by some MiB."""
    multiprocessors: int | None
    """Number of streaming multiprocessors, not proportional to slices on every product; None: unknown."""

    @property
    def has_media(self) -> bool:
        """Whether the profile includes the media engines, of which a GPU has one set."""
        return self.name.endswith("+me")


Placed = tuple[Mig, ...]
"""The MIG instances of one GPU, ordered by first memory slice."""


class MigGeometry(msgspec.Struct, frozen=True):
    """The MIG profiles of one GPU product, and where its instances may lie."""

    product: str
    """GPU product with its memory, e.g. `A100-40GB`."""
    compute_slices: int
    memory_slices: int
    multiprocessors: int
    """Number of streaming multiprocessors of the GPU with MIG off."""
    profiles: tuple[MigProfile, ...]
    """Profiles from small to large, the plain one before its variants."""
    inferred: str = ""
    """Facts that no listing of such a GPU has confirmed; empty: none."""

    def profile(self, name: str) -> MigProfile:
        """Return the profile of this name. Raises ValueError, with the known names, if there is none."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        known = ", ".join(profile.name for profile in self.profiles)
        raise ValueError(f"{self.product} has no MIG profile {name!r}: it has {known}")

    def plain(self, compute_slices: int) -> MigProfile | None:
        """Return the plain profile with this many GPCs (no media engines, no extra memory); None if there is none."""
        sized = (profile for profile in self.profiles if profile.compute_slices == compute_slices)
        return next(sized, None)

    @property
    def plain_names(self) -> tuple[str, ...]:
        """Names of the plain profiles, one for each number of GPCs, from small to large."""
        first = {profile.compute_slices: profile.name for profile in reversed(self.profiles)}
        return tuple(first[gpcs] for gpcs in sorted(first))

    def why_not(self, placed: Iterable[Mig]) -> str | None:
        """Return why a GPU cannot hold these MIG instances at once, with a remedy; None if it can.

        `placed`: instances with profile name and first memory slice.
        """
        instances = sorted(placed, key=lambda instance: (instance.start, instance.profile))
        try:
            profiles = [self.profile(instance.profile) for instance in instances]
        except ValueError as error:
            return str(error)
        for instance, profile in zip(instances, profiles, strict=True):
            if instance.start not in profile.starts:
                starts = ", ".join(map(str, profile.starts))
                return f"on {self.product} {profile.name} begins at memory slice {starts}, not at {instance.start}"
        for (first, its), (second, _) in combinations(zip(instances, profiles, strict=True), 2):
            if second.start < first.start + its.memory_slices:
                return (
                    f"{first.profile} at {first.start} has {its.memory_slices} memory slices, and {second.profile} "
                    f"at {second.start} begins within them: place it elsewhere, or leave one of them out"
                )
        if sum(profile.has_media for profile in profiles) > 1:
            return f"{self.product} has one set of media engines: let one instance have a profile with +me"
        if (spent := sum(profile.compute_slices for profile in profiles)) > self.compute_slices:
            return f"they have {spent} GPCs together, and {self.product} has {self.compute_slices}"
        return None

    def is_legal(self, placed: Iterable[Mig]) -> bool:
        """Whether a GPU can have these instances at once."""
        return self.why_not(placed) is None

    def configurations(self, names: Iterable[str] | None = None) -> tuple[Placed, ...]:
        """Return every maximal legal set of instances of the given profiles.

        `names`: profile names, the plain ones by default. Raises ValueError if a name is unknown.
        """
        chosen = self.plain_names if names is None else tuple(sorted(set(names)))
        return _configurations(self, chosen)

    def place(self, names: Iterable[str]) -> Placed | None:
        """Return a placement of one instance for each name on one GPU; None if they do not fit.

        The search is exact: 3g and 4g fit only with 4g at 0 and 3g at 4, which first-fit misses. Raises ValueError if a
        name is unknown.
        """
        return next(iter(self.placements(names)), None)

    def placements(self, names: Iterable[str]) -> tuple[Placed, ...]:
        """Return every placement of one instance for each name on one GPU.

        Raises ValueError if a name is unknown.
        """
        return _placements(self, tuple(sorted(names)))


@cache
def _placements(geometry: MigGeometry, names: tuple[str, ...]) -> tuple[Placed, ...]:
    profiles = [geometry.profile(name) for name in sorted(set(names))]
    if sum(geometry.profile(name).memory_slices for name in names) > geometry.memory_slices:
        return ()

    def filled(start: int, left: Counter[str]) -> Iterator[Placed]:
        """All that is left, at this memory slice and behind it."""
        if not left:
            yield ()
            return
        for profile in profiles:
            if left[profile.name] and start in profile.starts:
                for rest in filled(start + profile.memory_slices, left - Counter([profile.name])):
                    yield Mig(profile.name, start), *rest
        if start < geometry.memory_slices:
            yield from filled(start + 1, left)

    return tuple(placed for placed in filled(0, Counter(names)) if geometry.is_legal(placed))


@cache
def _configurations(geometry: MigGeometry, names: tuple[str, ...]) -> tuple[Placed, ...]:
    profiles = [geometry.profile(name) for name in names]

    def filled(start: int) -> Iterator[Placed]:
        """Everything that may stand at this memory slice and behind it."""
        if start == geometry.memory_slices:
            yield ()
            return
        for profile in profiles:
            if start in profile.starts:
                for rest in filled(start + profile.memory_slices):
                    yield Mig(profile.name, start), *rest
        yield from filled(start + 1)

    def is_full(placed: Placed) -> bool:
        return not any(
            geometry.is_legal((*placed, Mig(profile.name, start))) for profile in profiles for start in profile.starts
        )

    return tuple(placed for placed in filled(0) if geometry.is_legal(placed) and is_full(placed))


def _of_eight(
    product: str,
    labels: tuple[str, str, str, str],
    multiprocessors: tuple[int, int, int, int | None, int, int, int],
    memory_gib: tuple[float, float, float, float],
    inferred: str = "",
) -> MigGeometry:
    """A GPU of seven GPCs and eight memory slices.

    `labels` and `memory_gib`: of one, two, four and eight memory slices. `multiprocessors`: of 1g, 1g with two memory
    slices, 2g, 3g, 4g, 7g, and of the whole GPU.
    """
    one, two, half, whole = labels
    one_gib, two_gib, half_gib, whole_gib = memory_gib
    m1, m1_double, m2, m3, m4, m7, m_all = multiprocessors
    anywhere, pairs = tuple(range(7)), (0, 2, 4, 6)
    profiles = (
        MigProfile(f"1g.{one}", 19, "1_SLICE", 1, 1, anywhere, 7, one_gib, m1),
        MigProfile(f"1g.{one}+me", 20, "1_SLICE_REV1", 1, 1, anywhere, 1, one_gib, m1),
        MigProfile(f"1g.{two}", 15, "1_SLICE_REV2", 1, 2, pairs, 4, two_gib, m1_double),
        MigProfile(f"2g.{two}", 14, "2_SLICE", 2, 2, pairs[:3], 3, two_gib, m2),
        MigProfile(f"3g.{half}", 9, "3_SLICE", 3, 4, (0, 4), 2, half_gib, m3),
        MigProfile(f"4g.{half}", 5, "4_SLICE", 4, 4, (0,), 1, half_gib, m4),
        MigProfile(f"7g.{whole}", 0, "7_SLICE", 7, 8, (0,), 1, whole_gib, m7),
    )
    return MigGeometry(product, 7, 8, m_all, profiles, inferred)


_A30 = MigGeometry(
    "A30-24GB",
    4,
    4,
    56,
    (
        MigProfile("1g.6gb", 14, "1_SLICE", 1, 1, (0, 1, 2, 3), 4, 5.81, 14),
        MigProfile("1g.6gb+me", 21, "1_SLICE_REV1", 1, 1, (0, 1, 2, 3), 1, 5.81, 14),
        MigProfile("2g.12gb", 5, "2_SLICE", 2, 2, (0, 2), 2, 11.69, 28),
        MigProfile("2g.12gb+me", 6, "2_SLICE_REV1", 2, 2, (0, 2), 1, 11.69, 28),
        MigProfile("4g.24gb", 0, "4_SLICE", 4, 4, (0,), 1, 23.44, 56),
    ),
)
_AMPERE = (14, 14, 28, 42, 56, 98, 108)
_HOPPER = (16, 26, 32, 60, 64, 132, 132)
_LIKE_H100 = "the placements, which are taken to be those of an H100"
_LIKE_GH200 = f"{_LIKE_H100}; the memory, which is taken to be that of a GH200-96GB"
_LIKE_H200 = f"{_LIKE_H100}; the memory, which is at least that of an H200"

MIG_GEOMETRIES: dict[str, MigGeometry] = {
    geometry.product: geometry
    for geometry in (
        _A30,
        _of_eight("A100-40GB", ("5gb", "10gb", "20gb", "40gb"), _AMPERE, (4.75, 9.62, 19.5, 39.25)),
        _of_eight("A100-80GB", ("10gb", "20gb", "40gb", "80gb"), _AMPERE, (9.62, 19.5, 39.25, 78.5)),
        _of_eight("H100-80GB", ("10gb", "20gb", "40gb", "80gb"), _HOPPER, (9.75, 19.62, 39.5, 79.25)),
        _of_eight("H100-94GB", ("12gb", "24gb", "47gb", "94gb"), _HOPPER, (10.62, 21.5, 46.12, 92.62)),
        _of_eight("H100-96GB", ("12gb", "24gb", "48gb", "96gb"), _HOPPER, (11.0, 23.0, 46.5, 93.0), _LIKE_GH200),
        _of_eight("GH200-96GB", ("12gb", "24gb", "48gb", "96gb"), _HOPPER, (11.0, 23.0, 46.5, 93.0), _LIKE_H100),
        _of_eight("GH200-144GB", ("18gb", "36gb", "72gb", "144gb"), _HOPPER, (16.0, 32.25, 69.5, 139.75), _LIKE_H200),
        _of_eight("H200-141GB", ("18gb", "35gb", "71gb", "141gb"), _HOPPER, (16.0, 32.25, 69.5, 139.75), _LIKE_H100),
        _of_eight(
            "B200-180GB",
            ("23gb", "45gb", "90gb", "180gb"),
            (18, 30, 36, None, 72, 148, 148),
            (20.5, 44.25, 88.5, 177.0),
            "the placements, from the user guide's fractions of memory; the multiprocessors of 4g and 7g; the memory "
            "of 3g, 4g and 7g: twice and four times that of 2g, which is the least",
        ),
    )
}
"""Known geometries by product name."""

_SAME_AS = {"A800": "A100", "H800": "H100"}
"""Products for China, and those with the same geometry."""
_TOLERANCE = 0.1
"""Maximum relative difference between a memory size that was read and the product's (GB or GiB, driver overhead)."""


def mig_geometries(product: str, memory_mib: int | None = None) -> tuple[MigGeometry, ...]:
    """Return the geometries that a GPU may have: none if unknown, several if its memory decides.

    `product`: a name of `MIG_GEOMETRIES` or of the driver, e.g. `NVIDIA A100-SXM4-40GB`. `memory_mib`: memory of the
    GPU in MiB, for names without it. For an H100 PCIe the profiles are right, but it has fewer multiprocessors.
    """
    if product in MIG_GEOMETRIES:
        return (MIG_GEOMETRIES[product],)
    words = set(re.findall(r"[A-Z0-9]+", product.upper()))
    words |= {_SAME_AS[word] for word in words & _SAME_AS.keys()}
    # The name of a GH200 says the memory of its CPU, unless it says the sort of memory, too: 144G HBM3e.
    memory = re.search(r"(\d+) ?GB?\b" + r" HBM" * ("GH200" in words), product.upper())
    gigabytes = float(memory[1]) if memory else memory_mib and memory_mib / 1024
    if {"H100", "NVL"} <= words:
        gigabytes = 94.0
    sizes = {
        geometry: float(geometry.product.partition("-")[2].removesuffix("GB"))
        for geometry in MIG_GEOMETRIES.values()
        if geometry.product.partition("-")[0] in words
    }
    if not gigabytes:
        return tuple(sizes)
    distances = {geometry: abs(gigabytes / size - 1) for geometry, size in sizes.items()}
    least = min(distances.values(), default=0.0)
    return tuple(geometry for geometry, distance in distances.items() if distance == least <= _TOLERANCE)
