"""Queries to Tritons beyond configurations: failed loads, mean execution times, why one is unreachable."""

import asyncio
import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate_proxy.access.gate import headers_of
from tidegate_proxy.app.doctor.facts import Executions, NotReady
from tidegate_proxy.app.doctor.models import first_line
from tidegate_proxy.base.reserved_names import OWN_PREFIX, why_not_unregistered
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.configuration.tritons import TritonAddress, TritonTls
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import SERVICE_PREFIX, Backend, LoadedModel

ANSWER_WITHIN_S = 10.0
_SHARES_NO_MEMORY = "Client shared memory is disabled"
"""Beginning of the error of a Triton that runs without --allow-client-shm=true."""
_NO_REGION = OWN_PREFIX + "no-region"
"""Name that no region has: to unregister it changes nothing."""
_NO_FAULT = frozenset({"", "unloaded"})
"""Reasons for which a model is not ready on purpose."""


async def not_ready(backend: Backend) -> list[NotReady]:
    """Return the versions of models that a Triton failed to load; empty if it does not report that."""
    try:
        message = service_pb2.RepositoryIndexRequest().SerializeToString()
        answer = await backend.ask(SERVICE_PREFIX + "RepositoryIndex", message, timeout_s=ANSWER_WITHIN_S)
    except CallFailed:
        return []
    return [
        NotReady(backend.address, model.name, model.version, model.reason)
        for model in service_pb2.RepositoryIndexResponse.FromString(answer).models
        if model.state != "READY" and model.reason not in _NO_FAULT
    ]


async def unregister_error(backend: Backend) -> str:
    """Return the error of a Triton that is asked to unregister a region that does not exist, or "".

    One that forbids shared memory refuses, and so does a Tidegate, which reserves the name.
    """
    message = service_pb2.SystemSharedMemoryUnregisterRequest(name=_NO_REGION).SerializeToString()
    try:
        await backend.ask(SERVICE_PREFIX + "SystemSharedMemoryUnregister", message, timeout_s=ANSWER_WITHIN_S)
    except CallFailed as error:
        return error.details
    return ""


def forbids_shared_memory(error: str) -> bool:
    """Return whether this error is of a Triton without shared memory, as 26.04 (2.68) and later are by default."""
    return error.startswith(_SHARES_NO_MEMORY)


def is_tidegate(error: str) -> bool:
    """Return whether this error is of a Tidegate, which reserves the name of the region."""
    return error == why_not_unregistered(_NO_REGION)


async def executions(backends: Sequence[Backend]) -> Mapping[str, Executions]:
    """Return the latency of batches of one row by model, at the fastest Triton with statistics."""
    found: dict[str, Executions] = {}
    for backend in backends:
        try:
            message = service_pb2.ModelStatisticsRequest().SerializeToString()
            answer = await backend.ask(SERVICE_PREFIX + "ModelStatistics", message, timeout_s=ANSWER_WITHIN_S)
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


class AsLoaded(Backend):
    """Triton that is only queried for the scheduling of its models."""

    def __init__(self, triton: TritonAddress, config: ServeConfig) -> None:
        """Prepare the queries with the configured limits. Raises TlsError, RestrictionError."""
        super().__init__(triton, headers_of(triton), in_force=SettingsHolder(settings_of(config)))
        self._without_delay = {name for name, model_config in config.models.items() if model_config.strip_queue_delay}
        self._known: list[LoadedModel] | None = None

    async def models(self, known: Sequence[LoadedModel] = (), suspects: Collection[str] = ()) -> list[LoadedModel]:
        """Return all models that were ready at the first query. Raises BackendError if it cannot be queried."""
        if self._known is None:
            self._known = [self._as_loaded(model) for model in await super().models(known, suspects)]
        return self._known

    def _as_loaded(self, model: LoadedModel) -> LoadedModel:
        if model.config.name not in self._without_delay:
            return model
        config = model_config_pb2.ModelConfig()
        config.CopyFrom(model.config)
        if config.HasField("dynamic_batching"):
            config.dynamic_batching.max_queue_delay_microseconds = 0
        return LoadedModel(config, model.versions)


CONNECT_TIMEOUT_S: Final = 1.0
REACHED_WITHIN_S: Final = 2.0
_PORTS: Final = (("/metrics", "its metrics port"), ("/v2", "its HTTP port"))


async def listens(address: str) -> bool:
    """Return whether a server accepts connections at HOST:PORT."""
    return not await _why_not_connected(address)


