"""Facts in, findings out: each concept by itself, without a Triton."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.api import Model, ms_to_ns
from tidegate.documents import Hardware, ModelProfile, Point, ProfileFile
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.consent import Consent, consent_of
from tidegate_proxy.doctor.agreement import disagreements
from tidegate_proxy.doctor.batching import (
    batches_of_one,
    judged_twice,
    merged_by_nobody,
    waiting_twice,
    words_in_vain,
)
from tidegate_proxy.doctor.diagnosis import diagnose
from tidegate_proxy.doctor.facts import Executions, Facts, Form, NotReady, Service, Timed
from tidegate_proxy.doctor.finding import Finding, grouped
from tidegate_proxy.doctor.hardware import measured_elsewhere, measured_otherwise
from tidegate_proxy.doctor.installation import broken_plugins, unseen_gpus
from tidegate_proxy.doctor.loading import models_that_do_not_load
from tidegate_proxy.doctor.names import models_that_nobody_has, parts_of_nobody, remedy_for
from tidegate_proxy.doctor.neighbours import in_turn_on_processors, waits_behind_longer_ones
from tidegate_proxy.doctor.one_row import ENOUGH_EXECUTIONS
from tidegate_proxy.doctor.profiles import measured_in_vain, not_measured, shapes_in_vain
from tidegate_proxy.doctor.slos import requests_not_timed, slos_in_vain, slos_too_short

XY = """
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
"""


def _config(name: str, text: str = "max_batch_size: 8 dynamic_batching {}") -> model_config_pb2.ModelConfig:
    tensors = "" if "input" in text else XY
    return text_format.Parse(f'name: "{name}" backend: "onnxruntime" {tensors} {text}', model_config_pb2.ModelConfig())


def _facts(*configs: model_config_pb2.ModelConfig, slo_ms: float | None = None, **fields: Any) -> Facts:  # noqa: ANN401
    """What is known where one Triton has these models; `slo_ms` is that of every one that is scheduled."""
    config = ServeConfig.model_validate({"tritons": [{"grpc": "t:1"}], **fields.pop("config", {})}, strict=False)
    services = {}
    for each in configs:
        said = config.models.get(each.name)
        consent = consent_of(each, said.batch if said else None)
        model = None
        if consent.batch != "pass":
            slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
            late = (said.late if said else None) or "drop"
            model = Model(each.name, each.max_batch_size, slo_ns, merge_limit=consent.merge_limit, late=late)
        kinds = ("default",) if model else ()
        services[each.name] = Service(each.name, consent, (Form(each, ("t:1",)),), model, kinds, len(kinds))
    return Facts(config, services, **fields)


def _profiles(model: str, *, median_ms: float, p95_ms: float, shape: str = "") -> ProfileFile:
    points = [Point(rows=1, median_ms=median_ms, p95_ms=p95_ms, samples=9)]
    return ProfileFile(profiles=[ModelProfile(model=model, shape=shape, alpha_ms=0, beta_ms=1, points=points)])


def _said(findings: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - whatever can be walked through
    return [(finding.severity, finding.rule) for finding in findings]


def test_all_is_well_and_nothing_is_said() -> None:
    facts = _facts(_config("m"), slo_ms=50, measured=_profiles("m", median_ms=5, p95_ms=6))
    assert diagnose(facts) == []


@pytest.mark.parametrize(
    ("slo_ms", "expected"),
    [
        (4, [("error", "slo-too-short")]),
        (5, [("error", "slo-too-short")]),
        (6.5, [("warning", "slo-tight")]),
        (6.7, []),
    ],
)
def test_an_slo_is_held_against_the_profile(slo_ms: float, expected: list[tuple[str, str]]) -> None:
    facts = _facts(_config("m"), slo_ms=slo_ms, measured=_profiles("m", median_ms=5, p95_ms=6))
    assert _said(slos_too_short(facts)) == expected


def test_what_is_said_of_an_slo_that_is_too_short_says_where_why_and_what_to_do() -> None:
    facts = _facts(_config("m"), slo_ms=4, measured=_profiles("m", median_ms=5, p95_ms=6))
    (finding,) = slos_too_short(facts)
    assert str(finding) == (
        "models.m.slo_ms: 4 ms are less than the 5 ms that one row takes (the profile for workers of kind 'default'), "
        "so that nearly every request is refused; set it to 7 ms or more, twice that for batches to form, or have late "
        "ones answered: models.m.late: serve"
    )


def test_where_late_ones_are_answered_too_short_an_slo_is_a_warning() -> None:
    told = {"models": {"m": {"late": "serve"}}}
    facts = _facts(_config("m"), slo_ms=4, config=told, measured=_profiles("m", median_ms=5, p95_ms=6))
    (finding,) = slos_too_short(facts)
    assert finding.severity == "warning"
    assert "nearly every request is answered late" in finding.what
    assert "late: serve" not in finding.remedy


def test_an_slo_that_some_shapes_cannot_keep_names_them() -> None:
    config = _config("m", 'max_batch_size: 8 dynamic_batching {} input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }')
    small, large = (
        _profiles("m", median_ms=ms, p95_ms=ms, shape=shape).profiles[0] for shape, ms in (("X:3", 5), ("X:9", 20))
    )
    facts = _facts(config, slo_ms=10, measured=ProfileFile(profiles=[small, large]))
    (finding,) = slos_too_short(facts)
    assert finding.severity == "warning"
    assert finding.what.endswith("such requests are refused: X:9 (20 ms)")


def test_without_a_profile_what_was_timed_counts_and_then_what_triton_counted() -> None:
    many, few = Executions(ENOUGH_EXECUTIONS, 8.0), Executions(ENOUGH_EXECUTIONS - 1, 8.0)
    facts = _facts(_config("m"), slo_ms=5, executions={"m": many})
    (finding,) = slos_too_short(facts)
    assert (finding.severity, finding.rule) == ("error", "slo-too-short")
    assert "the mean of 100 executions" in finding.what
    assert _said(slos_too_short(replace(facts, executions={"m": few}))) == [], "first ones are slow"
    assert _said(slos_too_short(replace(facts, timed={"m": Timed(1.0)}))) == []
    (finding,) = slos_too_short(replace(facts, timed={"m": Timed(9.0, open_dimensions=True)}))
    assert "timed now, with every open dimension 1" in finding.what
    unanswered = replace(facts, timed={"m": Timed(None, "no")}, executions={})
    assert _said(slos_too_short(unanswered)) == []
    assert _said(requests_not_timed(unanswered)) == [("warning", "not-timed")]
    of_zero_size = replace(unanswered, timed={"m": Timed(None, "no", open_dimensions=True)})
    assert _said(requests_not_timed(of_zero_size)) == [("advice", "not-timed")], "another size may do"


ON_CPU = "max_batch_size: 8 dynamic_batching {} instance_group { kind: KIND_CPU count: 1 }"


def _in_turn(facts: Facts) -> Facts:
    """The same, where all models are on the same workers."""
    beside = {name: tuple(sorted(facts.services.keys() - {name})) for name in facts.services}
    services = {name: replace(service, beside=beside[name]) for name, service in facts.services.items()}
    return replace(facts, services=services)


@pytest.mark.parametrize(("slow_ms", "expected"), [(30, [("warning", "waits-behind")]), (5, [])])
def test_who_has_no_time_to_wait_for_another_model_of_its_workers_is_told_so(
    slow_ms: float, expected: list[tuple[str, str]]
) -> None:
    profiles = [_profiles(name, median_ms=ms, p95_ms=ms).profiles[0] for name, ms in (("fast", 5), ("slow", slow_ms))]
    facts = _facts(_config("fast"), _config("slow"), slo_ms=20, measured=ProfileFile(profiles=profiles))
    slow = replace(facts.services["slow"], model=Model("slow", 8, None))
    facts = replace(facts, services={**facts.services, "slow": slow})
    assert _said(waits_behind_longer_ones(facts)) == [], "each has its own"
    assert _said(waits_behind_longer_ones(_in_turn(facts))) == expected


def test_models_on_processors_that_take_turns_by_configuration_are_told_so_but_no_emulated_gpus() -> None:
    told = {"tritons": [{"grpc": "t:1", "in_turn": True}]}
    on_cpu = _config("a", ON_CPU), _config("b", ON_CPU), _config("c")
    assert _said(in_turn_on_processors(_in_turn(_facts(*on_cpu)))) == [], "their Triton has a rate limiter"
    facts = _in_turn(_facts(*on_cpu, config=told))
    assert [finding.where for finding in in_turn_on_processors(facts)] == ["model a", "model b"]
    emulated = _config("a", ON_CPU + ' parameters { key: "alpha_ms" value: { string_value: "1" } }')
    emulated.backend = "python"
    assert _said(in_turn_on_processors(_in_turn(_facts(emulated, _config("b", ON_CPU), config=told)))) == []


def test_slos_of_models_that_are_not_scheduled() -> None:
    by_file = _config("file", 'max_batch_size: 0 parameters { key: "slo_ms" value: { string_value: "5" } }')
    told = {"models": {"told": {"slo_ms": 5, "late": "serve"}}}
    findings = list(slos_in_vain(_facts(by_file, _config("told", "max_batch_size: 0"), config=told)))
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("warning", "model file"),
        ("error", "models.told.slo_ms"),
        ("error", "models.told.late"),
    ]
    assert "max_batch_size is 0" in findings[0].what


def test_names_that_no_triton_has() -> None:
    told = {"models": {"resnte": {"slo_ms": 5}, "zzz": {"load_without_delay": True}, "broken": {"batch": "merge"}}}
    broken = NotReady("t:1", "broken", "1", "Internal: no torch\n\nAt: somewhere")
    facts = _facts(_config("resnet"), config=told, not_ready=[broken])
    findings = {finding.where: finding for finding in models_that_nobody_has(facts)}
    assert findings["models.resnte"].remedy == "did you mean 'resnet'?"
    assert findings["models.resnte"].severity == "error"
    assert findings["models.zzz"].severity == "warning", "serve starts all the same"
    assert findings["models.zzz"].remedy == "take it out, or name one of: resnet"
    assert "not ready" in findings["models.broken"].what
    (loading,) = models_that_do_not_load(facts)
    assert str(loading) == (
        "model broken: Triton at t:1 has it, version 1, and does not serve it: Internal: no torch; mend it there: its "
        "requests fail until then"
    )


def test_parts_of_a_composition_that_decide_for_nothing() -> None:
    parts = [
        {"models": ["detec", "bert*"], "policy": "fifs"},
        {"models": ["bert-large", "detect"], "policy": "eager"},
        {"models": ["*"], "policy": "fifs"},
    ]
    options = {"name": "by-model", "options": {"parts": parts}}
    facts = _facts(_config("detect"), _config("bert-large"), config={"policy": options})
    unknown, taken = parts_of_nobody(facts)
    assert (unknown.severity, unknown.where, unknown.remedy) == (
        "warning", "policy.options.parts.0.models", "did you mean 'detect'?",
    )  # fmt: skip
    assert taken.where == "policy.options.parts.1.models"
    assert taken.what == "'bert-large': all its models are those of parts.0, which comes first"
    assert not list(parts_of_nobody(_facts(_config("m"))))
    (bare,) = parts_of_nobody(_facts(_config("m"), config={"policy": {"name": "by-model"}}))
    assert "first come, first served" in bare.what


def test_a_name_among_very_many_or_none() -> None:
    many = [f"model_{number:03}" for number in range(200)]
    assert remedy_for("x", many).endswith("model_009 and 190 more")
    assert remedy_for("x", []) == "there is none at all: load one"
    assert remedy_for("ABCDEFGH", ["abcdefgh"]) == "did you mean 'abcdefgh'?"


def test_a_version_that_does_not_load_where_another_serves_is_a_warning() -> None:
    facts = _facts(_config("m"), not_ready=[NotReady("t:1", "m", "2", "no")])
    assert _said(models_that_do_not_load(facts)) == [("warning", "not-loaded")]


def test_triton_queues_behind_tidegate() -> None:
    delayed = _config("delayed", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }")
    short = _config(
        "short",
        "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "default_queue_policy { max_queue_size: 2 } }",
    )
    assert _said(waiting_twice(_facts(delayed))) == [], "it passes through, and waits once"
    told = {"models": {"delayed": {"batch": "merge"}, "short": {"batch": "merge"}}}
    (waits,) = waiting_twice(_facts(delayed, short, config=told))
    assert waits.where == "models.delayed"
    assert "up to 5 ms" in waits.what
    (judged,) = judged_twice(_facts(delayed, short, config=told))
    assert judged.where == "models.short"
    assert "max_queue_size" in judged.what
    assert "priority" not in judged.what, "that does a batch no harm"


def test_words_that_cannot_be_followed() -> None:
    told = {"models": {"flat": {"batch": "merge"}, "fine": {"batch": "pass"}}}
    facts = _facts(_config("flat", "max_batch_size: 0"), _config("fine"), config=told, unpadded={"fine": "why"})
    findings = list(words_in_vain(facts))
    assert _said(findings) == [("warning", "word-in-vain"), ("error", "not-padded")]
    assert "(batch: merge): max_batch_size is 0" in findings[0].what


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("max_batch_size: 1", True),
        ("max_batch_size: 8", False),
        ("max_batch_size: 0", False),
        ('max_batch_size: 0 input { name: "X" data_type: TYPE_FP32 dims: [ 1, 3 ] }', True),
        ('max_batch_size: 0 input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }', False),
        ('max_batch_size: 0 input { name: "X" data_type: TYPE_FP32 dims: [ 2, 3 ] }', False),
        ("max_batch_size: 1 sequence_batching {}", False),
        ("max_batch_size: 1 model_transaction_policy { decoupled: true }", False),
    ],
)
def test_batches_of_one_row(text: str, found: bool) -> None:
    assert _said(batches_of_one(_facts(_config("m", text)))) == [("advice", "batch-of-one")] * found


def test_a_remedy_for_a_batch_of_one_fits_its_backend() -> None:
    config = _config("m", "max_batch_size: 1")
    assert "--batch-dim" in next(batches_of_one(_facts(config))).remedy
    config.backend = "tensorrt"
    assert "--batch-dim" not in next(batches_of_one(_facts(config))).remedy


def test_models_that_nobody_has_said_anything_of() -> None:
    bare = _config("m", "max_batch_size: 8")
    assert _said(merged_by_nobody(_facts(bare))) == [("advice", "never-merged")]
    assert _said(merged_by_nobody(_facts(bare, config={"models": {"m": {"batch": "alone"}}}))) == []
    assert _said(merged_by_nobody(_facts(_config("m")))) == []


def test_what_was_not_measured_matters_where_there_is_an_slo() -> None:
    assert _said(not_measured(_facts(_config("m")))) == [("advice", "no-profile")]
    (finding,) = not_measured(_facts(_config("m"), slo_ms=5, measured=_profiles("other", median_ms=1, p95_ms=1)))
    assert finding.severity == "warning"
    assert finding.remedy == "tidegate profile --triton t:1 -o profiles.json"
    assert _said(not_measured(_facts(_config("flat", "max_batch_size: 0")))) == []


def test_what_was_measured_in_vain() -> None:
    facts = _facts(_config("resnet"), measured=_profiles("resnte", median_ms=1, p95_ms=1), misfits=["no such shape"])
    (finding,) = measured_in_vain(facts)
    assert finding.remedy == "did you mean 'resnet'?"
    assert str(next(shapes_in_vain(facts))) == "profiles: no such shape"


def test_tritons_that_disagree() -> None:
    same_tensors = [Form(_config("m", f"max_batch_size: {rows}"), (f"t:{rows}",)) for rows in (4, 8)]
    other = 'max_batch_size: 8 input { name: "Z" data_type: TYPE_FP32 dims: [ 3 ] }'
    others = [same_tensors[0], Form(_config("m", other), ("u:1", "u:2"))]
    facts = _facts()
    for forms, severity in ((same_tensors, "warning"), (others, "error"), (same_tensors[:1], None)):
        service = Service("m", Consent("merge", "why"), tuple(forms))
        findings = list(disagreements(replace(facts, services={"m": service})))
        assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert "max_batch_size 8, Z FP32 [3] at u:1, u:2" in str(
        *disagreements(replace(facts, services={"m": Service("m", Consent("merge", "why"), tuple(others))}))
    )


def test_what_is_installed() -> None:
    assert _said(broken_plugins(_facts(broken_plugins={"acme": "ImportError: no"}))) == [("warning", "broken-plugin")]
    local = {"tritons": [{"grpc": "localhost:1"}]}
    on_gpu = _config("m", "max_batch_size: 8 dynamic_batching {} instance_group { kind: KIND_GPU }")
    facts = _facts(on_gpu, config=local, has_nvml=False)
    service = replace(facts.services["m"], forms=(Form(on_gpu, ("localhost:1",)),))
    facts = replace(facts, services={"m": service})
    assert _said(unseen_gpus(facts)) == [("advice", "nvml")]
    assert _said(unseen_gpus(replace(facts, has_nvml=True))) == []


def test_what_several_models_have_in_common_is_said_once_and_the_gravest_first() -> None:
    findings = [
        Finding("advice", "r", "model a", "what", "remedy"),
        Finding("error", "s", "models.x.slo_ms", "what", ""),
        Finding("advice", "r", "model b", "what", "remedy"),
        Finding("advice", "r", "model b", "what", "remedy"),
    ]
    assert list(map(str, grouped(findings))) == ["models.x.slo_ms: what", "models a, b: what; remedy"]


def test_nothing_is_said_of_profiles_where_a_planner_has_said_how_long_all_takes(tmp_path: Path) -> None:
    (tmp_path / "layout.json").touch()
    told = {"tritons": [{"grpc": "t:1", "worker": "w"}], "layout": str(tmp_path / "layout.json")}
    assert _said(not_measured(_facts(_config("m"), slo_ms=5, config=told))) == []


H100 = Hardware(cpu="AMD EPYC 9554", cores=16, gpus=("NVIDIA H100 80GB HBM3",), driver="550.54")
A100 = Hardware(cpu="Intel Xeon 8358", cores=16, gpus=("NVIDIA A100-SXM4-40GB",), driver="550.54")
CPU = Hardware(cpu="AMD EPYC 9554", cores=16)


def _on_this_machine(
    there: Hardware | None,
    here: Hardware | None,
    kind: str,
    grpc: str = "localhost:1",
    **fields: Any,  # noqa: ANN401 - as a file has them
) -> Facts:
    """One Triton with one model on instances of this kind, whose profile was measured there."""
    (profile,) = _profiles("m", median_ms=1, p95_ms=1).profiles
    measured = ProfileFile(profiles=[profile.model_copy(update={"hardware": there})])
    config = _config("m", f"max_batch_size: 8 dynamic_batching {{}} instance_group {{ kind: {kind} }}")
    told = {"tritons": [{"grpc": grpc}, {"grpc": "far:1"}], **fields}
    facts = _facts(config, config=told, measured=measured, hardware=here)
    return replace(facts, services={"m": replace(facts.services["m"], forms=(Form(config, (grpc,)),))})


@pytest.mark.parametrize(
    ("there", "here", "kind", "severity"),
    [
        (A100, H100, "KIND_GPU", "warning"),
        (H100, H100, "KIND_GPU", None),
        (H100, H100.model_copy(update={"gpus": ("Tesla T4", *H100.gpus)}), "KIND_GPU", None),
        (CPU, H100, "KIND_GPU", "advice"),
        (H100, CPU, "KIND_GPU", None),
        (A100, H100, "KIND_CPU", "warning"),
        (H100, CPU, "KIND_CPU", None),
        (CPU.model_copy(update={"cores": 4}), CPU, "KIND_CPU", "advice"),
        (None, H100, "KIND_GPU", None),
        (A100, None, "KIND_GPU", None),
        (A100, H100, "KIND_MODEL", None),
    ],
)
def test_a_profile_is_held_against_what_this_machine_has(
    there: Hardware | None, here: Hardware | None, kind: str, severity: str | None
) -> None:
    facts = _on_this_machine(there, here, kind)
    said = [*measured_elsewhere(facts), *measured_otherwise(facts)]
    assert _said(said) == ([(severity, "profile-elsewhere")] if severity else [])


def test_what_is_said_of_a_profile_of_another_gpu_names_both_and_how_to_measure_here(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.touch()
    (finding,) = measured_elsewhere(_on_this_machine(A100, H100, "KIND_GPU", profiles=str(file)))
    assert str(finding) == (
        "model m: it was measured on NVIDIA A100-SXM4-40GB, and this machine has NVIDIA H100 80GB HBM3: batches, and "
        "what can be in time, are planned by another machine until it has been learned; tidegate profile m --triton "
        f"localhost:1 -o {file}"
    )


def test_nothing_is_said_of_hardware_that_nobody_knows_or_that_does_not_matter(tmp_path: Path) -> None:
    far = _on_this_machine(A100, H100, "KIND_GPU", grpc="gpu-1:8001")
    emulated = 'backend: "python" parameters { key: "table_ms" value: { string_value: "{}" } }'
    of_python = _on_this_machine(A100, H100, "KIND_CPU")
    service = of_python.services["m"]
    copied = model_config_pb2.ModelConfig()
    copied.CopyFrom(service.config)
    text_format.Merge(emulated, copied)
    asleep = replace(of_python, services={"m": replace(service, forms=(Form(copied, ("localhost:1",)),))})
    both = _on_this_machine(A100, H100, "KIND_GPU")
    of_both = replace(both.services["m"], kinds=("A100", "H100"))
    of_both = replace(of_both, forms=(Form(of_both.config, ("localhost:1", "far:1")),))
    (tmp_path / "layout.json").touch()
    told: dict[str, Any] = {
        "layout": str(tmp_path / "layout.json"),
        "tritons": [{"grpc": "localhost:1", "worker": "w"}],
    }
    planned = _on_this_machine(A100, H100, "KIND_GPU", **told)
    for facts in (far, asleep, replace(both, services={"m": of_both}), planned):
        assert list(measured_elsewhere(facts)) == []
