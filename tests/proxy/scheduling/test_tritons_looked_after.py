"""A fault in what looks after the Tritons only delays that: they are taken back, and who waits is told."""

from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.examples import few
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.injected import LIMIT_S, OK, ROW, Fault, Make, Refusing, places
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.scheduling.clock import LiveEngine
from tidegate_proxy.scheduling.in_flight import RunningStages
from tidegate_proxy.scheduling.membership import Membership

LOOKING_AFTER = (
    "tidegate_proxy.tritons.backend",
    "tidegate_proxy.tritons.catalog",
    "tidegate_proxy.service.discovery",
    "tidegate_proxy.scheduling.membership",
)
AT_THE_START_OR_THE_END = {
    *("close", "retire", "starting_profiles", "watch", "look_around", "change"),
    *("look_at", "_guarded"),
}
"""And what catches what the others raise."""


@pytest.mark.parametrize("nth", few([1, 2]))
@pytest.mark.parametrize("module", LOOKING_AFTER)
def test_a_task_that_fails_once_goes_on(
    module: str, nth: int, start_fake: Make, start_proxy_here: Make, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Triton goes away and comes back, and has another version of its model; a fault only delays that."""
    monkeypatch.setattr("tidegate_proxy.service.discovery.EVERY_S", 0.02)
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 0.05)
    triton = Refusing()
    fake = start_fake(triton)
    flags = {"tritons": [fake.address], "policy": {"name": "fifs"}, "listen": {"grpc": "127.0.0.1:0"}}
    proxy = start_proxy_here(read_config(flags={**flags, "drain_timeout_s": 0.0, "limits": {"health_timeout_s": 0.2}}))
    answers = dict(fake.answers)
    newer = service_pb2.RepositoryIndexResponse.FromString(answers["RepositoryIndex"])
    newer.models[0].version = "2"

    def infers() -> bool:
        return call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=LIMIT_S)[0] is OK

    for where, owner, name in sorted(places((module,)), key=lambda place: place[0]):
        if name in AT_THE_START_OR_THE_END:
            continue
        backend = proxy.serving._discovery.backends[0]
        with monkeypatch.context() as patched:
            Fault().set(patched, owner, name, nth)
            for gone in ("ServerLive", "ServerReady"):
                fake.answers.pop(gone, None)
            eventually(lambda b=backend: not b.alive, f"the Triton to be given up, with a fault in {where}")
            fake.answers |= {**answers, "RepositoryIndex": newer.SerializeToString()}
            eventually(infers, f"it to be taken back, with a fault in {where}")
            directory = proxy.serving._directory
            for wanted in ("2", "1"):
                eventually(
                    lambda version=wanted, known=directory: known.catalog.versions["echo"] == (version,),
                    f"version {wanted} to be seen, with a fault in {where}",
                )
                fake.answers |= answers


GIVES_UP = (
    (RunningStages, "forget"),
    (RunningStages, "forget_stranded"),
    (LiveEngine, "handle"),
    (Membership, "_part_with_strays"),
    (Membership, "_withdraw"),
    (Membership, "give_up"),
)


@pytest.mark.parametrize(("owner", "name"), GIVES_UP, ids=[name for _, name in GIVES_UP])
def test_who_waits_for_a_triton_that_is_given_up_is_told_though_that_failed_once(
    owner: Any, name: str, start_fake: Make, start_proxy_here: Make, start_call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.EVERY_S", 0.02)
    triton = Refusing()
    triton.go_on.clear()
    fake = start_fake(triton)
    flags = {
        "tritons": [fake.address],
        "policy": {"name": "fifs"},
        "listen": {"grpc": "127.0.0.1:0"},
        "drain_timeout_s": 0.0,
    }
    proxy = start_proxy_here(read_config(flags=flags))
    request = request_of("echo", {"X": ROW})
    calls = [start_call(proxy, "ModelInfer", request, timeout=LIMIT_S) for _ in range(8)]
    eventually(lambda: proxy.engine.tally.accepted == 8, "all of them to wait")
    fault = Fault()
    fault.set(monkeypatch, owner, name, 1)
    for gone in ("ServerLive", "ServerReady"):
        fake.answers.pop(gone)
    assert {outcome(one)[0] for one in calls} == {grpc.StatusCode.UNAVAILABLE}
    assert fault.raised
    assert (proxy.engine.queued, proxy.engine.in_flight, len(proxy.serving.driver.running)) == (0, 0, 0)
    triton.go_on.set()
