"""Two policies in one Tidegate, each for the models of a Triton."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.command_line import invoke
from tests.conftest import SHARDS
from tests.proxy.fixtures.clients import infer_all, tensors
from tests.proxy.fixtures.models import add_model
from tidegate.host import Plugins
from tidegate.observation import read_log
from tidegate.sim.replay import replay
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]


def _configured(folder: Path, tritons: list[EmbeddedTriton], *parts: dict[str, Any]) -> Path:
    file = folder / "tidegate.yaml"
    policy = {"name": "by-model", "options": {"parts": list(parts)}}
    file.write_text(yaml.safe_dump({"tritons": [each.grpc_address for each in tritons], "policy": policy}))
    return file


def test_each_policy_serves_its_models_and_the_run_can_be_replayed(
    triton: EmbeddedTriton,
    start_triton: Make,
    start_tidegate: Make,
    connect: Make,
    tmp_path: Path,
    transport_of_tests: str,
) -> None:
    if transport_of_tests == SHARDS:
        pytest.skip("each shard has an engine of its own")
    add_model(tmp_path / "models", "apart", "max_batch_size: 4")
    other = start_triton([tmp_path / "models"])
    parts = {"models": ["ap*"], "policy": "symphony"}, {"models": ["*"], "policy": "timeout"}
    config = _configured(tmp_path, [triton, other], *parts)
    record = tmp_path / "log"
    tidegate = start_tidegate([], config=config, event_log=record, slo=["apart=2000", "echo=2000"])
    client = connect(tidegate)
    for model in ("apart", "echo", "picky") * 2:
        asked = [{"inputs": tensors({"X": np.full((1, 3), index, np.float32)})} for index in range(30)]
        assert [answer.as_numpy("Y")[0, 0] for answer in infer_all(client, model, asked)] == list(range(30))
    assert tidegate.stop()["accepted"] == 180
    with record.open("rb") as lines:
        header, entries = read_log(lines)
        fresh = Plugins.installed().make_policy(header.policy, header.setup, header.options)
        assert replay(header, entries, fresh).difference is None
    assert "was replaced" not in tidegate.log


def test_a_triton_with_models_of_two_parts_is_refused_with_the_remedy(
    triton: EmbeddedTriton, start_tidegate: Make, tmp_path: Path
) -> None:
    parts = {"models": ["echo"], "policy": "symphony"}, {"models": ["*"], "policy": "timeout"}
    with pytest.raises(Exception, match="for which different parts decide: let one part name"):
        start_tidegate([], config=_configured(tmp_path, [triton], *parts))


def test_check_tells_beforehand_what_serve_would_refuse(triton: EmbeddedTriton, tmp_path: Path) -> None:
    parts = {"models": ["echo"], "policy": "symphony"}, {"models": ["*"], "policy": "timeout"}
    checked = invoke("check", _configured(tmp_path, [triton], *parts), "--online")
    assert checked.exit_code == 1
    assert "for which different parts decide: let one part name" in checked.output
    assert "`serve` does not start" in checked.output
