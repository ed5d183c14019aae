"""Shards in a configuration: whose Tritons are whose, and what is told of what makes no sense."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.host import Plugins
from tidegate_proxy.app.config_check import check_offline
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import ConfigError, assignment_of, of_shard, read_config

SHARDS: list[dict[str, Any]] = [{"tritons": ["a:1", "b:1"]}, {"tritons": ["c:1"]}]


def _read(folder: Path, **fields: object) -> ServeConfig:
    path = folder / "tidegate.yaml"
    path.write_text(yaml.safe_dump({"shards": SHARDS, "frontends": 1, **fields}))
    return read_config(path)


def test_each_shard_has_its_tritons_and_a_record_of_its_own(tmp_path: Path) -> None:
    config = _read(tmp_path, event_log="log.jsonl")
    assert [triton.grpc for triton in config.tritons] == ["a:1", "b:1", "c:1"]
    second = of_shard(config, 1, 2)
    assert [triton.grpc for triton in second.tritons] == ["c:1"]
    assert second.event_log == tmp_path / "log.shard1.jsonl"
    with pytest.raises(ConfigError, match="only a restart changes that"):
        of_shard(config, 1, 3)


def test_each_shard_may_have_a_layout_of_its_own(tmp_path: Path) -> None:
    worker = {"grpc": "a:1", "worker": "w"}
    (tmp_path / "layout.json").write_text("{}")
    config = _read(tmp_path, shards=[{"tritons": [worker], "layout": "layout.json"}, {"tritons": ["b:1"]}])
    assert of_shard(config, 0, 2).layout == tmp_path / "layout.json"
    assert of_shard(config, 1, 2).layout is None
    with pytest.raises(ConfigError, match=r"shards\.1\.tritons\.0\.worker: with a layout every Triton is one of its"):
        _read(
            tmp_path, shards=[{"tritons": [worker], "layout": "layout.json"}, {"tritons": [{**worker, "grpc": "b:1"}]}]
        )
    with pytest.raises(ConfigError, match=r"give each shard its own, shards\.N\.layout"):
        _read(tmp_path, layout="layout.json")


def test_a_plan_of_the_planner_says_which_model_is_whose(tmp_path: Path) -> None:
    plan = {"kind": "subclusters", "objective": 1.0, "bound": None, "subclusters": [], "assignment": {"m": 1, "n": 0}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert assignment_of(_read(tmp_path, plan="plan.json")) == {"m": 1, "n": 0}
    plan["assignment"] = {"m": 2}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (problem,) = check_offline(_read(tmp_path, plan="plan.json"), Plugins.installed())
    assert "assignment.m: sub-cluster 2 is no shard" in str(problem)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tritons": ["d:1"]}, "tritons: each shard has Tritons of its own"),
        ({"frontends": 0}, "frontends: clients of several shards are connected to frontends"),
        ({"shards": [], "tritons": ["a:1"], "plan": "tidegate.yaml"}, "plan: it says which shard"),
        ({"shards": [{"tritons": []}]}, "shards.0.tritons"),
        ({"shards": [*SHARDS, {"tritons": ["a:1"]}]}, "a:1 stands there 2 times"),
        ({"shards": [{**SHARDS[0], "address": "h:1"}, SHARDS[1]]}, "either all of them have an `address`"),
        ({"shards": [{**SHARDS[0], "address": "h:1"}]}, "set shard_links.secret_file, shard_links.tls or both"),
        ({"shards": [{**SHARDS[0], "listen": "0.0.0.0:1"}]}, "no frontend connects from another machine"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _read(tmp_path, **fields)
