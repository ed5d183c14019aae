"""Facts that nobody has asked a Triton for, as one would tell them."""

from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate.api import Model, ms_to_ns
from tidegate.schemas import ModelProfile, ProfileFile, ProfilePoint
from tidegate_proxy.app.doctor.facts import DoctorFacts, ModelConfigForm, ServedModel
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.tritons.batching_mode import consent_of

XY = """
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
"""


def config_of(name: str, text: str = "max_batch_size: 8 dynamic_batching {}") -> model_config_pb2.ModelConfig:
    tensors = "" if "input" in text else XY
    backend = "" if "backend" in text else 'backend: "onnxruntime"'
    return text_format.Parse(f'name: "{name}" {backend} {tensors} {text}', model_config_pb2.ModelConfig())


def facts_of(*configs: model_config_pb2.ModelConfig, slo_ms: float | None = None, **fields: Any) -> DoctorFacts:
    """What is known where one Triton has these models; `slo_ms` is that of every one that is scheduled."""
    config = ServeConfig.model_validate({"tritons": [{"grpc": "t:1"}], **fields.pop("config", {})}, strict=False)
    services = {}
    for each in configs:
        said = config.models.get(each.name)
        consent = consent_of(each, said.scheduling if said else None)
        model = None
        if consent.scheduling != "bypass":
            slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
            late = (said.on_deadline_miss if said else None) or "reject"
            model = Model(
                each.name, each.max_batch_size, slo_ns, merge_limit=consent.merge_limit, on_deadline_miss=late
            )
        kinds = ("default",) if model else ()
        services[each.name] = ServedModel(
            each.name, consent, (ModelConfigForm(each, ("t:1",)),), model, kinds, len(kinds)
        )
    return DoctorFacts(config, services, **fields)


def profiles_of(model: str, *, median_ms: float, p95_ms: float, shape: str = "") -> ProfileFile:
    points = [ProfilePoint(rows=1, median_ms=median_ms, p95_ms=p95_ms, samples=9)]
    return ProfileFile(profiles=[ModelProfile(model=model, shape=shape, alpha_ms=0, beta_ms=1, points=points)])


def said(findings: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.rule) for finding in findings]