async def why_not_ready(backend: Backend, triton: TritonAddress) -> str:
    """Return why the Triton at an address is not ready, with the remedy."""
    address = triton.grpc
    if why := await _why_not_connected(address):
        return why
    paths = asyncio.gather(*(_speaks_http(address, path) for path, _ in _PORTS), _speaks_http(address, "/"))
    (*named, spoken), no_tls = await asyncio.gather(paths, _why_no_tls(address, triton.tls))
    for (_, name), it_is in zip(_PORTS, named, strict=True):
        if it_is:
            return f"that is {name}: give its gRPC port (Triton's default is 8001)"
    if spoken:
        return "HTTP is spoken there: is this its gRPC port?"
    if no_tls:
        return no_tls
    if await backend.is_live():
        failed = await not_ready(backend)
        reasons = "; ".join(f"model {each.model}: {first_line(each.reason)}" for each in failed)
        return f"it lives, and is not ready: {reasons or 'it is loading models'}"
    return "the server there does not speak gRPC as a Triton does: is this its gRPC port?"


async def _why_not_connected(address: str) -> str:
    host = host_of(address).strip("[]")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port_of(address))
    except socket.gaierror:
        return f"there is no host {host!r}: is its name right?"
    except TimeoutError:
        return f"nothing there answers within {CONNECT_TIMEOUT_S:g} s: does the machine run, and may it be reached?"
    except OSError:
        return "does it run, and is this its gRPC port?"
    writer.close()
    return ""


async def why_no_http(address: str) -> str:
    """Return why a server that listens does not answer over HTTP, with the remedy."""
    line, tls = await asyncio.gather(_first_line(address, "/"), _why_no_tls(address, None))
    if tls:
        return f"TLS is spoken at {address}: give a port with HTTP without TLS (Triton's default is 8000)"
    if line is None or line.startswith(b"HTTP/1."):
        return f"the server at {address} did not answer over HTTP within {REACHED_WITHIN_S:g} s: is it overloaded?"
    return f"no HTTP is spoken at {address}: give its HTTP port (Triton's default is 8000)"


async def _speaks_http(address: str, path: str) -> bool:
    """Whether the path is answered over HTTP/1; of `/` any answer counts."""
    line = await _first_line(address, path) or b""
    return line.startswith(b"HTTP/1.") and (path == "/" or b" 200" in line)


async def _first_line(address: str, path: str) -> bytes | None:
    """The first line of the answer over HTTP/1; empty: the connection broke off; None: no answer in time."""
    host = host_of(address).strip("[]")
    try:
        async with asyncio.timeout(REACHED_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port_of(address))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                return await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return None
    except (OSError, ValueError):
        return b""


async def _why_no_tls(address: str, tls: TritonTls | None) -> str:
    """Return why the TLS handshake failed; empty if TLS is not the cause."""
    host = host_of(address).strip("[]")
    if tls is None:
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        try:
            await _shake_hands(address, anybody, None)
        except (OSError, TimeoutError):
            return ""
        return "TLS is spoken there: say so in tritons.N.tls, e.g. {ca: ca.pem}, or with --tls-ca ca.pem"
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert and tls.key:
            context.load_cert_chain(tls.cert, tls.key)
        went_on = await _shake_hands(address, context, tls.server_name or host)
    except (OSError, TimeoutError) as error:
        return _in_words(error)
    if went_on:
        return ""
    if tls.cert is None:
        return "it asks for a certificate of ours: give `cert` and `key` of tritons.N.tls, or --tls-cert and --tls-key"
    return f"it does not take our certificate {tls.cert}: is it of an authority that the Triton trusts?"


def _in_words(error: OSError) -> str:
    """Return a handshake error as text, with the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): check `ca` and `server_name` of tritons.N.tls"
    if isinstance(error, ssl.SSLError) and error.reason != "WRONG_VERSION_NUMBER":
        return f"TLS fails there: {error.reason or error}: check tritons.N.tls"
    return "TLS is not spoken there: leave out tritons.N.tls, or start it with --grpc-use-ssl"


async def _shake_hands(address: str, context: ssl.SSLContext, name: str | None) -> bool:
    """Agree on TLS. Whether the server goes on then: one that misses our certificate, or refuses it, hangs up."""
    context.set_alpn_protocols(["h2"])
    host = host_of(address).strip("[]")
    async with asyncio.timeout(REACHED_WITHIN_S):
        reader, writer = await asyncio.open_connection(
            host, port_of(address), ssl=context, server_hostname=name or host
        )
    try:
        async with asyncio.timeout(REACHED_WITHIN_S):
            return bool(await reader.read(1))  # its settings
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.transport.abort()  # no goodbye to a server that may not answer it
