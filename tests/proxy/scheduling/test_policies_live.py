"""A policy that breaks, and the log of a live run replayed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import SHARDS
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.clients import infer_all, tensors
from tidegate.host import Plugins
from tidegate.observation import read_log
from tidegate.sim.replay import replay
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
BREAKS = """
from tidegate.api import PolicySpec, hookimpl
from tidegate.toolkit import FirstComeFirstServed

class Breaks(FirstComeFirstServed):
    arrivals = 0

    def on_request_arrived(self, event):
        self.arrivals += 1
        if self.arrivals == 20:
            raise RuntimeError("out of wits")
        return super().on_request_arrived(event)

@hookimpl
def tidegate_policies():
    return [PolicySpec("breaks", "Breaks at the twentieth request.", Breaks)]
"""


def _asked(count: int) -> list[dict[str, Any]]:
    return [{"inputs": tensors({"X": np.full((1, 3), index, np.float32)})} for index in range(count)]


def test_a_policy_that_raises_loses_no_request(
    triton: EmbeddedTriton, start_tidegate: Make, connect: Make, tmp_path: Path
) -> None:
    # As pip would have installed it.
    (tmp_path / "breaks.py").write_text(BREAKS)
    metadata = tmp_path / "tidegate_breaks-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate-breaks\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[tidegate]\nbreaks = breaks\n")
    tidegate = start_tidegate([triton], policy="breaks", environment={"PYTHONPATH": str(tmp_path)})
    answers = infer_all(connect(tidegate), "echo", _asked(60))
    assert [answer.as_numpy("Y")[0, 0] for answer in answers] == list(range(60))
    reason = "policy failed, scheduling first come, first served: Breaks: RuntimeError: out of wits (policy=breaks"
    assert tidegate.log.count(reason) == 1
    assert tidegate.stop() == {"accepted": 60, "answered": 60, "late": 0, "failed": 0, "cancelled": 0}


def test_a_recorded_run_replayed_gives_the_same_commands(
    triton: EmbeddedTriton, policy: str, start_tidegate: Make, connect: Make, tmp_path: Path, transport_of_tests: str
) -> None:
    if transport_of_tests == SHARDS:
        pytest.skip("each shard has a record of its own")
    path = tmp_path / "log"
    # Some SLOs are met and some are not, profiles are learned, timers fire.
    tidegate = start_tidegate([triton], policy=policy, event_log=path, slo=["echo=30", "mixer=1000"], seed=5)
    client = connect(tidegate)
    for _ in range(3):
        infer_all(client, "echo", _asked(100))
        infer_all(client, "picky", _asked(20))
    tally = tidegate.stop()
    assert tally["accepted"] == 360
    with path.open("rb") as lines:
        header, entries = read_log(lines)
        fresh = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        found = replay(header, entries, fresh)
    assert found.difference is None
    assert found.events > tally["accepted"], "answers are events too"


def test_a_model_without_a_profile_is_served_at_low_load(
    triton: EmbeddedTriton, start_tidegate: Callable[..., Any], call: Callable[..., Any]
) -> None:
    """One more row is expected to take 0.05 ms: less than it may take to be woken, and still nobody is dropped."""
    tidegate = start_tidegate([triton], policy="symphony", slo=["echo=100"])
    for _ in range(10):
        code, details = call(tidegate, "ModelInfer", request_of("echo", {"X": np.ones((1, 3), np.float32)}))
        assert code is grpc.StatusCode.OK, details
