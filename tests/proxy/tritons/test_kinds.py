"""Of which kind the workers of each Triton are, and what follows: unlike ones learn profiles of their own."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.examples import few
from tests.proxy.fixtures.clients import infer_all, tensors
from tests.proxy.fixtures.here import ProxyHere
from tests.python_models import write_model
from tidegate.api import NS_PER_MS
from tidegate.schemas import Device, Mig, ModelProfile, ProfileFile, ProfilePoint, WholeDevice
from tidegate_proxy.access.passthrough_apis import PassthroughApis
from tidegate_proxy.tritons import workers as kinds
from tidegate_proxy.tritons.backend import Backend, LoadedModel
from tidegate_proxy.tritons.catalog import Catalog, discover
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.gpus import Gpu
from tidegate_proxy.tritons.initial_profiles import starting_profiles
from tidegate_proxy.tritons.workers import WorkerHardware, place_of
from tidegate_triton_models import model_source


def gpu(number: int, product: str) -> Gpu:
    device = Device("here", f"GPU-{number}", product)
    return Gpu(f"GPU-{number}", device, WholeDevice(), product)


A100, OTHER_A100, T4 = gpu(0, "A100"), gpu(1, "A100"), gpu(2, "T4")
CUT = Device("here", "GPU-3", "A100")
PART = Gpu("MIG-3", CUT, Mig("1g.5gb", 2), "A100/1g.5gb")
HIDDEN = Gpu("MIG-4", CUT, None, "A100/1g.5gb")
ON_GPU = "instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }"
ON_TWO = "instance_group { kind: KIND_GPU count: 1 gpus: [ 0, 1 ] }"
ON_CPU = "instance_group { kind: KIND_CPU count: 2 }"
BODY = """
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
"""


def loaded(*groups: str) -> list[LoadedModel]:
    configs = (
        text_format.Parse(f'name: "m{number}" {BODY} {group}', model_config_pb2.ModelConfig())
        for number, group in enumerate(groups)
    )
    return [LoadedModel(config, ("1",)) for config in configs]


@pytest.mark.parametrize(
    ("told", "groups", "gpus", "place"),
    [
        ("mine", [ON_GPU], [A100], WorkerHardware("mine")),
        ("", [ON_GPU], [], WorkerHardware()),
        ("", [ON_CPU], [A100], WorkerHardware()),
        ("", [], [A100], WorkerHardware()),
        ("", [ON_CPU, ON_GPU], [A100], WorkerHardware("A100", A100.device, WholeDevice())),
        ("", [ON_GPU], [PART], WorkerHardware("A100/1g.5gb", CUT, Mig("1g.5gb", 2))),
        ("", [ON_GPU], [HIDDEN], WorkerHardware("A100/1g.5gb")),
        ("", [ON_TWO], [A100, OTHER_A100], WorkerHardware("A100")),
        ("", [ON_GPU], [A100, T4], WorkerHardware()),
        ("", [ON_TWO], [A100], WorkerHardware()),
    ],
    ids=[
        "the configuration says it",
        "no GPU is known",
        "it runs on the CPU",
        "it has no models",
        "one of its models has the only GPU",
        "a MIG instance",
        "a MIG instance of which not all is known",
        "two GPUs that are alike",
        "two that are not",
        "it has more GPUs than this machine",
    ],
)
def test_a_kind_is_known_where_there_is_no_doubt(
    told: str, groups: list[str], gpus: list[Gpu], place: WorkerHardware
) -> None:
    assert place_of(told, loaded(*groups), gpus) == place


class FakeBackend:
    """What kinds are told by, of a Triton that is asked for its models."""

    def __init__(self, address: str, *groups: str, kind: str = "", is_local: bool = True) -> None:
        self.address = address
        self.apis = PassthroughApis()
        self.groups = groups
        self.device_class = kind
        self.is_local = is_local
        self.serialize_models = None
        self.turns = None
        self.grpc_forward_pattern = None
        self.metrics = f"{address}2"
        self.alive = True
        self.is_closed = False

    async def models(self, *_: object) -> list[LoadedModel]:
        return loaded(*self.groups)


def found(*tritons: FakeBackend, gpus: tuple[Gpu, ...] = (), before: Catalog | None = None) -> Catalog:
    return asyncio.run(discover(cast("list[Backend]", tritons), {}, before, gpus=gpus))


def test_where_gpus_are_unlike_each_tritons_own_metrics_tell_which_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: dict[str, str | None] = {
        "a:1": 'nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 4.2e+10\nnv_gpu_power_limit{gpu_uuid="GPU-0"} 400\n',
        "b:1": 'nv_gpu_memory_total_bytes{gpu_uuid="GPU-2"} 1.6e+10\n',
        "c:1": "nv_inference_count 3\n",
        "g:1": 'nv_gpu_memory_total_bytes{gpu_uuid="GPU-of-another-machine"} 1.6e+10\n',
    }
    asked: list[str] = []

    async def scrape(addresses: Mapping[str, str]) -> dict[str, str | None]:
        asked.extend(addresses.values())
        return {name: pages[name] for name in addresses}

    monkeypatch.setattr(kinds, "scrape", scrape)
    tritons = [FakeBackend(f"{name}:1", ON_GPU) for name in "abcg"]
    others = [FakeBackend("d:1", ON_GPU, is_local=False), FakeBackend("e:1", ON_CPU), FakeBackend("f:1", kind="mine")]
    first = found(*tritons, *others, gpus=(A100, T4))
    assert asked == ["a:12", "b:12", "c:12", "g:12"]
    assert [first.places[cast("Backend", triton)].device_class for triton in (*tritons, *others)] == [
        "A100",
        "T4",
        "",
        "",
        "",
        "",
        "mine",
    ]
    assert [
        (worker.device_class, worker.device)
        for worker in first.workers
        if worker.name in ("a:1/m0/0", "b:1/m0/1", "c:1/m0/0")
    ] == [
        ("A100", A100.device),
        ("T4", T4.device),
        ("default", None),
    ]
    # What is known stays known while nothing changes, and where nobody answers.
    assert found(*tritons, *others, before=first).same_plan(first)
    assert len(asked) == 4
    pages["a:1"] = None
    tritons[0].groups = (ON_GPU, ON_GPU)
    again = found(*tritons, *others, before=first)
    assert len(asked) == 5
    assert again.places[cast("Backend", tritons[0])].device_class == "A100"


def test_a_worker_of_another_kind_is_another_worker() -> None:
    first = found(FakeBackend("a:1", ON_CPU, kind="fast"))
    same, other = (found(FakeBackend("a:1", ON_CPU, kind=kind), before=first) for kind in ("fast", "slow"))
    assert same.same_plan(first)
    assert not {worker.id for worker in first.workers} & {worker.id for worker in other.workers}


def test_every_kind_starts_from_its_own_profile_else_from_the_one_that_names_no_kind() -> None:
    def measured(kind: str, ms: float) -> ModelProfile:
        point = ProfilePoint(rows=1, median_ms=ms, p95_ms=ms, samples=9)
        return ModelProfile(model="m0", device_class=kind, alpha_ms=0, beta_ms=ms, points=[point])

    catalog = found(FakeBackend("a:1", ON_CPU, kind="fast"), FakeBackend("b:1", ON_CPU, kind="slow"))
    assert [worker.device_class for worker in catalog.workers] == ["fast", "fast", "slow", "slow"]
    files = ProfileFile(profiles=[measured("default", 7), measured("slow", 21)])
    profiles = {profile.key: profile.expected_ns(1) / NS_PER_MS for profile in starting_profiles(catalog, files)}
    assert profiles == {("m0", "fast", ""): 7, ("m0", "slow", ""): 21}
    guessed = starting_profiles(catalog, ProfileFile(profiles=[]))
    assert [profile.key for profile in guessed] == [("m0", "fast", ""), ("m0", "slow", "")]


# Live ----------------------------------------------------------------------------------------------------------------

FAST_MS, SLOW_MS = 40, 120


@pytest.fixture(scope="module")
def unlike(
    start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory
) -> list[EmbeddedTriton]:
    """Two Tritons whose emulated GPUs take 40 and 120 ms for a batch of any size."""
    tritons = []
    for beta_ms in (FAST_MS, SLOW_MS):
        given = {"alpha_ms": 0, "beta_ms": beta_ms}.items()
        parameter = " ".join(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in given
        )
        config = f'backend: "python" {BODY} {ON_CPU.replace("2", "1")} {parameter}'
        repository = tmp_path_factory.mktemp("models")
        write_model(repository, "m", model_source("emulated_gpu").read_text(), config)
        tritons.append(start_triton([repository]))
    return tritons


def learned_ms(proxy: ProxyHere) -> dict[str, list[float]]:
    """What one row is expected to take, by device class, in ms."""
    known: dict[str, list[float]] = {}
    for partition, kind, shape in (profiles := proxy.engine.expectations.profiles):
        if partition == "m":
            known.setdefault(kind, []).append(profiles[partition, kind, shape].expected_ns(1) / NS_PER_MS)
    return known


@pytest.mark.parametrize("policy", few(["symphony", "fifs"]))
def test_two_tritons_of_unlike_kinds_learn_two_profiles(
    unlike: list[EmbeddedTriton], serve_here: Callable[..., ProxyHere], connect: Callable[..., Any], policy: str
) -> None:
    named = [
        {"grpc": triton.grpc_address, "device_class": kind}
        for triton, kind in zip(unlike, ("fast", "slow"), strict=True)
    ]
    proxy = serve_here([], policy, tritons=named, models={"m": {"slo_ms": 5000}})
    asked = [{"inputs": tensors({"X": np.ones((1, 3), np.float32)})} for _ in range(24)]
    for _ in range(8):
        assert all(answer.as_numpy("Y") is not None for answer in infer_all(connect(proxy), "m", asked))
    known = learned_ms(proxy)
    assert known.keys() == {"fast", "slow"}
    assert min(known["slow"]) > SLOW_MS * 0.9  # nothing of the fast one, which a busy machine may slow down as well
    assert {worker.device_class for worker in proxy.engine.policy.setup.workers} == {"fast", "slow"}


def test_without_kinds_all_is_as_it_was(
    unlike: list[EmbeddedTriton], serve_here: Callable[..., ProxyHere], connect: Callable[..., Any]
) -> None:
    """Plain addresses, no GPU: one profile for all, as nothing is known of them."""
    proxy = serve_here(unlike, "fifs", models={"m": {"slo_ms": 5000}})
    connect(proxy).infer("m", tensors({"X": np.ones((1, 3), np.float32)}))
    assert learned_ms(proxy).keys() == {"default"}
    assert {(worker.device_class, worker.device) for worker in proxy.engine.policy.setup.workers} == {("default", None)}


def test_with_a_layout_the_kind_stands_there(serve_here: Callable[..., ProxyHere], tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text("{}")
    triton = {"grpc": "localhost:1", "worker": "w", "device_class": "fast"}
    with pytest.raises(Exception, match=r"tritons\.0\.device_class: the layout says it of worker 'w'"):
        serve_here([], tritons=[triton], layout=str(tmp_path / "layout.json"))
