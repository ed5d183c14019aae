"""Findings on models: failed loads, models on no Triton, differing configurations, useless or wrong batching."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2

from tidegate.api import Setup
from tidegate.host import PluginError, Plugins
from tidegate.host.by_model import BY_MODEL, ByModelOptions
from tidegate.schemas import Layout, ProfileFile, read_document
from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, RowsVerdict, ServedModel
from tidegate_proxy.configuration.addresses import port_of
from tidegate_proxy.configuration.config import ModelConfig, ServeConfig
from tidegate_proxy.configuration.config_file import of_shard
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.batching_mode import (
    GRAPH_MODES,
    SCHEDULING_PARAMETER,
    asked_of_tritons_batcher,
    delay_us,
    graph_mode_of,
)
from tidegate_proxy.tritons.catalog import Catalog, discover
from tidegate_proxy.tritons.gpus import Gpu
from tidegate_proxy.tritons.initial_profiles import starting_profiles
from tidegate_proxy.tritons.model_graphs import why_not_expandable


def first_line(reason: str) -> str:
    """Return the error message without the Python traceback."""
    return reason.strip().partition("\n")[0]


def models_that_do_not_load(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models that do not load: a warning if another Triton or version serves the model, else an error."""
    for each in facts.not_ready:
        served = each.model in facts.services
        version = f", version {each.version}," if each.version else ""
        yield Finding(
            "warning" if served else "error",
            "not-loaded",
            f"model {each.model}",
            f"Triton at {each.triton} has it{version} and does not serve it: {first_line(each.reason)}",
            "mend it there, and have it loaded again" if served else "mend it there: its requests fail until then",
        )


def models_that_nobody_has(facts: DoctorFacts) -> Iterator[Finding]:
    """Find configured models that no Triton has; `serve` refuses to start for settings that must apply."""
    failed = {each.model for each in facts.not_ready}
    for name, model_config in facts.config.models.items():
        if name in facts.services or model_config.load == "on-demand":
            continue
        what = "a Triton has it, but not ready" if name in failed else "no Triton has a model of this name"
        yield Finding(
            "error" if _must_be_followed(model_config) else "warning",
            "unknown-model",
            f"models.{name}",
            what + ", so that `serve` does not start" * _must_be_followed(model_config),
            "mend the model, or take it out" if name in failed else remedy_for(name, facts.services),
        )


def unused_policy_parts(facts: DoctorFacts) -> Iterator[Finding]:
    """Find parts of a composite policy that apply to no model: no Triton has it, or an earlier part takes it."""
    choice = facts.config.policy
    if choice.name != BY_MODEL:
        return
    try:
        parts = ByModelOptions.model_validate(choice.options).parts
    except ValidationError:  # `check_offline` says what is wrong
        return
    if not parts:
        yield Finding(
            "warning",
            "unmatched-policy-part",
            "policy.options.parts",
            f"{BY_MODEL} has no part: all is served first come, first served",
            "name models and the policy that decides for them",
        )
    of_part: dict[str, int] = {}
    for index, part in enumerate(parts):
        where = f"policy.options.parts.{index}.models"
        for pattern in part.models:
            known = [name for name in facts.services if fnmatchcase(name, pattern)]
            before = {of_part.get(name, index) for name in known}
            if not known:
                yield Finding(
                    "warning",
                    "unmatched-policy-part",
                    where,
                    f"no Triton has a model {pattern!r} (it may be loaded later)",
                    remedy_for(pattern, facts.services),
                )
            elif index not in before and pattern != "*":  # "*" takes the rest, which may be none
                first = ", ".join(f"parts.{number}" for number in sorted(before))
                yield Finding(
                    "warning",
                    "unmatched-policy-part",
                    where,
                    f"{pattern!r}: all its models are those of {first}, which comes first",
                    "name what is particular before what is general",
                )
            for name in known:
                of_part.setdefault(name, index)


