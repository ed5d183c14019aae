"""What Tritons know of models beyond their configs: what failed to load, and how long executions took."""

from collections.abc import Mapping, Sequence

from tritonclient.grpc import service_pb2

from tidegate_proxy.app.doctor.facts import Executions, NotReady
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import SERVICE, Backend

ANSWER_WITHIN_S = 10.0
_SHARES_NO_MEMORY = "Client shared memory is disabled"
"""How a Triton begins that runs without --allow-client-shm=true, and knows it."""
_NO_REGION = "tidegate-no-region"
"""No region has this name: whoever takes it away changes nothing."""
_NO_FAULT = frozenset({"", "unloaded"})
"""Reasons why a model is not ready that are somebody's wish."""


async def not_ready(backend: Backend) -> list[NotReady]:
    """The versions of models that a Triton could not make ready; none where it does not tell."""
    try:
        message = service_pb2.RepositoryIndexRequest().SerializeToString()
        answer = await backend.ask(SERVICE + "RepositoryIndex", message, timeout_s=ANSWER_WITHIN_S)
    except CallFailed:
        return []
    return [
        NotReady(backend.address, model.name, model.version, model.reason)
        for model in service_pb2.RepositoryIndexResponse.FromString(answer).models
        if model.state != "READY" and model.reason not in _NO_FAULT
    ]


async def shared_memory_refusal(backend: Backend) -> str:
    """A Triton's words where it lets no client share memory, as 26.04 (2.68) and later by default; else empty."""
    message = service_pb2.SystemSharedMemoryUnregisterRequest(name=_NO_REGION).SerializeToString()
    try:
        await backend.ask(SERVICE + "SystemSharedMemoryUnregister", message, timeout_s=ANSWER_WITHIN_S)
    except CallFailed as error:
        return error.details if error.details.startswith(_SHARES_NO_MEMORY) else ""
    return ""


async def executions(backends: Sequence[Backend]) -> Mapping[str, Executions]:
    """What batches of one row took, by model, at the Triton that was the quickest; where they tell."""
    found: dict[str, Executions] = {}
    for backend in backends:
        try:
            message = service_pb2.ModelStatisticsRequest().SerializeToString()
            answer = await backend.ask(SERVICE + "ModelStatistics", message, timeout_s=ANSWER_WITHIN_S)
        except CallFailed:
            continue
        for name, each in _executions(service_pb2.ModelStatisticsResponse.FromString(answer)).items():
            if name not in found or each.mean_ms < found[name].mean_ms:
                found[name] = each
    return found


def _executions(answer: service_pb2.ModelStatisticsResponse) -> dict[str, Executions]:
    counts: dict[str, tuple[int, int]] = {}
    for model in answer.model_stats:
        for batch in model.batch_stats:
            if batch.batch_size == 1 and batch.compute_infer.count:
                count, total_ns = counts.get(model.name, (0, 0))
                took_ns = batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns
                counts[model.name] = count + batch.compute_infer.count, total_ns + took_ns
    return {name: Executions(count, total_ns / count / 1e6) for name, (count, total_ns) in counts.items()}
