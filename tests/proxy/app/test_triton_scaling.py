"""Replicas of a StatefulSet follow the load, at a simulated API server whose objects fit Kubernetes' schema."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import eventually
from tests.proxy.fixtures.api_server import NAMESPACE, SimulatedApiServer, serving_api
from tests.proxy.fixtures.fake_answers import echo
from tidegate_proxy.app import triton_scaling
from tidegate_proxy.app.triton_scaling import ReplicaDemand, TritonUtilization
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.configuration.triton_sources import ScalingConfig
from tidegate_proxy.tritons.kubernetes_api import KubernetesApi

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
CALLERS = 4


class SimulatedCluster:
    """API server and a StatefulSet `triton`, in a thread: its pods are fake Tritons, each at an address of its own.

    A pod that goes ends at once, as one whose grace period is over: its EndpointSlice says so afterwards.
    """

    def __init__(self, start_fake: Make) -> None:
        self._start_fake = start_fake
        self.pods: list[Any] = [start_fake(echo, address="127.0.0.10:0")]
        self.port = int(self.pods[0].address.rpartition(":")[2])
        self.api_port = 0
        self.server: SimulatedApiServer
        self._started, self._stop = threading.Event(), False
        self.is_paused = False
        """Whether its pods stay, whatever the StatefulSet says."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._started.wait(60)

    def close(self) -> None:
        """End it."""
        self._stop = True
        self._thread.join()

    async def _run(self) -> None:
        async with serving_api() as (self.server, self.api_port):
            await self._tell()
            self._started.set()
            while not self._stop:
                while len(self.pods) < self.server.replicas and not self.is_paused:
                    self.pods.append(self._start_fake(echo, address=f"127.0.0.{10 + len(self.pods)}:{self.port}"))
                    await self._tell()
                while len(self.pods) > self.server.replicas and not self.is_paused:
                    self.pods.pop().stop()
                    await self._tell()
                await asyncio.sleep(0.01)

    async def _tell(self) -> None:
        endpoints = {
            f"127.0.0.{10 + ordinal}": {
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": f"triton-{ordinal}", "namespace": NAMESPACE},
            }
            for ordinal in range(len(self.pods))
        }
        await self.server.put("triton-abc", endpoints)


@pytest.fixture
def cluster(start_fake: Make) -> Iterator[SimulatedCluster]:
    """A cluster with one Triton."""
    simulated = SimulatedCluster(start_fake)
    yield simulated
    simulated.close()


def _config(
    cluster: SimulatedCluster, least: int, most: int, models: dict[str, Any] | None = None, **scaling: object
) -> Any:
    service = {
        "service": "triton",
        "namespace": NAMESPACE,
        "api": f"http://127.0.0.1:{cluster.api_port}",
        "scaling": {
            "statefulset": "triton",
            "min_replicas": least,
            "max_replicas": most,
            "interval_s": 0.05,
            **scaling,
        },
    }
    document = {
        "tritons": {"kubernetes": service, "port": cluster.port},
        "policy": "fifs",
        "listen": "127.0.0.1:0",
        "batch_verification": {"fraction": 0},
        "models": models or {},
        "drain_timeout_s": 5.0,
    }
    return read_config(flags=document)


class _IdleBackend:
    in_flight, open_calls = 0, frozenset[Any]()


def _in_use(proxy: Any) -> int:
    return len(proxy.serving.config.tritons)


