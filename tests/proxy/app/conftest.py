"""Load on a model that gives back what it gets."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.proxy.fixtures.calls import request_of

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)


@pytest.fixture
def echo_load() -> Iterator[Make]:
    """`echo_load(proxy, callers)`: callers in threads, one request each in flight; counts of outcomes."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(proxy: Any, callers: int) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        message = request_of("echo", {"X": ROW}).SerializeToString()

        def call() -> None:
            with grpc.insecure_channel(proxy.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                while not stop.is_set():
                    try:
                        answer = service_pb2.ModelInferResponse.FromString(infer(message, timeout=60))
                        outcomes["right" if answer.raw_output_contents[0] == ROW.tobytes() else "wrong"] += 1
                    except grpc.RpcError as error:
                        outcomes[f"{error.code()}: {error.details()}"] += 1

        threads.extend(threading.Thread(target=call) for _ in range(callers))
        for thread in threads:
            thread.start()
        return outcomes

    yield start
    stop.set()
    for thread in threads:
        thread.join()
