"""A fake Triton on a real gRPC port: models whose names say how they behave."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2_grpc
from tritonclient.grpc import service_pb2 as pb

from tests.conftest import eventually

INPUTS = {
    # model: [(name, data type, dims with rows)]
    "image": [("IMAGE", "FP32", [-1, 3, -1, -1])],
    "text": [("TEXT", "BYTES", [-1, 2]), ("MASK", "BOOL", [-1, 2]), ("IDS", "INT64", [-1, 2]), ("EXTRA", "FP16", [-1])],
    "strange": [("X", "INT4", [-1, 1])],
    "unbatched": [("X", "FP32", [4])],
    "bounded": [("WORD", "INT64", [-1, 64]), ("KIND", "INT32", [-1, 64])],
    "picky": [("INDEX", "INT64", [-1, 8])],
}
PLAIN = [("X", "FP32", [-1, 4])]
CROWD = 20
RATE_LIMIT_MESSAGE = "[request id: <id_unknown>] Exceeds the rate limit of tenant 'limited': 1 requests per second"
MODELS = {*INPUTS, "echo", "crowd", "failing", "expiring", "patient", "silent", "tokens"}


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers at once, or as the model is called: `patient` the last of three, `crowd` once CROWD are there, ..."""

    def __init__(self) -> None:
        self.target = ""
        self.requests: list[pb.ModelInferRequest] = []
        self.headers: list[dict[str, str]] = []
        """Headers of each request, unary or of a stream."""
        self.patience_s: list[float] = []
        """What each request's gRPC deadline left; some centuries where it has none."""
        self.in_flight = 0
        self.most_in_flight = 0
        self.statistics = pb.ModelStatisticsResponse()
        self.crowd_is_there = threading.Event()
        self.closing = threading.Event()
        self._lock = threading.Lock()

    def ServerLive(self, request: pb.ServerLiveRequest, context: grpc.ServicerContext) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: grpc.ServicerContext
    ) -> pb.ModelMetadataResponse:
        if request.name not in MODELS:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model\n {request.name!r}")
        tensors = [
            pb.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype, shape=dims)
            for name, datatype, dims in INPUTS.get(request.name, PLAIN)
        ]
        return pb.ModelMetadataResponse(name=request.name, inputs=tensors)

    def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: grpc.ServicerContext
    ) -> pb.RepositoryIndexResponse:
        return pb.RepositoryIndexResponse(
            models=[pb.RepositoryIndexResponse.ModelIndex(name=name, state="READY") for name in sorted(MODELS)]
        )

    def ModelConfig(self, request: pb.ModelConfigRequest, context: grpc.ServicerContext) -> pb.ModelConfigResponse:
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=0 if request.name == "unbatched" else 8)
        config.input.add(name="EXTRA", optional=True)
        config.instance_group.add(count=2)
        if request.name == "bounded":
            config.parameters["tidegate_input_limits"].string_value = '{"WORD": 300, "KIND": 2}'
        return pb.ModelConfigResponse(config=config)

    def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: grpc.ServicerContext
    ) -> pb.ModelStatisticsResponse:
        return self.statistics

    def ModelStreamInfer(
        self, requests: Iterator[pb.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ModelStreamInferResponse]:
        for request in requests:
            with self._lock:
                self.requests.append(request)
                self.headers.append(dict(context.invocation_metadata()))
                number = len(self.requests)
            if request.model_name == "expiring" or number % 4 == 0:
                yield pb.ModelStreamInferResponse(error_message="Request timeout expired")
                continue
            for _ in range(3):
                yield pb.ModelStreamInferResponse()
                self.closing.wait(timeout=0.01)

    def ModelInfer(self, request: pb.ModelInferRequest, context: grpc.ServicerContext) -> pb.ModelInferResponse:
        with self._lock:
            self.requests.append(request)
            self.headers.append(dict(context.invocation_metadata()))
            self.patience_s.append(context.time_remaining())
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            if self.in_flight == CROWD:
                self.crowd_is_there.set()
        try:
            if ("x-tenant", "limited") in context.invocation_metadata():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, RATE_LIMIT_MESSAGE)
            match request.model_name:
                case "crowd":
                    self.crowd_is_there.wait(timeout=120)
                case "failing":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "no worker left")
                case "expiring":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "Request timeout expired")
                case "picky" if any(request.raw_input_contents[0]):
                    context.abort(grpc.StatusCode.INTERNAL, "indices element out of data bounds")
                case "patient":
                    eventually(lambda: len(self.requests) == 3 and self.in_flight == 1, "the others to be answered")
                case "silent":
                    self.closing.wait(timeout=120)
            return pb.ModelInferResponse(model_name=request.model_name)
        finally:
            with self._lock:
                self.in_flight -= 1


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    """A fake Triton; `triton.target` is its address."""
    fake = FakeTriton()
    with ThreadPoolExecutor(max_workers=32) as threads:
        server = grpc.server(threads)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
        fake.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield fake
        finally:
            fake.closing.set()
            server.stop(grace=None).wait()
