"""Facts in, findings out: each concept by itself, without a Triton."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tests.command_line import APP
from tests.proxy.app.doctor.made_up import config_of, facts_of, profiles_of, said
from tidegate.schemas import ProfileFile
from tidegate_proxy.app.doctor.diagnosis import broken_plugins, diagnose, unseen_gpus
from tidegate_proxy.app.doctor.facts import (
    MIN_EXECUTIONS,
    Executions,
    Finding,
    ModelConfigForm,
    NotReady,
    RowsVerdict,
    ServedModel,
    grouped,
)
from tidegate_proxy.app.doctor.latency import (
    not_measured,
    slos_too_short,
    unreachable_slos,
    unused_profiles,
    unused_shapes,
)
from tidegate_proxy.app.doctor.models import (
    batches_of_one,
    bls_calls,
    calls_inside_triton,
    conflicting_queue_policies,
    disagreements,
    double_batching_delay,
    ensembles_not_expanded,
    ineffective_settings,
    merged_rows,
    models_that_do_not_load,
    models_that_nobody_has,
    remedy_for,
    unbatched_models,
    unused_policy_parts,
)
from tidegate_proxy.app.doctor.report import settings_to_paste
from tidegate_proxy.tritons.batching_mode import BatchingDecision

COMMANDS: Any = get_command(APP)


def test_all_is_well_and_nothing_is_said() -> None:
    facts = facts_of(config_of("m"), slo_ms=50, measured=profiles_of("m", median_ms=5, p95_ms=6))
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
    facts = facts_of(config_of("m"), slo_ms=slo_ms, measured=profiles_of("m", median_ms=5, p95_ms=6))
    assert said(slos_too_short(facts)) == expected


def test_what_is_said_of_an_slo_that_is_too_short_says_where_why_and_what_to_do() -> None:
    facts = facts_of(config_of("m"), slo_ms=4, measured=profiles_of("m", median_ms=5, p95_ms=6))
    (finding,) = slos_too_short(facts)
    assert str(finding) == (
        "models.m.slo_ms: 4 ms are less than the 5 ms that one row takes "
        "(the profile for workers of device class 'default'), "
        "so that nearly every request is rejected; set it to 7 ms or more, twice that for batches to form"
    )


def test_where_late_ones_are_answered_too_short_an_slo_is_a_warning() -> None:
    told = {"models": {"m": {"on_deadline_miss": "serve"}}}
    facts = facts_of(config_of("m"), slo_ms=4, config=told, measured=profiles_of("m", median_ms=5, p95_ms=6))
    (finding,) = slos_too_short(facts)
    assert finding.severity == "warning"
    assert "nearly every request is answered late" in finding.what
    assert "on_deadline_miss: serve" not in finding.remedy


def test_an_slo_that_some_shapes_cannot_keep_names_them() -> None:
    config = config_of(
        "m", 'max_batch_size: 8 dynamic_batching {} input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }'
    )
    small, large = (
        profiles_of("m", median_ms=ms, p95_ms=ms, shape=shape).profiles[0] for shape, ms in (("X:3", 5), ("X:9", 20))
    )
    facts = facts_of(config, slo_ms=10, measured=ProfileFile(profiles=[small, large]))
    (finding,) = slos_too_short(facts)
    assert finding.severity == "warning"
    assert finding.what.endswith("such requests are rejected: X:9 (20 ms)")


def test_without_a_profile_what_triton_counted_counts() -> None:
    many, few = Executions(MIN_EXECUTIONS, 8.0), Executions(MIN_EXECUTIONS - 1, 8.0)
    facts = facts_of(config_of("m"), slo_ms=5, executions={"m": many})
    (finding,) = slos_too_short(facts)
    assert (finding.severity, finding.rule) == ("error", "slo-too-short")
    assert "the mean of 100 executions" in finding.what
    assert said(slos_too_short(replace(facts, executions={"m": few}))) == [], "first ones are slow"


def test_slos_of_models_that_are_not_scheduled() -> None:
    by_file = config_of("file", 'max_batch_size: 0 parameters { key: "slo_ms" value: { string_value: "5" } }')
    told = {"models": {"told": {"slo_ms": 5, "on_deadline_miss": "serve"}}}
    findings = list(unreachable_slos(facts_of(by_file, config_of("told", "max_batch_size: 0"), config=told)))
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("warning", "model file"),
        ("error", "models.told.slo_ms"),
        ("error", "models.told.on_deadline_miss"),
    ]
    assert "max_batch_size is 0" in findings[0].what
    python = config_of("told", 'max_batch_size: 8 backend: "python" dynamic_batching { }')
    (finding, _) = unreachable_slos(facts_of(python, config=told))
    assert (finding.severity, finding.where) == ("warning", "models.told.slo_ms"), "serve starts all the same"
    assert "its Triton batches them" in finding.what
    assert "models.told.max_concurrency" in finding.remedy
    delayed = config_of("told", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }")
    for rollout, severity, what in (
        ({"shadow": True}, "advice", "shadow mode judges the model by this SLO"),
        ({"canary": "5%"}, "warning", "the canary does not compare the model"),
    ):
        facts = facts_of(delayed, config={"models": {"told": {"slo_ms": 5}}, **rollout}, judged=frozenset({"told"}))
        (finding,) = unreachable_slos(facts)
        assert (finding.severity, finding.where) == (severity, "models.told.slo_ms")
        assert what in finding.what
        assert "scheduling: batched" in finding.remedy


def test_names_that_no_triton_has() -> None:
    told = {
        "models": {"resnte": {"slo_ms": 5}, "zzz": {"strip_queue_delay": True}, "broken": {"scheduling": "batched"}}
    }
    broken = NotReady("t:1", "broken", "1", "Internal: no torch\n\nAt: somewhere")
    facts = facts_of(config_of("resnet"), config=told, not_ready=[broken])
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
    facts = facts_of(config_of("detect"), config_of("bert-large"), config={"policy": options})
    unknown, taken = unused_policy_parts(facts)
    assert (unknown.severity, unknown.where, unknown.remedy) == (
        "warning", "policy.options.parts.0.models", "did you mean 'detect'?",
    )  # fmt: skip
    assert taken.where == "policy.options.parts.1.models"
    assert taken.what == "'bert-large': all its models are those of parts.0, which comes first"
    assert not list(unused_policy_parts(facts_of(config_of("m"))))
    (bare,) = unused_policy_parts(facts_of(config_of("m"), config={"policy": {"name": "by-model"}}))
    assert "first come, first served" in bare.what


def test_a_name_among_very_many_or_none() -> None:
    many = [f"model_{number:03}" for number in range(200)]
    assert remedy_for("x", many).endswith("model_009 and 190 more")
    assert remedy_for("x", []) == "there is none at all: load one"
    assert remedy_for("ABCDEFGH", ["abcdefgh"]) == "did you mean 'abcdefgh'?"


def test_a_version_that_does_not_load_where_another_serves_is_a_warning() -> None:
    facts = facts_of(config_of("m"), not_ready=[NotReady("t:1", "m", "2", "no")])
    assert said(models_that_do_not_load(facts)) == [("warning", "not-loaded")]


def test_triton_queues_behind_tidegate() -> None:
    delayed = config_of("delayed", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }")
    short = config_of(
        "short",
        "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "default_queue_policy { max_queue_size: 2 } }",
    )
    assert said(double_batching_delay(facts_of(delayed))) == [], "it passes through, and waits once"
    told = {"models": {"delayed": {"scheduling": "batched"}, "short": {"scheduling": "batched"}}}
    (waits,) = double_batching_delay(facts_of(delayed, short, config=told))
    assert waits.where == "models.delayed"
    assert "up to 5 ms" in waits.what
    (judged,) = conflicting_queue_policies(facts_of(delayed, short, config=told))
    assert judged.where == "models.short"
    assert "max_queue_size" in judged.what
    assert "priority" not in judged.what, "that does a batch no harm"


def test_words_that_cannot_be_followed() -> None:
    told = {"models": {"flat": {"scheduling": "batched"}, "fine": {"scheduling": "bypass"}}}
    facts = facts_of(config_of("flat", "max_batch_size: 0"), config_of("fine"), config=told, unpadded={"fine": "why"})
    findings = list(ineffective_settings(facts))
    assert said(findings) == [("warning", "setting-ignored"), ("error", "not-padded")]
    assert "(scheduling: batched): max_batch_size is 0" in findings[0].what


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
    assert said(batches_of_one(facts_of(config_of("m", text)))) == [("advice", "batch-of-one")] * found


def test_a_remedy_for_a_batch_of_one_fits_its_backend() -> None:
    config = config_of("m", "max_batch_size: 1")
    assert "--batch-dim" in next(batches_of_one(facts_of(config))).remedy
    config.backend = "tensorrt"
    assert "--batch-dim" not in next(batches_of_one(facts_of(config))).remedy


def test_models_of_which_no_config_says_anything() -> None:
    bare = config_of("m", "max_batch_size: 8")
    assert said(unbatched_models(facts_of(bare))) == [("advice", "unbatched-model")]
    assert said(unbatched_models(facts_of(bare, config={"models": {"m": {"scheduling": "unbatched"}}}))) == []
    assert said(unbatched_models(facts_of(config_of("m")))) == []


@pytest.mark.parametrize(
    ("batches", "found"), [(True, []), (False, [("error", "rows-mixed")]), (None, [("warning", "rows-in-doubt")])]
)
def test_merged_models_must_have_independent_rows(batches: bool | None, found: list[tuple[str, str]]) -> None:
    rows = {"m": RowsVerdict(batches, "node 'a' (LSTM) mixes rows")}
    assert said(merged_rows(facts_of(config_of("m"), rows=rows))) == found
    assert (
        said(merged_rows(facts_of(config_of("m"), rows=rows, config={"models": {"m": {"scheduling": "unbatched"}}})))
        == []
    )


@pytest.mark.parametrize(
    ("batches", "remedy"),
    [(True, "set it to batched: its rows are independent"), (False, ""), (None, "finds that out (why)")],
)
def test_advice_to_merge_knows_of_the_rows(batches: bool | None, remedy: str) -> None:
    facts = facts_of(config_of("m", "max_batch_size: 8"), rows={"m": RowsVerdict(batches, "why")})
    remedies = [finding.remedy for finding in unbatched_models(facts)]
    assert len(remedies) == (batches is not False)
    assert all(each.endswith(remedy) for each in remedies)


def test_what_was_not_measured_matters_where_there_is_an_slo() -> None:
    assert said(not_measured(facts_of(config_of("m")))) == [("advice", "no-profile")]
    (finding,) = not_measured(facts_of(config_of("m"), slo_ms=5, measured=profiles_of("other", median_ms=1, p95_ms=1)))
    assert finding.severity == "warning"
    assert finding.remedy == "tidegate profile --triton t:1 -o profiles.json"
    assert said(not_measured(facts_of(config_of("flat", "max_batch_size: 0")))) == []


def test_what_was_measured_in_vain() -> None:
    facts = facts_of(
        config_of("resnet"), measured=profiles_of("resnte", median_ms=1, p95_ms=1), unmatched_shapes=["no such shape"]
    )
    (finding,) = unused_profiles(facts)
    assert finding.remedy == "did you mean 'resnet'?"
    assert str(next(unused_shapes(facts))) == "profiles: no such shape"


def test_tritons_that_disagree() -> None:
    same_tensors = [ModelConfigForm(config_of("m", f"max_batch_size: {rows}"), (f"t:{rows}",)) for rows in (4, 8)]
    other = 'max_batch_size: 8 input { name: "Z" data_type: TYPE_FP32 dims: [ 3 ] }'
    others = [same_tensors[0], ModelConfigForm(config_of("m", other), ("u:1", "u:2"))]
    facts = facts_of()
    for forms, severity in ((same_tensors, "warning"), (others, "error"), (same_tensors[:1], None)):
        service = ServedModel("m", BatchingDecision("batched", "why"), tuple(forms))
        findings = list(disagreements(replace(facts, services={"m": service})))
        assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert "max_batch_size 8, Z FP32 [3] at u:1, u:2" in str(
        *disagreements(
            replace(facts, services={"m": ServedModel("m", BatchingDecision("batched", "why"), tuple(others))})
        )
    )


def test_what_is_installed() -> None:
    assert said(broken_plugins(facts_of(broken_plugins={"acme": "ImportError: no"}))) == [("warning", "broken-plugin")]
    local = {"tritons": [{"grpc": "localhost:1"}]}
    on_gpu = config_of("m", "max_batch_size: 8 dynamic_batching {} instance_group { kind: KIND_GPU }")
    facts = facts_of(on_gpu, config=local, has_nvml=False)
    service = replace(facts.services["m"], forms=(ModelConfigForm(on_gpu, ("localhost:1",)),))
    facts = replace(facts, services={"m": service})
    assert said(unseen_gpus(facts)) == [("advice", "nvml")]
    assert said(unseen_gpus(replace(facts, has_nvml=True))) == []


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
    assert said(not_measured(facts_of(config_of("m"), slo_ms=5, config=told))) == []


STEP = 'max_batch_size: 8 ensemble_scheduling { step { model_name: "m" model_version: -1 } }'


@pytest.mark.parametrize(("slo_ms", "severity"), [(50, "warning"), (None, "advice")])
def test_an_ensemble_that_executes_a_scheduled_model_is_found(slo_ms: float | None, severity: str) -> None:
    facts = facts_of(config_of("m"), config_of("e", STEP), slo_ms=slo_ms)
    (finding,) = calls_inside_triton(facts)
    assert (finding.severity, finding.rule, finding.where) == (severity, "called-inside-triton", "model e")
    assert "this ensemble executes m inside Triton" in finding.what
    bypassed = facts_of(config_of("m"), config_of("e", STEP), config={"models": {"m": {"scheduling": "bypass"}}})
    assert list(calls_inside_triton(bypassed)) == []


def test_an_ensemble_that_cannot_be_expanded_is_found_with_the_reason() -> None:
    expanded = {"models": {"e": {"scheduling": "expanded", "slo_ms": 50}}}
    facts = facts_of(config_of("m"), config_of("e", STEP), config=expanded)
    is_expanded = replace(facts.services["e"], consent=BatchingDecision("expanded", ""))
    facts = replace(facts, services={**facts.services, "e": is_expanded})
    for rule in (ensembles_not_expanded, calls_inside_triton, unreachable_slos):
        assert list(rule(facts)) == []
    facts = facts_of(config_of("m", "max_batch_size: 0"), config_of("e", STEP), config=expanded)
    (finding,) = ensembles_not_expanded(facts)
    assert (finding.severity, finding.where) == ("warning", "models.e.scheduling")
    assert "step 0 (m) is not scheduled: max_batch_size is 0" in finding.what
    assert list(ineffective_settings(facts)) == []


BLS = "import triton_python_backend_utils as pb\npb.InferenceRequest(model_name={name!r}, inputs=[])\n"


def test_a_bls_model_that_executes_a_scheduled_model_is_found_in_its_file(tmp_path: Path) -> None:
    python = 'backend: "python" max_batch_size: 8'
    facts = facts_of(config_of("m"), *(config_of(name, python) for name in ("calls", "quotes", "broken", "absent")))
    texts = {"calls": BLS.format(name="m"), "quotes": "name = 'm'\n", "broken": BLS.format(name="m") + "def :\n"}
    for name, text in texts.items():
        (tmp_path / name / "2").mkdir(parents=True)
        (tmp_path / name / "2/model.py").write_text(text)
    calls = bls_calls([tmp_path], facts.services)
    assert calls == {"calls": {"m"}}
    (finding,) = calls_inside_triton(replace(facts, bls_calls=calls))
    assert finding.where == "model calls"
    assert "this BLS model executes m" in finding.what


def test_lines_to_paste_schedule_what_bypasses_the_scheduler_and_need_not() -> None:
    delayed = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5000 }"
    configs = [
        config_of("delayed", delayed),
        config_of("0", f'backend: "python" {delayed}'),
        config_of("flat", "max_batch_size: 0"),
        config_of("asked", "max_batch_size: 8 dynamic_batching {}"),
        config_of("batched"),
    ]
    told = {"models": {"asked": {"scheduling": "bypass"}}}
    lines = settings_to_paste(facts_of(*configs, config=told).services.values())
    assert lines == [
        "models:",
        "  delayed: {scheduling: batched}  # and drop max_queue_delay_microseconds from delayed/config.pbtxt",
        '  "0": {scheduling: unbatched}  # and drop max_queue_delay_microseconds from 0/config.pbtxt',
    ]
    pasted = facts_of(*configs, config=yaml.safe_load("\n".join(lines)))
    assert {name for name, service in pasted.services.items() if service.model} == {"delayed", "0", "asked", "batched"}


def test_options_that_remedies_name_exist() -> None:
    (finding,) = batches_of_one(facts_of(config_of("m", "max_batch_size: 1")))
    flags = {flag for parameter in COMMANDS.commands["generate"].params for flag in parameter.opts}
    assert set(re.findall(r"--[\w-]+", finding.remedy)) <= flags
    (finding,) = unbatched_models(facts_of(config_of("m", "max_batch_size: 8")))
    assert "set it to batched" in finding.remedy