def test_from_two_to_six_and_back_under_load_nothing_is_lost_and_nothing_is_tried_again(
    cluster: SimulatedCluster, start_proxy_here: Make, echo_load: Make, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = start_proxy_here(_config(cluster, 2, 2))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    outcomes = echo_load(proxy, CALLERS)
    for number in (6, 2):
        so_far = outcomes.total()
        eventually(lambda seen=so_far: outcomes.total() > seen + 100, "requests to be answered")
        proxy.run(proxy.serving.reconfigure(_config(cluster, number, number)))
        eventually(lambda wanted=number: _in_use(proxy) == wanted == len(cluster.pods), f"{number} Tritons")
        so_far = outcomes.total()
        eventually(lambda seen=so_far: outcomes.total() > seen + 100, "requests to be answered")
    assert set(outcomes) == {"right"}, outcomes
    assert "triton lost" not in caplog.text
    assert cluster.server.replicas == 2


def test_a_dry_run_asks_the_api_server_and_changes_nothing(
    cluster: SimulatedCluster, start_proxy_here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = start_proxy_here(_config(cluster, 3, 3, dry_run=True))
    eventually(lambda: "PATCH scale?dryRun=All" in cluster.server.asked, "a dry run")
    eventually(lambda: "scaling proposed (dry run)" in caplog.text, "a word on it")
    eventually(lambda: cluster.server.asked.count("PATCH scale?dryRun=All") > 5, "more of them")
    assert (cluster.server.replicas, _in_use(proxy)) == (1, 1)
    assert "PATCH scale" not in cluster.server.asked
    assert caplog.text.count("scaling proposed (dry run)") == 1


def test_what_the_api_server_refuses_is_said_once_and_the_tritons_that_were_to_leave_stay(
    cluster: SimulatedCluster, start_proxy_here: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = start_proxy_here(_config(cluster, 2, 2))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    answer_scale = cluster.server._answer_scale
    refused = threading.Event()

    async def refuse_patches(request: Any) -> Any:
        if request.method == "PATCH":
            refused.set()
            cluster.server.replicas_version += 1  # another client changed it first
        return await answer_scale(request)

    monkeypatch.setattr(cluster.server, "_answer_scale", refuse_patches)
    proxy.run(proxy.serving.reconfigure(_config(cluster, 1, 1)))
    assert refused.wait(60)
    words = "the API server answers 409 to "
    eventually(lambda: words in caplog.text, "a word on it")
    assert "something else has just changed it" in caplog.text
    monkeypatch.undo()
    eventually(lambda: _in_use(proxy) == 1 == len(cluster.pods), "one Triton")
    assert caplog.text.count(words) == 1


def test_pods_that_were_to_go_and_stay_after_all_are_used_again(
    cluster: SimulatedCluster, start_proxy_here: Make
) -> None:
    proxy = start_proxy_here(_config(cluster, 2, 2))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    cluster.is_paused = True
    proxy.run(proxy.serving.reconfigure(_config(cluster, 1, 1)))
    eventually(lambda: _in_use(proxy) == 1 == cluster.server.replicas, "one Triton")
    proxy.run(proxy.serving.reconfigure(_config(cluster, 2, 2)))
    eventually(lambda: _in_use(proxy) == 2 == cluster.server.replicas, "both Tritons again")


def test_tritons_that_cannot_leave_keep_their_pods(
    cluster: SimulatedCluster, start_proxy_here: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_scaling, "LEAVE_TIMEOUT_S", 0.1)
    proxy = start_proxy_here(_config(cluster, 2, 2))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    cluster.pods[0].stop()
    eventually(lambda: not all(each.alive for each in proxy.serving._discovery.backends), "the one to stay to be lost")
    asked = cluster.server.asked.count("PATCH scale")
    proxy.run(proxy.serving.reconfigure(_config(cluster, 1, 1)))
    eventually(lambda: "cannot leave (after 0.1 s)" in caplog.text, "a word on it")
    so_far = cluster.server.asked.count("GET scale")
    eventually(lambda: cluster.server.asked.count("GET scale") > so_far + 2, "more looks")
    assert (cluster.server.replicas, _in_use(proxy)) == (2, 2)
    assert cluster.server.asked.count("PATCH scale") == asked
    assert caplog.text.count("cannot leave (after 0.1 s)") == 1


def test_replicas_are_not_removed_for_a_load_that_is_not_measured(
    cluster: SimulatedCluster, start_proxy_here: Make
) -> None:
    models = {"echo": {"scheduling": "bypass"}}
    proxy = start_proxy_here(_config(cluster, 2, 2, models))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    proxy.run(proxy.serving.reconfigure(_config(cluster, 1, 2, models, stabilization_window_s=0.05)))
    so_far = cluster.server.asked.count("GET scale")
    eventually(lambda: cluster.server.asked.count("GET scale") > so_far + 10, "ten looks")
    assert (cluster.server.replicas, _in_use(proxy)) == (2, 2)


def test_idle_batch_workers_lose_replicas(cluster: SimulatedCluster, start_proxy_here: Make) -> None:
    proxy = start_proxy_here(_config(cluster, 2, 2))
    eventually(lambda: _in_use(proxy) == 2, "two Tritons")
    proxy.run(proxy.serving.reconfigure(_config(cluster, 1, 2, stabilization_window_s=0.05)))
    eventually(lambda: _in_use(proxy) == 1 == cluster.server.replicas, "one Triton")


def test_another_configuration_is_scaled_once_the_former_has_ended(
    cluster: SimulatedCluster, start_proxy_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[str] = []

    class SlowApi(KubernetesApi):
        async def __aenter__(self) -> Any:
            moments.append("begins")
            return await super().__aenter__()

        async def __aexit__(self, *_: object) -> None:
            for _number in range(100):
                await asyncio.sleep(0)
            await super().__aexit__()
            moments.append("ends")

    monkeypatch.setattr(triton_scaling, "KubernetesApi", SlowApi)
    proxy = start_proxy_here(_config(cluster, 1, 1))
    for number in (2, 1):
        proxy.run(proxy.serving.reconfigure(_config(cluster, number, number)))
        eventually(lambda wanted=number: _in_use(proxy) == wanted, f"{number} Tritons")
    proxy.stop()
    assert moments == ["begins", "ends"] * 3


@pytest.mark.parametrize(
    ("slots", "seen"),
    [("echo", (1.0, False)), ("gated", (0.0, True))],
    ids=["a batch beside idle slots", "a slot beside idle batches"],
)
def test_busy_workers_count_and_slots_do_not(
    triton: Any, serve_here: Make, jam: Make, slots: str, seen: tuple[float, bool]
) -> None:
    proxy = serve_here([triton], models={slots: {"scheduling": "bypass", "max_concurrency": 32}})
    release = jam(proxy)
    tritons, metrics = proxy.serving._tritons, proxy.serving.driver.observability.metrics
    assert len(metrics.counts.workers) > 32
    utilization = proxy.in_loop(lambda: TritonUtilization(tritons, metrics, time.monotonic_ns()))
    assert proxy.in_loop(lambda: utilization.look(time.monotonic_ns())) == seen
    release()
    eventually(
        lambda: proxy.in_loop(lambda: utilization.look(time.monotonic_ns())) == (0.0, False), "all of it to be idle"
    )


@pytest.mark.parametrize(
    ("busy_s", "gpus", "busy"),
    [
        ([[5]], 1, 0.5),
        ([[10, 0, 0, 0]], 1, 1.0),  # models that nobody asks for
        ([[5, 5]], 1, 0.75),
        ([[5, 5]], 2, 0.5),  # one on each
        ([[10], [0]], 1, 0.5),
        ([[12], [-1]], 1, 0.5),
    ],
)
def test_the_busy_fraction_is_the_mean_of_the_tritons(busy_s: list[list[float]], gpus: int, busy: float) -> None:
    """`busy_s`: seconds out of ten, by Triton and worker."""
    backends = [_IdleBackend() for _ in busy_s]
    numbered = {10 * triton + place: spent for triton, each in enumerate(busy_s) for place, spent in enumerate(each)}
    workers = {number: SimpleNamespace(busy_ns=7) for number in numbered}

    class Simulated:
        def batch_workers(self) -> Any:
            return {each: [n for n in numbered if n // 10 == place] for place, each in enumerate(backends)}

        def gpus_of(self, _backend: object) -> int:
            return gpus

        def running_ns(self, _now_ns: int) -> dict[int, int]:
            return {}

    tritons: Any = Simulated()
    metrics: Any = SimpleNamespace(counts=SimpleNamespace(workers=workers))
    utilization = TritonUtilization(tritons, metrics, 0)
    for number, spent_s in numbered.items():
        workers[number].busy_ns += int(spent_s * 1e9)
    seen, is_partial = utilization.look(10_000_000_000)
    assert seen == pytest.approx(busy)
    assert not is_partial
    for number in [each for each in numbered if each < 10]:
        del workers[number]
    assert utilization.look(20_000_000_000)[1], "a Triton of which nothing is known"


@pytest.mark.parametrize(
    ("replicas", "ready", "busy", "advised", "wanted"),
    [
        (4, 4, 0.75, 0, 4),
        (4, 4, 0.8, 0, 4),  # within 10 % of the target
        (4, 4, 0.9, 0, 5),
        (4, 4, 1.0, 0, 6),
        (4, 4, 1.0, 9, 8),  # at most
        (4, 4, 0.2, 3, 7),  # the policy's advice counts, if it asks for more
        (4, 4, 0.2, 0, 2),
        (4, 4, 0.0, 0, 2),  # at least
        (4, 3, 0.1, 0, 4),  # one is starting
        (1, 1, 0.0, 0, 2),
        (9, 9, 0.0, 0, 2),
    ],
)
def test_the_number_follows_utilization_and_advice_within_its_bounds(
    replicas: int, ready: int, busy: float, advised: int, wanted: int
) -> None:
    demand = ReplicaDemand(ScalingConfig(statefulset="triton", min_replicas=2, max_replicas=8))
    demand.replicas(0.0, 2, 2, 0.0, 0)
    assert demand.replicas(1000.0, replicas, ready, busy, advised) == wanted


@pytest.mark.parametrize(
    ("replicas", "busy", "wanted"), [(4, 0.0, 4), (4, 0.2, 4), (4, 0.9, 5), (9, 0.0, 8), (1, 0.0, 2)]
)
def test_load_that_is_not_measured_keeps_the_replicas(replicas: int, busy: float, wanted: int) -> None:
    demand = ReplicaDemand(ScalingConfig(statefulset="triton", min_replicas=2, max_replicas=8))
    demand.replicas(0.0, 2, 2, 0.0, 0)
    assert demand.replicas(1000.0, replicas, replicas, busy, 0, is_partial=True) == wanted
    assert demand.replicas(1001.0, wanted, wanted, 0.0, 0) == wanted, "within the stabilization window, too"


def test_fewer_replicas_only_after_the_stabilization_window() -> None:
    demand = ReplicaDemand(ScalingConfig(statefulset="triton", max_replicas=8, stabilization_window_s=60.0))
    assert demand.replicas(0.0, 4, 4, 0.9, 0) == 5
    assert [demand.replicas(at_s, 5, 5, 0.1, 0) for at_s in (15.0, 30.0, 60.0)] == [5, 5, 5]
    assert demand.replicas(61.0, 5, 5, 0.1, 0) == 1
    after_a_restart = ReplicaDemand(ScalingConfig(statefulset="triton", max_replicas=8, stabilization_window_s=60.0))
    assert [after_a_restart.replicas(at_s, 5, 5, 0.1, 0) for at_s in (0.0, 60.0, 61.0)] == [5, 5, 1]


def test_bounds_that_cannot_be_are_refused() -> None:
    scaling = {"statefulset": "triton", "min_replicas": 4, "max_replicas": 2}
    source = {"kubernetes": {"service": "triton", "scaling": scaling}}
    with pytest.raises(ConfigError, match="max_replicas: 2 is less than min_replicas, 4"):
        read_config(flags={"tritons": source})
