"""Two shards that shadow mode is switched on for while they serve: what is in force outlives each of their
processes."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.command_line import invoke
from tests.conftest import Tidegate, eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.frontends.supervisor import FRONTEND, SHARD
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1.0, 2.0]], np.float32)
MODELS = [["ant", "ape"], ["bee"]]


@pytest.fixture(scope="module")
def tritons(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> list[EmbeddedTriton]:
    """One for each shard."""
    started = []
    for names in MODELS:
        repository = tmp_path_factory.mktemp("models")
        for name in names:
            add_model(repository, name, "max_batch_size: 4")
        started.append(start_triton([repository]))
    return started


def _write(folder: Path, tritons: list[EmbeddedTriton], shards: int = 2, **fields: object) -> Path:
    file = folder / "tidegate.yaml"
    document = {
        "shards": [{"tritons": [triton.grpc_address]} for triton in tritons[:shards]],
        "frontends": 1,
        "listen": {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
        "models": {"ant": {"slo_ms": 60_000}},
    }
    file.write_text(yaml.safe_dump({**document, **fields}))
    return file


def _page(tidegate: Tidegate, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Any:
    found = re.search(r"metrics +(\S+)/metrics\n", tidegate.output)
    assert found, tidegate.output
    asked = urllib.request.Request(f"http://{found[1]}/{path}", headers=headers or {}, method=method)
    return urllib.request.urlopen(asked, timeout=60)


def _shadows(tidegate: Tidegate) -> dict[str, dict[str, Any]]:
    try:
        with _page(tidegate, "shadow") as answer:
            return dict(json.load(answer)["shards"])
    except OSError:  # the frontend is being started
        return {}


def test_who_is_started_again_has_what_is_in_force_and_not_what_the_file_says(
    start_tidegate: Make, tritons: list[EmbeddedTriton], tmp_path: Path, call: Make
) -> None:
    file = _write(tmp_path, tritons, policy="fifs")
    tidegate = start_tidegate([], config=file)
    _write(tmp_path, tritons, policy="fifs", shadow=True)
    os.kill(tidegate.pid, signal.SIGHUP)
    eventually(lambda: all(told["shadow"] for told in _shadows(tidegate).values()), "shadow mode of both")
    eventually(lambda: len(_shadows(tidegate)) == 2, "both to answer")
    file.write_text("half wri: [")  # nobody has asked for that yet
    for title, which in ((SHARD, 1), (FRONTEND, 0)):
        (killed) = tidegate.children(title)[which]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda killed=killed, title=title: killed not in tidegate.children(title), "its end")
        eventually(lambda: len(_shadows(tidegate)) == 2, "another in its place")
        assert all(told["shadow"] for told in _shadows(tidegate).values())
    for name in ("ant", "bee"):
        assert call(tidegate, "ModelInfer", request_of(name, {"X": ROW}))[0].name == "OK"
    assert "configuration applied (changed=shadow, shard=1)" in tidegate.log, "which shard says so"
    with _page(tidegate, "models") as answer:
        assert {row["name"]: row["shard"] for row in json.load(answer)} == {"ant": 0, "ape": 0, "bee": 1}
    with _page(tidegate, "models", method="HEAD") as answer:
        assert (answer.status, answer.read()) == (200, b"")
    tally = tidegate.stop()
    assert tally["accepted"] == 0, "nothing was scheduled"


def test_the_dashboard_of_one_shard_behind_frontends_goes_on_and_on(
    start_tidegate: Make, tritons: list[EmbeddedTriton], tmp_path: Path
) -> None:
    tidegate = start_tidegate([], config=_write(tmp_path, tritons, shards=1))
    with _page(tidegate, "dashboard/events", {"X-Tidegate-Page": "1"}) as events:
        assert [events.readline()[:5] for _ in range(4)].count(b"data:") == 2
    with _page(tidegate, "shadow") as answer:
        assert json.load(answer)["shadow"] is False, "as it is asked for without shards"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _page(tidegate, "dashboard/hello")


@pytest.mark.parametrize("command", [["check", "--online"], ["doctor"]])
def test_a_policy_that_a_shard_refuses_is_told_of_beforehand_with_the_shard(
    command: list[str], tritons: list[EmbeddedTriton], tmp_path: Path
) -> None:
    parts = [{"models": ["ape"], "policy": "fifs"}, {"models": ["*"], "policy": "symphony"}]
    policy = {"name": "by-model", "options": {"parts": parts}}
    file = _write(tmp_path, tritons[::-1], policy=policy, listen={"grpc": "127.0.0.1:0"})
    done = invoke(command[0], file, *command[1:])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "shard 1: policy 'by-model': worker " in said
    assert "hosts 'ant' and 'ape', for which different parts decide" in said