def remedy_for(name: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown name: the closest known one, or all if there are few."""
    if close := get_close_matches(name, known, n=3, cutoff=0.6) or _alike_but_for_case(name, known):
        return f"did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return "there is none at all: load one"
    listed = sorted(known)
    shown = ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
    return f"take it out, or name one of: {shown}"


def _alike_but_for_case(name: str, known: Collection[str]) -> list[str]:
    return [other for other in known if other.casefold() == name.casefold()]


def _must_be_followed(model_config: ModelConfig) -> bool:
    return bool(
        model_config.slo_ms or model_config.scheduling or model_config.on_deadline_miss or model_config.merge.pad
    )


def why_refused(config: ServeConfig, plugins: Plugins, catalog: Catalog, measured: ProfileFile) -> str:
    """Return why the policy rejects these models and workers, or "" if it accepts them.

    `catalog`: models and workers of all Tritons; `measured`: measured latency profiles.
    """
    models, workers = tuple(catalog.models.values()), tuple(catalog.workers)
    profiles = starting_profiles(catalog, measured)
    try:
        plugins.make_policy(
            config.policy.name,
            Setup(models, workers, profiles, config.seed, network=catalog.network),
            dict(config.policy.options),
        )
    except PluginError as error:
        return str(error)
    return ""


async def why_refused_by_shards(
    config: ServeConfig, plugins: Plugins, backends: Sequence[Backend], gpus: Sequence[Gpu], measured: ProfileFile
) -> str:
    """Return why the policy of the first shard that fails rejects its own Tritons' models, or "".

    Raises BackendError if they cannot be queried, and DocumentError. `backends`: Tritons of all shards; `gpus`: those
    of this machine; `measured`: measured latency profiles.
    """
    for number in range(len(config.shards)):
        own = of_shard(config, number, len(config.shards))
        addresses = {triton.grpc for triton in own.tritons}
        there = [backend for backend in backends if backend.address in addresses]
        layout = read_document(own.layout, Layout) if own.layout else None
        catalog = await discover(there, own.models, Catalog(gpus=gpus), layout=layout)
        if why := why_refused(own, plugins, catalog, measured):
            return f"shard {number}: {why}"
    return ""


def policies_that_refuse(facts: DoctorFacts) -> Iterator[Finding]:
    """Find a policy that rejects these models on these workers, which stops `serve`."""
    if facts.refusal:
        yield Finding("error", "policy-refuses", "policy", f"{facts.refusal}; `serve` does not start", "")


def disagreements(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models that differ between Tritons: an error if tensors differ, as the majority decides on scheduling."""
    for name, service in facts.services.items():
        if len(service.forms) < 2:
            continue
        only_rows = len({_tensors(form.config) for form in service.forms}) == 1
        places = "; ".join(f"{_form(form.config)} at {', '.join(form.tritons)}" for form in service.forms)
        consequence = (
            "batches are no larger than all of them take"
            if only_rows
            else "requests of the first form are scheduled, others pass to a Triton that takes them"
        )
        yield Finding(
            "warning" if only_rows else "error",
            "disagreement",
            f"model {name}",
            f"it is not the same at every Triton ({places}): {consequence}",
            "load the same everywhere, unless they are being updated just now",
        )


def _tensors(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    return tuple(sorted(_described(tensor) for tensor in (*config.input, *config.output)))


def _form(config: model_config_pb2.ModelConfig) -> str:
    tensors = ", ".join(_described(tensor) for tensor in config.input)
    return f"max_batch_size {config.max_batch_size}, {tensors}"


def _described(tensor: object) -> str:
    name, dims = getattr(tensor, "name", ""), getattr(tensor, "dims", ())
    datatype = model_config_pb2.DataType.Name(getattr(tensor, "data_type", 0)).removeprefix("TYPE_")
    return f"{name} {datatype} [{','.join(map(str, dims))}]"


def calls_inside_triton(facts: DoctorFacts) -> Iterator[Finding]:
    """Find ensembles and BLS models that execute a scheduled model without the scheduler."""
    for service in facts.services.values():
        steps = {step.model_name for step in service.config.ensemble_scheduling.step}
        via = "ensemble" if steps else "BLS model"
        called = sorted(steps | facts.bls_calls.get(service.name, frozenset()))
        scheduled = [name for name in called if name in facts.services and facts.services[name].model is not None]
        if not scheduled or service.consent.scheduling in GRAPH_MODES:
            continue
        names = ", ".join(scheduled)
        remedy = "let clients call the steps through Tidegate"
        if steps and not _why_not_expandable(facts, service):
            remedy = f"say models.{service.name}.scheduling: auto (its steps are scheduled under load) or expanded"
        elif not steps:
            grpc_port = port_of(facts.config.listen.grpc)
            remedy = (
                f"have its model.py call {names} through Tidegate: tritonclient at Tidegate's gRPC port ({grpc_port}) "
                "in place of pb_utils.InferenceRequest"
            )
        yield Finding(
            "warning" if any(facts.services[name].slo_ms for name in scheduled) else "advice",
            "called-inside-triton",
            f"model {service.name}",
            f"this {via} executes {names} inside Triton, past the scheduler: batches of {names} take longer beside it "
            "than Tidegate expects",
            f"{remedy}, or say models.{scheduled[0]}.scheduling: bypass",
        )


def _why_not_expandable(facts: DoctorFacts, service: ServedModel) -> str:
    """Return why the steps of an ensemble cannot be scheduled; "" if they can be."""
    scheduled = {name for name, each in facts.services.items() if each.model is not None}
    unscheduled = {name: each.consent.why for name, each in facts.services.items() if each.model is None}
    ensembles = {
        name
        for name, each in facts.services.items()
        if each.config.HasField("ensemble_scheduling") and not each.config.model_transaction_policy.decoupled
    }
    return why_not_expandable(service.config, scheduled, unscheduled, ensembles)


def ensembles_not_expanded(facts: DoctorFacts) -> Iterator[Finding]:
    """Find ensembles whose steps cannot be scheduled though the operator asks for it."""
    for service in facts.services.values():
        mode = graph_mode_of(service.config, facts.config_of(service.name).scheduling)
        if mode is not None and service.consent.scheduling == "bypass":
            yield Finding(
                "warning",
                "ensemble-not-expanded",
                f"models.{service.name}.scheduling",
                f"it bypasses, steps included: {_why_not_expandable(facts, service) or service.consent.warning}",
                "change that, or remove the setting",
            )


_HARMFUL: Final = frozenset({"preserve_ordering", "max_queue_size", "default_timeout_microseconds"})
"""Effects of a batcher on batches that are already formed: it delays or rejects them."""


def ineffective_settings(facts: DoctorFacts) -> Iterator[Finding]:
    """Find the settings `scheduling` and `merge.pad` that a model's config does not allow."""
    for service in facts.services.values():
        word = facts.config_of(service.name).scheduling
        if word is None and SCHEDULING_PARAMETER in service.config.parameters:
            word = service.config.parameters[SCHEDULING_PARAMETER].string_value
        is_of_ensemble = word in GRAPH_MODES and service.config.HasField("ensemble_scheduling")
        if service.consent.scheduling == "bypass" and word not in (None, "bypass") and not is_of_ensemble:
            yield Finding(
                "warning",
                "setting-ignored",
                f"models.{service.name}",
                f"its requests cannot be scheduled (scheduling: {word}): {service.consent.why}",
                "remove the setting: they bypass the scheduler",
            )
        if service.name in facts.unpadded:
            yield Finding(
                "error",
                "not-padded",
                f"models.{service.name}.merge.pad",
                f"it cannot be padded so, and `serve` does not start: {facts.unpadded[service.name]}",
                "correct it, or take it out",
            )


def double_batching_delay(facts: DoctorFacts) -> Iterator[Finding]:
    """Find scheduled models whose batches are delayed again by Triton's dynamic batcher."""
    for service in facts.services.values():
        delay = delay_us(service.config)
        if service.model is not None and delay:
            yield Finding(
                "warning",
                "double-batching-delay",
                f"models.{service.name}",
                f"every batch that is not full waits up to {delay / 1e3:g} ms in its Triton, too: dynamic_batching "
                f"has max_queue_delay_microseconds: {delay}",
                f"drop it from {service.name}/config.pbtxt, or, where the Triton runs with "
                f"--model-control-mode=explicit, say models.{service.name}.strip_queue_delay: true",
            )


def conflicting_queue_policies(facts: DoctorFacts) -> Iterator[Finding]:
    """Find scheduled models whose Triton delays or rejects whole batches by rules meant for requests."""
    for service in facts.services.values():
        asked = [name for name in asked_of_tritons_batcher(service.config) if name in _HARMFUL]
        if service.model is not None and asked:
            yield Finding(
                "warning",
                "double-queue-policy",
                f"models.{service.name}",
                f"its Triton applies to whole batches what was meant for requests: {', '.join(asked)} of "
                "dynamic_batching",
                f"drop that from {service.name}/config.pbtxt, or say models.{service.name}.scheduling: bypass",
            )


def unbatched_models(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models with a batch dimension whose requests run alone because batching was not allowed."""
    for service in facts.services.values():
        config = service.config
        if (
            service.consent.scheduling != "unbatched"
            or facts.config_of(service.name).scheduling
            or SCHEDULING_PARAMETER in config.parameters
        ):
            continue
        if config.max_batch_size > 1 and not config.HasField("dynamic_batching"):
            verdict = facts.rows.get(service.name)
            if verdict is not None and verdict.batches is False:
                continue
            setting = "set it to batched"
            remedy = (
                f"{setting} if its rows do not influence each other; of an ONNX file `--repository DIR` finds that out"
            )
            if verdict is not None:
                remedy = f"{setting}: its rows are independent" if verdict.batches else f"{remedy} ({verdict.reason})"
            yield Finding(
                "advice",
                "unbatched-model",
                f"models.{service.name}.scheduling",
                "its requests run one by one, as in its Triton: it has no dynamic_batching",
                remedy,
            )


def batches_of_one(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models with a fixed batch of one row that could be made dynamic."""
    for service in facts.services.values():
        if not _is_of_one_row(service):
            continue
        if service.config.backend in ("", "onnxruntime", "python"):
            remedy = "`tidegate generate MODEL.onnx --batch-dim` frees that of an ONNX file, where its graph allows"
        else:
            remedy = "export it with a dynamic batch, and set max_batch_size"
        yield Finding(
            "advice",
            "batch-of-one",
            f"model {service.name}",
            "it takes one row at a time, so that nothing can be merged",
            remedy,
        )


def _is_of_one_row(service: ServedModel) -> bool:
    """Whether its inputs are of one row each, by max_batch_size or by a first dimension of 1, and Triton asks no more
    of them."""
    config = service.config
    if config.max_batch_size > 1 or not config.input:
        return False
    if config.HasField("ensemble_scheduling") or config.HasField("sequence_batching"):
        return False
    if config.model_transaction_policy.decoupled or config.batch_input or config.batch_output:
        return False
    return config.max_batch_size == 1 or all(_begins_with_one(tensor) for tensor in config.input)


def _begins_with_one(tensor: model_config_pb2.ModelInput) -> bool:
    return len(tensor.dims) > 1 and tensor.dims[0] == 1 and not tensor.is_shape_tensor


_MODEL_FILE: Final = "model.onnx"


def judge_rows(repositories: Sequence[Path], services: Mapping[str, ServedModel]) -> dict[str, RowsVerdict]:
    """Test row independence of the models that may be batched and whose ONNX files exist; return verdicts by model.

    It takes seconds for each, and needs the package tidegate-repo-generator.
    """
    if not repositories:
        return {}
    from tidegate_repo_generator.model import GenerateError  # noqa: PLC0415 - an extra; slow to import
    from tidegate_repo_generator.onnx_file import read_onnx  # noqa: PLC0415
    from tidegate_repo_generator.rows.judgment import judge_batching  # noqa: PLC0415

    found = {}
    for name, service in services.items():
        path = _model_file(repositories, service.config)
        if path is None or service.consent.scheduling == "bypass" or service.config.max_batch_size < 1:
            continue
        try:
            verdict = judge_batching(read_onnx(path))
        except (GenerateError, OSError) as error:
            found[name] = RowsVerdict(None, str(error))
        else:
            found[name] = RowsVerdict(verdict.batches, verdict.reason)
    return found


def bls_calls(repositories: Sequence[Path], services: Mapping[str, ServedModel]) -> dict[str, frozenset[str]]:
    """Return the served models that the `model.py` of each Python model names, where it makes an InferenceRequest."""
    found = {}
    for name, service in services.items():
        path = _file_of(repositories, name, service.config.default_model_filename or "model.py")
        if service.config.backend != "python" or path is None:
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError, OSError):
            continue  # its Triton says why it cannot be loaded
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        if "InferenceRequest" in names | {node.id for node in nodes if isinstance(node, ast.Name)}:
            texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            found[name] = frozenset(texts & services.keys() - {name})
    return found


def merged_rows(facts: DoctorFacts) -> Iterator[Finding]:
    """Find models whose requests are batched though their rows are not independent, or not proven to be."""
    for name, verdict in facts.rows.items():
        service = facts.services[name]
        if service.consent.scheduling != "batched" or verdict.batches:
            continue
        remedy = f"say models.{name}.scheduling: unbatched, or drop dynamic_batching and "
        remedy += "tidegate_scheduling from its config.pbtxt"
        if verdict.batches is False:
            what = f"its requests are merged, and change each other's answers: {verdict.reason}"
            yield Finding("error", "rows-mixed", f"models.{name}.scheduling", what, remedy)
        else:
            what = f"its requests are merged, and it is not shown that its rows are independent: {verdict.reason}"
            yield Finding(
                "warning", "rows-in-doubt", f"models.{name}.scheduling", what, f"{remedy}; or say batched, if you know"
            )


def _model_file(repositories: Sequence[Path], config: model_config_pb2.ModelConfig) -> Path | None:
    """Return the ONNX file of the newest version of a model; None if there is none."""
    file = str(config.default_model_filename)
    if not file.endswith(".onnx"):  # of the Python backend that is its model.py
        file = str(config.parameters["model_file"].string_value) if "model_file" in config.parameters else _MODEL_FILE
    return _file_of(repositories, str(config.name), file)


def _file_of(repositories: Sequence[Path], model: str, file: str) -> Path | None:
    """Return this file of the newest version of a model that has it; None if there is none."""
    for repository in repositories:
        folder = Path(repository, model)
        versions = [path for path in folder.glob("*") if path.name.isdecimal()]
        for version in sorted(versions, key=lambda path: -int(path.name)):
            if (version / file).is_file():
                return version / file
    return None
