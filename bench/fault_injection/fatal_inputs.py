"""Inputs that end a Triton 2.51, or the process of a model: through Tidegate, beside a neighbor."""

import socket

import grpc
from tritonclient.grpc import service_pb2

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, SERVICE, Rig, over_http, request

STREAMS = 300
DEEP = 1_000_000
CHUNKS = 1_500_000


def run(rig: Rig) -> Result:
    """Streams that want failures as a status, shapes that wrap around, nested JSON, bodies in chunks of a byte."""
    triton = rig.triton(Model("told"), Model("passed", scheduling="bypass"))
    proxy = rig.tidegate(triton)
    ended_by = []

    def check(what: str) -> None:
        if not triton.running or rig.client(proxy.grpc).call(request("passed", [[0, 0]]))[0] is not OK:
            ended_by.append(what)

    failing = request("passed", [[0, 1]]).SerializeToString()
    with grpc.insecure_channel(proxy.grpc) as channel:
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")
        for _ in range(STREAMS // 10 if rig.quick else STREAMS):
            call = stream(iter([failing, failing]), metadata=[("triton_grpc_error", "true")], timeout=20)
            call.code()
    check("streams that want a status")
    message = service_pb2.ModelInferRequest(model_name="passed")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 1 << 62])
    message.raw_input_contents.append(b"")
    rig.client(proxy.grpc).call(message)
    check("a shape that wraps around")
    for path in ("/v2/models/passed/generate", "/v2/repository/index", "/v2/logging"):
        over_http(proxy.http, path, b"[" * DEEP)
    check("nested JSON")
    host, _, port = proxy.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = "POST /v2/models/passed/generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"1\r\n \r\n" * CHUNKS + b"0\r\n\r\n")
        connection.recv(1 << 16)
    check("chunks of one byte")
    return Result("all are answered, the neighbor too" if not ended_by else f"ended by {ended_by}", not ended_by)


HAZARD = Hazard(
    "fatal_inputs",
    "inputs that end a Triton 2.51 or a model's process, sent through Tidegate",
    "each ends the Triton for every client",
    "Triton runs, and a neighbor is answered",
    run,
)
