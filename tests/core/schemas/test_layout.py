"""The layout document: what it refuses, and what policies are told."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tidegate.api import Model, Network, Pipeline, Profile, Worker
from tidegate.schemas import Device, DocumentError, Layout, Mps, read_document, write_document

LAYOUT: dict[str, Any] = {
    "models": [{"name": "m", "slo_ms": 20, "rate_rps": 50, "pipelines": [{"partitions": ["a", "b"], "batch": 2}]}],
    "partitions": [
        {"name": "a", "model": "m", "blocks": [0, 3], "bytes_per_row": 1000, "latency_ms": {"P4": [3, 5]}},
        {"name": "b", "model": "m", "blocks": [3, 10], "latency_ms": {"L4/mps-50": [1, 1.5], "unused": [1, 1]}},
    ],
    "workers": [
        {"name": "P4-0", "device": {"node": "one", "id": 0, "product": "P4"}, "hosts": ["a"]},
        {
            "name": "L4-0/0",
            "device": {"node": "two", "id": 0, "product": "L4", "memory_mib": 23034},
            "slice": {"type": "mps", "percent": 50},
            "hosts": ["b"],
        },
    ],
    "network": {"gbps": 8, "latency_ms": 0.5},
}


def changed(*path: str | int, to: object = None) -> dict[str, Any]:
    document = deepcopy(LAYOUT)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return document


def test_policies_are_told_models_workers_profiles_and_network() -> None:
    models, workers, profiles, network = Layout.model_validate(LAYOUT).contract()
    assert models == (Model("m", 2, 20_000_000, (Pipeline(("a", "b"), 2),)),)
    assert workers == (
        Worker(0, "P4-0", ("a",), "P4", Device("one", 0, "P4")),
        Worker(1, "L4-0/0", ("b",), "L4/mps-50", Device("two", 0, "L4", 23034), Mps(50)),
    )
    assert profiles == (Profile("a", "P4", (3_000_000, 5_000_000)), Profile("b", "L4/mps-50", (1_000_000, 1_500_000)))
    assert network == Network({"a": 1000, "b": 0}, 1e9, 500_000)
    assert network.transfer_ns("a", 2) == 2000


def test_a_model_in_one_partition_of_its_name_is_not_split() -> None:
    whole = changed("models", 0, "pipelines", to=[{"partitions": ["m"], "batch": 2}])
    whole["partitions"] = [{"name": "m", "model": "m", "blocks": [0, 10], "latency_ms": {"P4": [3, 5]}}]
    whole["workers"] = [{**LAYOUT["workers"][0], "hosts": ["m"]}]
    assert Layout.model_validate(whole).contract()[0] == (Model("m", 2, 20_000_000),)


def test_it_is_written_and_read(tmp_path: Path) -> None:
    layout = Layout.model_validate(LAYOUT)
    write_document(tmp_path / "layout.json", layout)
    assert read_document(tmp_path / "layout.json", Layout) == layout


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed("partitions", 1, "name", to="a"), "partitions: 'a' is listed twice"),
        (changed("workers", 0, "hosts", to=["c"]), "'P4-0' hosts 'c', which is no partition"),
        (changed("workers", 0, "device_class", to="T4"), "'a' has no latency_ms for 'T4'"),
        (changed("workers", 0, "gpu", to="P4-0"), "workers.0.gpu: there is no such field"),
        (changed("workers", 0, "device"), "workers.0.device: .*`object`, got `null`"),
        (changed("workers", 0, "device", "id", to="one"), r"workers.0.device: Expected `str` matching .* in `id`"),
        (changed("workers", 1, "slice", "percent", to=101), "workers.1.slice: Expected `int` <= 100 in `percent`"),
        (changed("workers", 1, "slice", "type", to="half"), "workers.1.slice: Invalid value 'half' in `type`"),
        (changed("workers", 1, "device", "node", to="one"), "'L4-0/0': device 0 of node 'one' is of another product"),
        (changed("workers", 0, "hosts", to=["b"]), "'b' has no latency_ms for 'P4'"),
        (changed("workers", to=LAYOUT["workers"][:1]), "no worker hosts 'b'"),
        (changed("models", 0, "pipelines", 0, "partitions", to=["a", "c"]), "'c' is no partition of this model"),
        (changed("models", 0, "pipelines", 0, "batch", to=3), "latency_ms of 'a' on 'P4' ends before the batch 3"),
        (changed("partitions", 1, "blocks", to=[4, 10]), r"blocks \[\[0, 3\], \[4, 10\]\] do not follow each other"),
        (changed("partitions", 0, "blocks", to=[3, 3]), r"\[3, 3\] is no"),
        (changed("partitions", 0, "latency_ms", to={"P4": [3, 2]}), "latency_ms.P4: .* none falling"),
        (changed("network", "gbps", to=0), "network.gbps"),
    ],
)
def test_what_does_not_add_up_is_named(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=message):
        read_document(tmp_path / "layout.json", Layout)


def cut(product: str, *instances: tuple[str, int]) -> dict[str, Any]:
    """One GPU in MIG instances, each with a worker that hosts everything."""
    device = {"node": "one", "id": 0, "product": product}
    slices = [{"type": "mig", "profile": profile, "start": start} for profile, start in instances]
    document = changed(
        "workers",
        to=[
            {"name": f"w{number}", "device": device, "slice": each, "hosts": ["a", "b"], "device_class": "P4"}
            for number, each in enumerate(slices)
        ],
    )
    document["partitions"][1]["latency_ms"] = {"P4": [1, 1.5]}
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (cut("A100", ("3g.20gb", 0), ("4g.20gb", 0)), r"3g.20gb at 0 has 4 memory slices, and 4g.20gb at 0 begins"),
        (cut("A100", ("3g.40gb", 2)), "device 0 of node 'one': on A100-80GB 3g.40gb begins at memory slice 0, 4, not"),
        (cut("A30", ("3g.20gb", 0)), "A30-24GB has no MIG profile '3g.20gb': it has 1g.6gb"),
    ],
)
def test_a_gpu_that_cannot_be_cut_so_is_named(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=message):
        read_document(tmp_path / "layout.json", Layout)


def test_a_gpu_is_cut_or_it_is_not(tmp_path: Path) -> None:
    """A share of an instance cuts it, too; what is left of a GPU that is cut is nobody's."""
    document = cut("A100", ("3g.20gb", 0), ("3g.20gb", 0))
    for worker, start in zip(document["workers"], (0, 4), strict=True):
        worker["slice"] = {"type": "mps", "percent": 50, "instance": {"profile": "3g.20gb", "start": start}}
    layout = Layout.model_validate(document)
    assert [worker.slice.instance.start for worker in layout.workers] == [0, 4]  # type: ignore[union-attr]
    assert Layout.model_validate_json(layout.model_dump_json()) == layout
    document["workers"][1]["slice"]["instance"]["start"] = 2
    (tmp_path / "layout.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"3g\.20gb begins at memory slice 0, 4, not at 2"):
        read_document(tmp_path / "layout.json", Layout)
    document["workers"][1]["slice"] = {"type": "mps", "percent": 50}
    (tmp_path / "layout.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match="'w1' is to have device 0 of node 'one' uncut"):
        read_document(tmp_path / "layout.json", Layout)


def test_mig_instances_may_be_shared_and_gpus_unknown() -> None:
    shared = ("3g.20gb", 4)
    assert Layout.model_validate(cut("A100", ("4g.20gb", 0), shared, shared))
    assert Layout.model_validate(cut("Next", ("9g.9gb", 3), ("9g.9gb", 4)))
