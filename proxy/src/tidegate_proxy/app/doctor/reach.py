"""Why a Triton cannot be asked: who, if anybody, listens at its address, and what is spoken there."""

import asyncio
import socket
import ssl
from typing import Final

from tidegate_proxy.app.doctor.asking import not_ready
from tidegate_proxy.app.doctor.loading import first_line
from tidegate_proxy.configuration.addresses import host_of, port_of
from tidegate_proxy.configuration.tritons import TritonAddress, TritonTls
from tidegate_proxy.tritons.backend import Backend

CONNECT_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
_PORTS: Final = (("/metrics", "its metrics port"), ("/v2", "its HTTP port"))


async def listens(address: str) -> bool:
    """Whether anybody takes connections at HOST:PORT."""
    return not await _why_not_connected(address)


async def why_not_ready(backend: Backend, triton: TritonAddress) -> str:
    """What is wrong at the address of a Triton that is not ready, with the remedy."""
    address = triton.grpc
    if why := await _why_not_connected(address):
        return why
    for path, name in _PORTS:
        if await _speaks_http(address, path):
            return f"that is {name}: give its gRPC port (Triton's default is 8001)"
    if await _speaks_http(address, "/"):
        return "HTTP is spoken there: is this its gRPC port?"
    if why := await _why_no_tls(address, triton.tls):
        return why
    if await backend.is_live():
        failed = await not_ready(backend)
        reasons = "; ".join(f"model {each.model}: {first_line(each.reason)}" for each in failed)
        return f"it lives, and is not ready: {reasons or 'it is loading models'}"
    return "somebody listens there who does not speak gRPC as a Triton does: is this its gRPC port?"


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


async def _speaks_http(address: str, path: str) -> bool:
    """Whether the path is answered over HTTP/1; of `/` any answer counts."""
    host = host_of(address).strip("[]")
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port_of(address))
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, ValueError):
        return False
    return line.startswith(b"HTTP/1.") and (path == "/" or b" 200" in line)


async def _why_no_tls(address: str, tls: TritonTls | None) -> str:
    """What a handshake tells; empty where TLS is not to blame."""
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
    """What is wrong where a handshake fails so, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): check `ca` and `server_name` of tritons.N.tls"
    if isinstance(error, ssl.SSLError) and error.reason != "WRONG_VERSION_NUMBER":
        return f"TLS fails there: {error.reason or error}: check tritons.N.tls"
    return "TLS is not spoken there: leave out tritons.N.tls, or start it with --grpc-use-ssl"


async def _shake_hands(address: str, context: ssl.SSLContext, name: str | None) -> bool:
    """Agree on TLS. Whether the server goes on then: one that misses our certificate, or refuses it, hangs up."""
    context.set_alpn_protocols(["h2"])
    host = host_of(address).strip("[]")
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(
            host, port_of(address), ssl=context, server_hostname=name or host
        )
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return bool(await reader.read(1))  # its settings
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.transport.abort()  # no word of farewell to somebody who may not answer it
