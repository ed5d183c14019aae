"""Configuration file that `tidegate init` writes: served models and ports, with comments."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tidegate_proxy.app.doctor.facts import DoctorFacts, ServedModel
from tidegate_proxy.configuration.config import CONFIG_VERSION, ServeConfig
from tidegate_proxy.configuration.config_file import yaml_scalar
from tidegate_proxy.configuration.tritons import TritonAddress, TritonTls
from tidegate_proxy.tritons.batching_mode import WORDS_OF_MODE, mode_that_schedules

EXAMPLE_SLO_MS: Final = 100


def initial_configuration(
    facts: DoctorFacts, file: str, silent: Mapping[str, frozenset[str]], folder: Path | None = None
) -> str:
    """Return a configuration, YAML with comments, that serves the discovered models as Triton itself would.

    `file`: its future name; `folder`: its future folder, to which paths are relative; None: none. `silent`: by Triton,
    the services `http` or `metrics` whose port does not answer.
    """
    config = facts.config
    address = config.tritons[0].grpc + " --tls-ca ..." * (config.tritons[0].tls is not None)
    models = "\n".join(_model_lines(facts))
    return f"""\
# Tidegate before {len(config.tritons)} Triton{"s" * (len(config.tritons) > 1)}, written by `tidegate init`.
#
#   tidegate doctor {file}     what happens to every model, and what deserves attention
#   tidegate serve {file}      SIGHUP has it read again
#
# `tidegate check {file} --print-config` prints every field with its default.
version: {CONFIG_VERSION}

# A string is a gRPC address. On port 8001 HTTP is on 8000 and metrics on 8002; null stands for a Triton without.
tritons:
{chr(10).join(_triton_line(triton, silent.get(triton.grpc, frozenset()), folder) for triton in config.tritons)}

# Where clients find Tidegate, as they found Triton. The default:
# listen: {_listen(config)}

# Who decides which requests run together; `tidegate plugins` lists them. The default:
# policy: {config.policy.name}

# How long batches take, which Tidegate else learns while it serves. `tidegate profile` measures all models:
#   tidegate profile --triton {address} -o profiles.json
# profiles: profiles.json

# What serves there. Without an SLO no request is rejected, and requests run as soon as they can, as in Triton. With one
# a request that cannot be answered on time is rejected at once; with `on_deadline_miss: serve` it is answered late.
# {_slos_in_force(facts)}
{models}
"""


def _slos_in_force(facts: DoctorFacts) -> str:
    """Return a line that names the models whose SLO is set in a config.pbtxt."""
    names = [name for name, service in facts.services.items() if service.slo_ms is not None]
    if not names:
        return "The SLOs below are examples; none is set."
    return f"The SLOs below are examples, but these models have one in their config.pbtxt: {', '.join(names)}."


def _model_lines(facts: DoctorFacts) -> Iterator[str]:
    if not facts.services:
        yield "# No model is ready there."
        return
    doubts = {
        name: verdict.reason
        for name, verdict in facts.rows.items()
        if not verdict.batches and facts.services[name].consent.scheduling == "batched"
    }
    if doubts:
        yield "models:"
        for name, reason in doubts.items():
            doubt = "" if facts.rows[name].batches is False else "may "
            why = f"merged, its requests {doubt}change each other's answers: {' '.join(reason.split())}"
            yield f"  {yaml_scalar(name)}: {{scheduling: unbatched}}  # {why}"
    else:
        yield "# models:"
    entries = {name: _entry(service) for name, service in facts.services.items() if name not in doubts}
    width = max(map(len, entries.values()), default=0)
    for name, entry in entries.items():
        yield f"#   {entry:<{width}}  # {_fate(facts.services[name])}"


def _entry(service: ServedModel) -> str:
    settings = f"slo_ms: {EXAMPLE_SLO_MS}" if service.model is not None else ""
    if service.consent.scheduling == "bypass" and (mode := mode_that_schedules(service.config)):
        settings = f"scheduling: {mode}"
    return f"{yaml_scalar(service.name)}: {{{settings}}}"


def _fate(service: ServedModel) -> str:
    """Return a line on the scheduling mode of a model."""
    model = service.model
    words = WORDS_OF_MODE[service.consent.scheduling]
    if model is not None and model.merges:
        words += f" up to {model.merged_rows} rows"
    slo = "" if service.slo_ms is None else f"; SLO of {service.slo_ms:g} ms in its config.pbtxt"
    return f"{words}: {' '.join(service.consent.why.split())}{slo}"


def _triton_line(triton: TritonAddress, silent: frozenset[str], folder: Path | None) -> str:
    usual = TritonAddress(grpc=triton.grpc)
    given: dict[str, str | None] = {
        name: None if name in silent else address
        for name, address in (("http", triton.http), ("metrics", triton.metrics))
        if address is not None and (name in silent or address != getattr(usual, name))
    }
    others = [f"{name}: {'null' if address is None else _text(address)}" for name, address in given.items()]
    if triton.tls is not None:
        others.append(f"tls: {_tls(triton.tls, folder)}")
    if not others:
        return f"  - {_text(triton.grpc)}"
    return f"  - {{grpc: {_text(triton.grpc)}, {', '.join(others)}}}"


def _tls(tls: TritonTls, folder: Path | None) -> str:
    given = {name: getattr(tls, name) for name in TritonTls.model_fields if getattr(tls, name) is not None}
    return "{" + ", ".join(f"{name}: {yaml_scalar(_from(value, folder))}" for name, value in given.items()) + "}"


def _from(value: Path | str, folder: Path | None) -> str:
    """A path as a file in this folder names it: relative where it lies beside or below it."""
    if isinstance(value, Path) and folder is not None and value.is_relative_to(folder):
        return str(value.relative_to(folder))
    return str(value)


def _listen(config: ServeConfig) -> str:
    listen = config.listen
    return f"{{grpc: {listen.grpc}, http: {listen.http}, metrics: {listen.metrics}}}"


def _text(address: str) -> str:
    return json.dumps(address) if "[" in address else address
