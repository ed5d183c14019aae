"""What the Tritons' configs make of models and workers."""

import asyncio
from typing import Any, cast

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.api import Model
from tidegate.schemas import ProfileFile
from tidegate_baselines.triton import TritonOptions
from tidegate_proxy.access.passthrough_apis import PassthroughApis
from tidegate_proxy.app.doctor.facts import facts_of
from tidegate_proxy.configuration.config import ModelConfig, ServeConfig
from tidegate_proxy.rollout.shadow import own_batching
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.tritons.catalog import Catalog, catalog_for_shadow, discover
from tidegate_proxy.tritons.serialization import SerializationController

TENSORS = """
input { name: "X" data_type: TYPE_STRING dims: [ -1, 3 ] }
input { name: "MAYBE" data_type: TYPE_BF16 dims: [ 1 ] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


class _Triton:
    """Answers as a Backend does, without a server."""

    def __init__(self, address: str, **configs: str) -> None:
        self.address = address
        self.apis = PassthroughApis()
        self.limits: dict[str, Any] = {}
        self.alive = True
        self.is_closed = False
        self.device_class = ""
        self.serialize_models: bool | None = None
        self.turns = SerializationController()
        self.is_local = True
        self.grpc_forward_pattern = None
        self.metrics = None
        self.broken = False
        self._configs = [
            text_format.Parse(f'name: "{name}" {TENSORS} {text}', model_config_pb2.ModelConfig())
            for name, text in configs.items()
        ]

    def change_to(self, other: "_Triton") -> None:
        """From now on it serves what the other does."""
        self._configs = other._configs

    async def models(self, *_: object) -> list[LoadedModel]:
        if self.broken:
            raise BackendError("it is broken")
        return [LoadedModel(config, ("1",)) for config in self._configs]


def _discover(*tritons: _Triton, **slos_ms: float) -> Catalog:
    return _told(*tritons, **{name: ModelConfig(slo_ms=slo_ms) for name, slo_ms in slos_ms.items()})


def _told(*tritons: _Triton, **told: ModelConfig) -> Catalog:
    return asyncio.run(discover(cast("tuple[Backend, ...]", tritons), told))


def _again(before: Catalog, *tritons: _Triton, returning: _Triton | None = None) -> Catalog:
    backends = cast("tuple[Backend, ...]", tritons)
    return asyncio.run(discover(backends, {}, before, cast("Backend | None", returning)))


def _slo(text: str) -> str:
    return f'max_batch_size: 4 parameters {{ key: "slo_ms" value: {{ string_value: "{text}" }} }}'


def test_models_signatures_and_slos() -> None:
    catalog = _discover(_Triton("a:1", fast=_slo("2.5"), slow="max_batch_size: 8"))
    assert catalog.models == {
        "fast": Model("fast", 4, 2_500_000, merge_limit=1),
        "slow": Model("slow", 8, merge_limit=1),
    }
    signature = catalog.signatures["fast"]
    assert (signature.model, signature.max_rows, signature.outputs) == ("fast", 4, frozenset({"Y"}))
    assert signature.inputs["X"].accepts("BYTES", [2, 0, 3])
    assert not signature.inputs["X"].accepts("BYTES", [2, -1, 3])
    assert signature.inputs["MAYBE"].optional
    assert _discover(_Triton("a:1", fast=_slo("2.5")), fast=7.0).models["fast"].slo_ns == 7_000_000


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("max_batch_size: 0", "max_batch_size is 0"),
        ("max_batch_size: 4 sequence_batching { }", "sequence"),
        ("max_batch_size: 4 model_transaction_policy { decoupled: true }", "decoupled"),
        ("max_batch_size: 4 ensemble_scheduling { }", "ensemble"),
        ('max_batch_size: 4 input { name: "S" data_type: TYPE_INT32 is_shape_tensor: true }', "shape tensors"),
        ('max_batch_size: 4 batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" }', "batch_input"),
    ],
)
def test_what_passes_straight_through(config: str, reason: str) -> None:
    triton = _Triton("a:1", m=config)
    catalog = _discover(triton)
    assert not catalog.models
    assert not catalog.workers
    assert (catalog.consents["m"].scheduling, catalog.consents["m"].warning) == ("bypass", "")
    assert reason in catalog.consents["m"].why
    assert catalog.hosts["m"] == [cast("Backend", triton)]


def test_a_word_for_a_model_that_no_triton_has() -> None:
    with pytest.raises(
        BackendError,
        match=r"scheduling, max_concurrency or merge.pad is set for nope, which no Triton has; these models are: m",
    ):
        _told(_Triton("a:1", m="max_batch_size: 4"), nope=ModelConfig(scheduling="bypass"))


@pytest.mark.parametrize("first", [0, 1])
def test_what_every_triton_consents_to_is_done(first: int) -> None:
    batching = 'backend: "onnxruntime" dynamic_batching { }'
    tritons = [_Triton("a:1", m=f"max_batch_size: 4 {batching}"), _Triton("b:1", m="max_batch_size: 4")]
    assert _discover(tritons[0]).models["m"].merges
    catalog = _discover(tritons[first], tritons[1 - first])
    assert not catalog.models["m"].merges
    assert catalog.consents["m"].scheduling == "unbatched"


def test_a_worker_is_a_lane_of_a_triton() -> None:
    three = "max_batch_size: 4 instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 gpus: [ 0 ] kind: KIND_GPU } ]"
    wide = "max_batch_size: 4 instance_group { count: 1 gpus: [ 0, 1 ] kind: KIND_GPU }"
    idle = "max_batch_size: 4 instance_group { count: 4 passive: true }"
    first, second = _Triton("a:1", three=three, wide=wide), _Triton("b:1", idle=idle, wide=wide)
    catalog = _discover(first, second)
    assert [(worker.id, worker.name, worker.hosts) for worker in catalog.workers] == [
        *((number, f"a:1/three/{number}", ("three",)) for number in range(3)),
        *((3 + number, f"a:1/wide/{number}", ("wide",)) for number in range(2)),
        (5, "b:1/idle/0", ("idle",)),
        *((6 + number, f"b:1/wide/{number}", ("wide",)) for number in range(2)),
    ]
    assert [catalog.backend_of[worker.id].address for worker in catalog.workers] == ["a:1"] * 5 + ["b:1"] * 3
    assert [backend.address for backend in catalog.hosts["wide"]] == ["a:1", "b:1"]


def test_tritons_that_have_left_are_forgotten_when_they_are_closed_and_their_ids_stay_theirs() -> None:
    """Tritons come and go for months: each leaves once what runs there has ended."""
    first, *others = (_Triton(f"{number}:1", m="max_batch_size: 4") for number in range(4))
    catalog = _discover(first)
    for number, triton in enumerate(others, 1):
        catalog = _again(_again(catalog, first, triton), first)
        assert [*catalog.backend_of] == [0, number], "it drains"
        triton.is_closed = True
        catalog = _again(catalog, first)
        assert [*catalog.backend_of] == [0]
    rejoined = _again(catalog, first, _Triton("1:1", m="max_batch_size: 4"))
    assert [worker.id for worker in rejoined.workers] == [0, 4]


OTHER = 'max_batch_size: 4 input { name: "MORE" data_type: TYPE_FP32 dims: [ 1 ] }'


def _request(rows: int, **more: Any) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype="BYTES", shape=[rows, 2, 3])
    for name, shape in more.items():
        request.inputs.add(name=name, datatype="FP32", shape=shape)
    return request


def _takers(catalog: Catalog, request: service_pb2.ModelInferRequest | None) -> list[str]:
    return [backend.address for backend in catalog.takers("m", request)]


def test_tritons_that_differ_in_the_rows_they_take_share_what_all_of_them_take() -> None:
    tritons = [_Triton("a:1", m="max_batch_size: 4"), _Triton("b:1", m="max_batch_size: 6")]
    for pair in (tritons, tritons[::-1]):
        catalog = _discover(*pair)
        assert catalog.models == {"m": Model("m", 4, merge_limit=1)}
        assert sorted(worker.name for worker in catalog.workers) == ["a:1/m/0", "b:1/m/0"]
        assert sorted(_takers(catalog, _request(4))) == ["a:1", "b:1"]
        assert _takers(catalog, _request(5)) == ["b:1"]
        assert "model 'm' is not the same at " in catalog.disagreements[0]
    assert not _discover(tritons[0], tritons[0]).disagreements


def test_of_two_forms_the_one_that_more_tritons_have_is_scheduled_and_the_other_answered_where_it_is() -> None:
    old = [_Triton(f"{name}:1", m="max_batch_size: 4") for name in "abc"]
    new = [_Triton(f"{name}:1", m=OTHER) for name in "abc"]
    for updated in (1, 2):
        tritons = [*new[:updated], *old[updated:]]
        catalog = _discover(*tritons)
        several = ["a:1", "b:1"] if updated == 2 else ["b:1", "c:1"]
        single = ["c:1"] if updated == 2 else ["a:1"]
        assert sorted(worker.name for worker in catalog.workers if worker.hosts) == [f"{name}/m/0" for name in several]
        of_old, of_new = _request(2), _request(2, MORE=[2, 1])
        assert (_takers(catalog, of_new), _takers(catalog, of_old)) == (
            (several, single) if updated == 2 else (single, several)
        )
        assert _takers(catalog, None) == several
        assert ("MORE" in catalog.signatures["m"].inputs) == (updated == 2)


def test_of_two_tritons_the_newer_form_leads_and_goes_on_to() -> None:
    old, new = _Triton("a:1", m="max_batch_size: 4"), _Triton("a:1", m="max_batch_size: 0")
    other = _Triton("b:1", m="max_batch_size: 4")
    before = _discover(old, other)
    old.change_to(new)
    for _ in range(2):
        before = _again(before, old, other)
        assert before.consents["m"].scheduling == "bypass"
        assert not before.workers
    other.change_to(new)
    assert not _again(before, old, other).disagreements


def test_what_a_triton_had_that_is_gone_counts_for_nothing() -> None:
    first, second = _Triton("a:1", m="max_batch_size: 4"), _Triton("b:1", m="max_batch_size: 4")
    before = _discover(first, second)
    second.alive = False
    first.change_to(_Triton("a:1", m=OTHER))
    catalog = _again(before, first, second)
    assert [(worker.name, worker.hosts) for worker in catalog.workers] == [("a:1/m/0", ("m",))]
    second.change_to(_Triton("b:1", m=OTHER))
    catalog = _again(catalog, first, second, returning=second)
    assert [(worker.name, worker.hosts) for worker in catalog.workers] == [("a:1/m/0", ("m",)), ("b:1/m/0", ("m",))]


def test_a_triton_that_does_not_answer_hinders_no_other() -> None:
    first, second = _Triton("a:1", m="max_batch_size: 4"), _Triton("b:1", m="max_batch_size: 4")
    before = _discover(first, second)
    second.broken = True
    first.change_to(_Triton("a:1", m="max_batch_size: 8"))
    assert _again(before, first, second, returning=first).models == {"m": Model("m", 8, merge_limit=1)}
    with pytest.raises(BackendError, match="it is broken"):
        _again(before, first, second, returning=second)
    with pytest.raises(BackendError, match="it is broken"):
        _discover(first, second)


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "nan", "inf", "1e300"])
def test_an_slo_in_a_config_that_is_none(text: str) -> None:
    with pytest.raises(BackendError, match=r"model 'm' at a:1: .*'slo_ms' is .*, not a positive number"):
        _discover(_Triton("a:1", m=_slo(text)))


def test_what_becomes_of_late_requests_is_said_by_the_configuration_or_else_the_model() -> None:
    config = 'max_batch_size: 4 parameters {{ key: "tidegate_on_deadline_miss" value: {{ string_value: "{}" }} }}'
    assert _discover(_Triton("a:1", m=_slo("5"))).models["m"].on_deadline_miss == "reject"
    assert _discover(_Triton("a:1", m=config.format("serve"))).models["m"].on_deadline_miss == "serve"
    told = _told(_Triton("a:1", m=config.format("serve")), m=ModelConfig(on_deadline_miss="reject"))
    assert told.models["m"].on_deadline_miss == "reject"
    with pytest.raises(
        BackendError, match=r"'m' at a:1: .*'tidegate_on_deadline_miss' is 'maybe', not one of reject, serve"
    ):
        _discover(_Triton("a:1", m=config.format("maybe")))
    with pytest.raises(
        BackendError, match="on_deadline_miss is given for nope, which is not scheduled; these models are: m"
    ):
        _told(_Triton("a:1", m="max_batch_size: 4"), nope=ModelConfig(on_deadline_miss="serve"))


def test_an_slo_of_a_model_that_is_not_scheduled() -> None:
    triton = _Triton("a:1", m="max_batch_size: 4", flat="max_batch_size: 0")
    with pytest.raises(
        BackendError,
        match="an SLO is given for flat, nope, which is not scheduled; these models are: m; flat: max_batch_size is 0",
    ):
        _discover(triton, flat=3.0, nope=4.0)


def test_an_slo_of_a_model_that_its_triton_batches_by_request_leaves_it_there() -> None:
    """One by one it would be slower than without Tidegate; with a limit its Triton batches what Tidegate queues."""
    python = 'max_batch_size: 8 backend: "python" dynamic_batching { } '
    slo = 'parameters { key: "slo_ms" value: { string_value: "9" } }'
    triton = _Triton("a:1", m=python, file=python + slo)
    catalog = _told(triton, m=ModelConfig(slo_ms=9, on_deadline_miss="serve"))
    for name in ("m", "file"):
        assert catalog.consents[name].scheduling == "bypass"
        assert "its SLO has no effect" in catalog.consents[name].warning
    assert not catalog.models
    slots = _told(triton, m=ModelConfig(slo_ms=9, max_concurrency=4))
    assert (slots.consents["m"].scheduling, slots.consents["m"].warning) == ("slots", "")
    assert slots.models["m"].slo_ns == 9_000_000
    assert len(slots.workers) == 4


def test_shadow_mode_judges_whatever_the_operator_could_have_scheduled() -> None:
    """Models that Triton batches need no setting; the settings of the operator, and what only Triton can do, stay."""
    tritons = _Triton(
        "a:1",
        delayed="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 }",
        python='max_batch_size: 8 backend: "python" dynamic_batching { }',
        placed="max_batch_size: 8",
        refused="max_batch_size: 8 dynamic_batching { }",
        sequences="max_batch_size: 8 sequence_batching { }",
    )
    told = {"refused": ModelConfig(scheduling="unbatched"), "python": ModelConfig(slo_ms=9)}
    backends = cast("tuple[Backend, ...]", (tritons,))
    catalog = _told(tritons, **told)
    assert {name: model.merged_rows for name, model in catalog.models.items()} == {"placed": 1, "refused": 1}
    judged = catalog_for_shadow(catalog, told)
    assert {name: model.merged_rows for name, model in judged.models.items()} == {
        "delayed": 8, "python": 8, "placed": 1, "refused": 1,
    }  # fmt: skip
    (worker,) = {worker.hosts for worker in judged.workers if "delayed" in worker.hosts}
    assert "delayed" in worker
    assert {worker.hosts for worker in catalog.workers if "delayed" in worker.hosts} == set()
    assert judged.signatures["placed"] is catalog.signatures["placed"]
    slo = {"delayed": ModelConfig(slo_ms=9)}
    with pytest.raises(BackendError, match="an SLO is given for delayed, which is not scheduled"):
        _told(tritons, **slo)
    assert "delayed" not in asyncio.run(discover(backends, slo, is_rollout=True)).models
    with pytest.raises(BackendError, match="an SLO is given for sequences, which is not scheduled"):
        asyncio.run(discover(backends, {"sequences": ModelConfig(slo_ms=9)}, is_rollout=True))


def test_shadow_mode_compares_with_each_model_as_most_tritons_batch_it() -> None:
    queue = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9000 max_queue_size: 7 }"
    wide = f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 2500 {queue} }}"
    plain = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] }"
    tritons = _Triton("a", a=wide, b=plain), _Triton("b", a=plain, b=plain), _Triton("c", a=wide)
    catalog = _told(*tritons, a=ModelConfig(scheduling="batched"), b=ModelConfig(scheduling="batched"))
    options = TritonOptions.model_validate(own_batching(catalog))
    a, b = options.of("a"), options.of("b")
    assert (a.preferred_batch_size, a.max_queue_delay_ms, a.default_timeout_ms) == ((), 2.5, 9)
    assert (a.timeout_action, a.max_queue_size, a.allow_timeout_override) == ("delay", 7, False)
    assert (b.preferred_batch_size, b.max_queue_delay_ms, b.timeout_action) == ((4,), 0, "reject")
    assert options.queue_order == "fewest"


def test_who_runs_beside_whom_is_known_by_the_workers() -> None:
    needs = 'rate_limiter { resources { name: "gpu" count: 1 } }'
    one, two = (f"max_batch_size: 8 instance_group {{ count: {count} {needs} }}" for count in (1, 2))
    catalog = _discover(_Triton("a", x=one, y=one, z=two), _Triton("b", v=one))
    facts = facts_of(
        ServeConfig.model_validate({"tritons": [{"grpc": "a:1"}]}, strict=False), catalog, ProfileFile(profiles=[])
    )
    assert {name: service.beside for name, service in facts.services.items()} == {
        "x": ("y", "z"),
        "y": ("x", "z"),
        "z": (),
        "v": (),
    }
