"""Examination: queries the Tritons of a configuration, and collects facts and findings."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tidegate.host import Plugins
from tidegate.schemas import Layout, ProfileFile, hardware_here, read_document, read_profiles
from tidegate_proxy.app.discovered_tritons import lists_of, unique
from tidegate_proxy.app.doctor.diagnosis import DIAGNOSIS_RULES, diagnose
from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, facts_of, grouped
from tidegate_proxy.app.doctor.latency import unused_profiles
from tidegate_proxy.app.doctor.models import (
    bls_calls,
    judge_rows,
    models_that_nobody_has,
    policies_that_refuse,
    unused_policy_parts,
    why_refused,
    why_refused_by_shards,
)
from tidegate_proxy.app.doctor.triton_queries import (
    AsLoaded,
    executions,
    forbids_shared_memory,
    is_tidegate,
    listens,
    not_ready,
    unregister_error,
    why_no_http,
    why_not_ready,
)
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.tritons import restrictions as of_tritons
from tidegate_proxy.tritons.backend import Backend, BackendError
from tidegate_proxy.tritons.batching_mode import BatchingDecision
from tidegate_proxy.tritons.catalog import Catalog, discover
from tidegate_proxy.tritons.gpus import gpus_here

OF_ALL = (policies_that_refuse, models_that_nobody_has, unused_policy_parts, unused_profiles)
"""Rules that apply only if every Triton answered."""


@dataclass(frozen=True)
class TritonReport:
    """Answers of one Triton to the doctor."""

    address: str
    answers: bool
    problems: tuple[tuple[str, str], ...]
    """Ports that cannot be reached (`grpc`, `http` or `metrics`), with the reason."""
    models: Mapping[str, BatchingDecision] = field(default_factory=dict)
    """Scheduling mode of each of its models, with the reason."""


@dataclass(frozen=True)
class Examination:
    """Answers of the Tritons, and the findings."""

    tritons: tuple[TritonReport, ...]
    facts: DoctorFacts
    """Facts about the Tritons that answered."""
    findings: list[Finding]
    """Findings, most severe first."""


async def examine(config: ServeConfig, plugins: Plugins, repositories: Sequence[Path] = ()) -> Examination:
    """Query every Triton once, for a configuration that passes `check_offline`.

    `repositories`: folders with the models' files, to check whether their rows are independent. Raises DocumentError,
    ProfileFileError, TlsError and OSError for invalid files.
    """
    discovered, failures = await lists_of(config.discovery)
    config = config.model_copy(update={"tritons": tuple(unique([*config.tritons, *discovered]))})
    unread = [
        Finding("warning" if config.tritons else "error", "source-unreadable", "discovery", str(failure), "")
        for failure in failures
    ]
    if not config.tritons:
        return Examination((), DoctorFacts(config, broken_plugins=plugins.broken), unread)
    backends = [AsLoaded(triton, config) for triton in config.tritons]
    try:
        reports = await asyncio.gather(
            *(_report(backend, triton, config) for backend, triton in zip(backends, config.tritons, strict=True))
        )
        found = unread + [
            Finding("error", "unreachable", f"tritons.{index}.{where}", what, "")
            for index, report in enumerate(reports)
            for where, what in report.problems
        ]
        found += [
            Finding("warning", "restricted-api", f"tritons.{index}", what, remedy)
            for index, backend in enumerate(backends)
            for what, remedy in of_tritons.restriction_warnings(backend)
        ]
        answering = [backend for backend, report in zip(backends, reports, strict=True) if report.answers]
        errors = dict(zip(answering, await asyncio.gather(*map(unregister_error, answering)), strict=True))
        found += [
            Finding(
                "warning",
                "not-a-triton",
                f"tritons.{index}.grpc",
                f"a Tidegate answers at {backend.address}: requests would be queued twice",
                "give the gRPC address of the Triton behind it (Triton's default port is 8001)",
            )
            for index, backend in enumerate(backends)
            if is_tidegate(errors.get(backend, ""))
        ]
        found += [
            Finding(
                "warning",
                "shared-memory-refused",
                f"tritons.{index}",
                f'Triton at {triton.grpc} shares no memory ("{errors[backend]}"): Tidegate sends it tensors of '
                "64 KiB and more, which at 600 KB took a quarter of the throughput, and clients cannot register "
                "regions",
                "start it with --allow-client-shm=true, if its clients may name memory of its machine, "
                "or set share_memory: false",
            )
            for index, (backend, triton) in enumerate(zip(backends, config.tritons, strict=True))
            if triton.shares_memory and forbids_shared_memory(errors.get(backend, ""))
        ]
        on_demand = any(model.load == "on-demand" for model in config.models.values())
        found += [
            Finding(
                "error",
                "no-explicit-control",
                f"tritons.{index}.model_memory",
                f"Triton at {backend.address} loads and unloads no models when asked, so that none is loaded on demand",
                "start it with --model-control-mode=explicit",
            )
            for index, backend in enumerate(backends)
            if on_demand and config.tritons[index].model_memory and not await _unloads(backend, answering)
        ]
        facts = DoctorFacts(config, broken_plugins=plugins.broken)
        try:
            facts = await _facts(config, plugins, answering)
            rows = await asyncio.to_thread(judge_rows, repositories, facts.services)
            facts = replace(facts, rows=rows, bls_calls=bls_calls(repositories, facts.services))
        except BackendError as error:
            found.append(Finding("error", "catalog", "models", str(error), ""))
        all_known = len(answering) == len(backends) and all(backend.apis.lists_models for backend in backends)
        rules = DIAGNOSIS_RULES if all_known else tuple(rule for rule in DIAGNOSIS_RULES if rule not in OF_ALL)
        return Examination(tuple(reports), facts, grouped([*found, *diagnose(facts, rules)]))
    finally:
        for backend in backends:
            await backend.close()


async def _facts(config: ServeConfig, plugins: Plugins, backends: Sequence[Backend]) -> DoctorFacts:
    layout = read_document(config.layout, Layout) if config.layout else None
    gpus = () if layout else await asyncio.to_thread(gpus_here)
    # From an empty catalog: what does not add up is to be found here, not to be refused there.
    catalog = await discover(backends, config.models, Catalog(gpus=gpus), layout=layout, graphs=config.graphs)
    catalog.check_graphs()
    measured = read_profiles(config.profiles) if config.profiles else ProfileFile(profiles=[])
    if config.shards:
        refusal = await why_refused_by_shards(config, plugins, backends, gpus, measured)
    else:
        refusal = why_refused(config, plugins, catalog, measured)
    return replace(
        facts_of(config, catalog, measured),
        not_ready=[each for backend in backends for each in await not_ready(backend)],
        executions=await executions(backends),
        broken_plugins=plugins.broken,
        refusal=refusal,
        hardware=await asyncio.to_thread(hardware_here) if measured.profiles else None,
        has_nvml=find_spec("pynvml") is not None,
    )


async def _unloads(backend: Backend, answering: Sequence[Backend]) -> bool:
    return backend not in answering or await backend.may_unload("")


async def _report(backend: Backend, triton: TritonAddress, config: ServeConfig) -> TritonReport:
    problems = [
        (name, f"no server listens at {address}; null stands for a Triton without it")
        for name, address in (("http", triton.http), ("metrics", triton.metrics))
        if address is not None and not await listens(address)
    ]
    over_http = config.listen.http is not None
    if not await backend.serves():
        words = f"no Triton is ready at {triton.grpc}: {await why_not_ready(backend, triton)}"
        return TritonReport(triton.grpc, False, (("grpc", words), *problems))
    found = await of_tritons.find_restrictions(backend, over_http=over_http)
    if "http" in found and found["http"].is_silent:
        del found["http"]
        problems.append(("http", await why_no_http(str(triton.http))))
    if refusals := [*of_tritons.problems(backend, found, config), *of_tritons.wrong_keys(backend, found)]:
        return TritonReport(triton.grpc, False, (*(("grpc", words) for words in refusals), *problems))
    backend.restrict(of_tritons.left_apis(found, config))
    try:
        catalog = await discover([backend], config.models, Catalog())
    except BackendError as error:
        return TritonReport(triton.grpc, False, (("grpc", str(error)), *problems))
    return TritonReport(triton.grpc, True, tuple(problems), dict(sorted(catalog.consents.items())))
