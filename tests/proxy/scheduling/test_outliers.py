"""Tritons that fail though they answer probes."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of
from tidegate.api import Worker
from tidegate_proxy.configuration.config import OutlierDetection
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.scheduling.membership import OutlierDetector, is_failure
from tidegate_proxy.tritons.catalog import Catalog

if TYPE_CHECKING:
    from tidegate_proxy.tritons.backend import Backend

Make = Callable[..., Any]
S = 1_000_000_000
ROW = np.ones((1, 3), np.float32)


class Cluster:
    """Tritons that live, all with the model `m`."""

    def __init__(self, count: int, **limits: Any) -> None:
        self.tritons = [cast("Backend", _Triton(f"t{number}")) for number in range(count)]
        workers = [Worker(number, f"t{number}/0", ("m",)) for number in range(count)]
        self.catalog = Catalog(
            workers=workers, backend_of=dict(enumerate(self.tritons)), hosts={"m": list(self.tritons)}
        )
        self.outliers = OutlierDetector(SettingsHolder(CurrentSettings(outlier_detection=OutlierDetection(**limits))))

    def did_well(self, number: int, owner: str = "") -> None:
        self.outliers.did_well(self.tritons[number], owner)

    def fail(self, number: int, times: int = 1, now_ns: int = 0, owner: str = "") -> str | None:
        """Why it is ejected, if it is."""
        reason = None
        for _ in range(times):
            reason = self.outliers.failed(self.tritons[number], {owner}, now_ns, self.catalog, self.tritons)
            self.tritons[number].alive = self.tritons[number].alive and reason is None
        return reason

    def is_out(self, number: int, now_ns: int) -> bool:
        out = self.outliers.is_out(self.tritons[number], now_ns, self.catalog)
        self.tritons[number].alive = not out
        return out


class _Triton:
    def __init__(self, address: str) -> None:
        self.address, self.alive = address, True


def test_failures_in_a_row_and_a_growing_while() -> None:
    cluster = Cluster(2, base_ejection_time_s=10, max_ejection_time_s=25)
    assert cluster.fail(0, 4) is None
    cluster.did_well(0)
    assert cluster.fail(0, 4) is None
    now_ns, seen = 0, []
    for _ in range(4):
        assert "times in a row; it is ejected for" in str(cluster.fail(0, 5 if now_ns else 1, now_ns))
        began_ns = now_ns
        while cluster.is_out(0, now_ns):
            now_ns += S
        seen.append((now_ns - began_ns) // S)
    assert seen == [10, 20, 25, 25]
    assert cluster.outliers.ejections(cluster.tritons)["t0"] == (4, False)
    assert "for 10 s" in str(cluster.fail(0, 5, now_ns + 26 * S)), "it did well for long"


def test_a_share_of_what_it_is_given() -> None:
    cluster = Cluster(2, consecutive_errors=0)
    for _ in range(30):
        cluster.did_well(1)
    reasons = []
    for _ in range(10):
        cluster.did_well(0)
        reasons.append(cluster.fail(0))
    assert "failed 10 of 20 calls" in str(reasons.pop())
    assert not any(reasons)


def test_what_fails_for_one_client_among_several_speaks_against_no_triton() -> None:
    cluster = Cluster(2, window_s=1)
    cluster.did_well(1, "neighbor")
    assert cluster.fail(0, 100, owner="raises") is None
    assert cluster.fail(0, 100, now_ns=2 * S, owner="raises") is None, "the neighbor is remembered for another window"
    assert "times in a row" in str(cluster.fail(0, now_ns=2 * S, owner="neighbor"))


def test_nor_does_a_share_that_is_nearly_all_one_clients() -> None:
    cluster = Cluster(2, consecutive_errors=0)
    for _ in range(40):
        cluster.did_well(1, "neighbor")
        cluster.did_well(0, "neighbor")
        assert cluster.fail(0, 4, owner="raises") is None
        assert cluster.fail(0, owner="neighbor") is None
    assert "calls" in str([cluster.fail(0, owner="neighbor") for _ in range(20)])


def test_where_all_fail_alike_no_triton_is_ejected() -> None:
    cluster = Cluster(3)
    for _ in range(50):
        assert [cluster.fail(number) for number in range(3)] == [None] * 3


@pytest.mark.parametrize(("count", "share", "out"), [(1, 1.0, 0), (2, 0.5, 1), (2, 1.0, 1), (5, 0.5, 2), (5, 0.0, 0)])
def test_never_too_many_and_never_the_last(count: int, share: float, out: int) -> None:
    cluster = Cluster(count, max_ejection_fraction=share)
    for number in range(count):
        cluster.fail(number, 20)
    assert sum(not triton.alive for triton in cluster.tritons) == out


def test_one_that_has_a_model_of_its_own_stays_and_one_that_is_needed_returns() -> None:
    cluster = Cluster(2)
    cluster.catalog.hosts["own"] = [cluster.tritons[0]]
    assert cluster.fail(0, 20) is None
    del cluster.catalog.hosts["own"]
    assert cluster.fail(0) is not None
    assert cluster.is_out(0, 1)
    cluster.tritons[1].alive = False
    assert not cluster.is_out(0, 2)


def test_what_speaks_against_a_triton() -> None:
    assert is_failure(grpc.StatusCode.INTERNAL, "CUDA error")
    assert not is_failure(grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape")
    assert not is_failure(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")


def test_live_the_traffic_moves_and_comes_back(
    start_fake: Make, serve_here: Make, call: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broken, seen = [True], []

    def infer(name: str) -> Make:
        def answer(request: Any, context: Any) -> bytes:
            seen.append(name)
            if name == "bad" and broken:
                context.abort(grpc.StatusCode.INTERNAL, "CUDA error")
            reply = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
            reply.outputs.add(name="Y", datatype="FP32", shape=request.inputs[0].shape)
            reply.raw_output_contents.append(request.raw_input_contents[0])
            return bytes(reply.SerializeToString())

        return answer

    fakes = [start_fake(infer("bad")), start_fake(infer("good"))]
    proxy = serve_here(fakes, outlier_detection={"base_ejection_time_s": 1.0})
    outcomes = [call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] for _ in range(40)]
    # Who is refused is told first: his next request may overtake the outlier_detection.
    assert outcomes.count(grpc.StatusCode.INTERNAL) in (5, 6)
    assert seen.count("bad") in (5, 6)
    assert re.search(rf"triton ejected: .*: it failed 5 times in a row.*\(triton={fakes[0].address}\)", caplog.text)
    ejections = proxy.serving.driver.outliers.ejections(proxy.serving._discovery.backends)
    assert ejections[fakes[0].address][0] == 1
    broken.clear()
    eventually(
        lambda: (
            call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK and "bad" in seen[40:]
        ),
        "it to be used again",
    )


def test_what_any_client_can_have_refused_speaks_against_no_triton(
    start_fake: Make, serve_here: Make, call: Make
) -> None:
    fakes = [start_fake(lambda _request, _context: b"") for _ in range(2)]
    proxy = serve_here(fakes)
    for fake in fakes:
        del fake.answers["ModelConfig"]
    unreadable = b"\x0a\x04echo\xff\xff\xff"
    for method, code in (("ModelConfig", grpc.StatusCode.UNAVAILABLE), ("ModelInfer", grpc.StatusCode.UNKNOWN)):
        assert {call(proxy, method, unreadable)[0] for _ in range(25)} == {code}
    ejections = proxy.serving.driver.outliers.ejections(proxy.serving._discovery.backends)
    assert list(ejections.values()) == [(0, False)] * 2


def test_live_a_client_whose_requests_make_a_model_raise_has_no_triton_ejected(
    start_fake: Make, serve_here: Make, start_call: Make
) -> None:
    def answer(request: Any, context: Any) -> bytes:
        if request.id == "raises":
            context.abort(grpc.StatusCode.INTERNAL, "the model raised")
        reply = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
        reply.outputs.add(name="Y", datatype="FP32", shape=request.inputs[0].shape)
        reply.raw_output_contents.append(request.raw_input_contents[0])
        return bytes(reply.SerializeToString())

    proxy = serve_here([start_fake(answer) for _ in range(2)], clients={"by": "metadata", "key": "who"})

    def ask(name: str) -> grpc.StatusCode:
        message = request_of("echo", {"X": ROW}, id=name)
        return cast("grpc.StatusCode", outcome(start_call(proxy, "ModelInfer", message, metadata=[("who", name)]))[0])

    assert ask("neighbor") is grpc.StatusCode.OK
    assert {ask("raises") for _ in range(40)} == {grpc.StatusCode.INTERNAL}
    ejections = proxy.serving.driver.outliers.ejections(proxy.serving._discovery.backends)
    assert list(ejections.values()) == [(0, False)] * 2
    assert ask("neighbor") is grpc.StatusCode.OK
