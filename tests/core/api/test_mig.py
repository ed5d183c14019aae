"""MIG geometry: what fits a GPU, against a search that tries every start slot."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.device import Mig
from tidegate.api.mig import MIG_GEOMETRIES, MigGeometry, mig_geometries

A100 = MIG_GEOMETRIES["A100-40GB"]
MOST_GPCS = 7
EIGHT = sorted(name for name in MIG_GEOMETRIES if name != "A30-24GB")


def fits_somewhere(geometry: MigGeometry, names: tuple[str, ...]) -> bool:
    """Brute force: every combination of start slots, each checked by sets of memory slices."""
    profiles = [geometry.profile(name) for name in names]
    if sum(profile.compute_slices for profile in profiles) > geometry.compute_slices:
        return False
    if sum("+me" in name for name in names) > 1:
        return False
    if sum(profile.memory_slices for profile in profiles) > geometry.memory_slices:
        return False
    for starts in product(*(profile.starts for profile in profiles)):
        taken: set[int] = set()
        for start, profile in zip(starts, profiles, strict=True):
            mine = set(range(start, start + profile.memory_slices))
            if taken & mine or max(mine) >= geometry.memory_slices:
                break
            taken |= mine
        else:
            return True
    return False


def multisets(names: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    for size in range(1, most + 1):
        yield from combinations_with_replacement(names, size)


@pytest.mark.parametrize("name", MIG_GEOMETRIES)
def test_every_multiset_of_plain_slices_is_placed_just_where_a_search_over_start_slots_places_it(name: str) -> None:
    geometry = MIG_GEOMETRIES[name]
    verdicts = Counter[bool]()
    for names in multisets(geometry.plain_names, geometry.compute_slices + 1):
        # Seven starts for each of eight slices are too many to try; more GPCs than there are need no search.
        if len(names) > geometry.compute_slices:
            assert geometry.place(names) is None
            continue
        placed = geometry.place(names)
        assert (placed is not None) == fits_somewhere(geometry, names), names
        verdicts[placed is not None] += 1
        if placed is not None:
            assert geometry.is_legal(placed)
            assert Counter(instance.profile for instance in placed) == Counter(names)
    assert verdicts[True]
    assert verdicts[False]


@given(data=st.data())
def test_multisets_with_media_engines_and_double_memory_are_placed_the_same_way(data: st.DataObject) -> None:
    geometry = MIG_GEOMETRIES[data.draw(st.sampled_from(sorted(MIG_GEOMETRIES)))]
    profiles = [profile.name for profile in geometry.profiles]
    names = tuple(sorted(data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=5))))
    placed = geometry.place(names)
    assert (placed is not None) == fits_somewhere(geometry, names)
    assert placed is None or geometry.is_legal(placed)


@given(data=st.data())
def test_every_way_to_place_slices_is_found_once(data: st.DataObject) -> None:
    geometry = MIG_GEOMETRIES[data.draw(st.sampled_from(sorted(MIG_GEOMETRIES)))]
    names = sorted(data.draw(st.lists(st.sampled_from([each.name for each in geometry.profiles]), max_size=4)))
    placements = geometry.placements(names)
    tried = {
        tuple(sorted(placed, key=lambda instance: instance.start))
        for starts in product(*(geometry.profile(name).starts for name in names))
        if geometry.is_legal(placed := [Mig(name, start) for name, start in zip(names, starts, strict=True)])
    }
    assert set(placements) == tried
    assert len(placements) == len(tried)


@given(data=st.data())
def test_placed_slices_are_legal_just_where_none_shares_a_memory_slice(data: st.DataObject) -> None:
    geometry = MIG_GEOMETRIES[data.draw(st.sampled_from(sorted(MIG_GEOMETRIES)))]
    some = st.builds(
        Mig, st.sampled_from([each.name for each in geometry.profiles]), st.integers(0, geometry.memory_slices)
    )
    placed = data.draw(st.lists(some, max_size=5))
    profiles = [geometry.profile(instance.profile) for instance in placed]
    taken = [
        slot
        for instance, profile in zip(placed, profiles, strict=True)
        for slot in range(instance.start, instance.start + profile.memory_slices)
    ]
    legal = (
        all(instance.start in profile.starts for instance, profile in zip(placed, profiles, strict=True))
        and len(set(taken)) == len(taken)
        and sum("+me" in profile.name for profile in profiles) <= 1
        and sum(profile.compute_slices for profile in profiles) <= geometry.compute_slices
    )
    assert geometry.is_legal(placed) == legal
    assert (geometry.why_not(placed) is None) == legal


@pytest.mark.parametrize("name", EIGHT)
def test_gpus_of_eight_memory_slices_have_the_nineteen_configurations_of_nvidias_guide(name: str) -> None:
    """A left half, a right half, or 7g."""
    configurations = MIG_GEOMETRIES[name].configurations()
    sizes = {tuple((int(instance.profile[0]), instance.start) for instance in placed) for placed in configurations}
    lefts = [((4, 0),), ((3, 0),), ((2, 0), (2, 2)), ((2, 0), (1, 2), (1, 3)), ((1, 0), (1, 1), (2, 2))]
    lefts.append(tuple((1, start) for start in range(4)))
    rights = [((3, 4),), ((2, 4), (1, 6)), ((1, 4), (1, 5), (1, 6))]
    assert sizes == {(*left, *right) for left in lefts for right in rights} | {((7, 0),)}
    assert len(configurations) == len(sizes) == 19


def test_an_a30_has_the_five_ways_to_cut_its_four_slices() -> None:
    placed = {tuple(instance.profile[0] for instance in each) for each in MIG_GEOMETRIES["A30-24GB"].configurations()}
    assert placed == {("4",), ("2", "2"), ("2", "1", "1"), ("1", "1", "2"), ("1", "1", "1", "1")}


@pytest.mark.parametrize("name", MIG_GEOMETRIES)
def test_the_most_instances_of_a_profile_are_those_that_fit(name: str) -> None:
    geometry = MIG_GEOMETRIES[name]
    for profile in geometry.profiles:
        assert geometry.place([profile.name] * profile.most), profile.name
        assert geometry.place([profile.name] * (profile.most + 1)) is None, profile.name
        assert profile.compute_slices == int(profile.name[0])
        assert profile.nvml.startswith(f"{profile.compute_slices}_SLICE")
    assert len({profile.id for profile in geometry.profiles}) == len(geometry.profiles)


def test_3g_and_4g_fit_though_first_fit_puts_3g_in_the_way() -> None:
    assert A100.place(["3g.20gb", "4g.20gb"]) == (Mig("4g.20gb", 0), Mig("3g.20gb", 4))


@pytest.mark.parametrize(
    ("placed", "why"),
    [
        ([Mig("5g.20gb", 0)], "A100-40GB has no MIG profile '5g.20gb': it has 1g.5gb,"),
        ([Mig("3g.20gb", 2)], "on A100-40GB 3g.20gb begins at memory slice 0, 4, not at 2"),
        ([Mig("1g.5gb", 3), Mig("3g.20gb", 0)], "3g.20gb at 0 has 4 memory slices, and 1g.5gb at 3 begins within"),
        ([Mig("1g.5gb+me", 0), Mig("1g.5gb+me", 1)], "has one set of media engines"),
    ],
)
def test_what_a_gpu_cannot_have_is_said_with_what_it_could(placed: list[Mig], why: str) -> None:
    assert why in str(A100.why_not(placed))


@pytest.mark.parametrize(
    ("name", "memory_mib", "found"),
    [
        ("A100-40GB", None, ["A100-40GB"]),
        ("NVIDIA A100-SXM4-80GB", None, ["A100-80GB"]),
        ("NVIDIA A100 80GB PCIe", None, ["A100-80GB"]),
        ("A100", 40960, ["A100-40GB"]),
        ("A100", 81920, ["A100-80GB"]),
        ("A100", None, ["A100-40GB", "A100-80GB"]),
        ("NVIDIA A30", 24576, ["A30-24GB"]),
        ("NVIDIA H100 80GB HBM3", 81559, ["H100-80GB"]),
        ("NVIDIA H200", 143771, ["H200-141GB"]),
        ("NVIDIA GH200 480GB", 97871, ["GH200-96GB"]),
        ("NVIDIA B200", 183359, ["B200-180GB"]),
        ("NVIDIA H100 NVL", 95830, ["H100-94GB"]),
        ("NVIDIA H100 NVL", None, ["H100-94GB"]),
        ("H100-94GB", None, ["H100-94GB"]),
        ("NVIDIA H100", 97871, ["H100-96GB"]),
        ("H100", None, ["H100-80GB", "H100-94GB", "H100-96GB"]),
        ("NVIDIA H800 NVL", 95830, ["H100-94GB"]),
        ("NVIDIA A800-SXM4-80GB", None, ["A100-80GB"]),
        ("GH200", None, ["GH200-96GB", "GH200-144GB"]),
        ("NVIDIA GH200 480GB", None, ["GH200-96GB", "GH200-144GB"]),
        ("NVIDIA GH200 144G HBM3e", None, ["GH200-144GB"]),
        ("NVIDIA GH200 144G HBM3e", 146831, ["GH200-144GB"]),
        ("NVIDIA H100 80GB HBM3", None, ["H100-80GB"]),
        ("NVIDIA H100 24GB", None, []),
        ("NVIDIA GB200", None, []),
        ("NVIDIA A10", None, []),
        ("", None, []),
    ],
)
def test_products_are_known_as_drivers_call_them(name: str, memory_mib: int | None, found: list[str]) -> None:
    assert [geometry.product for geometry in mig_geometries(name, memory_mib)] == found
