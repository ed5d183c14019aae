"""What is asked of Ray for a deployment, what its shards and frontends are told, and what is said of what cannot be."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.proxy.deployed.test_deployed import run
from tests.proxy.on_ray.deployment import layout, write_deployment
from tidegate.schemas import Layout, Mps
from tidegate_proxy.configuration.config_file import ConfigError, of_shard, read_config
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.folder import DeploymentError, read_plan
from tidegate_proxy.on_ray.actors import own_folder
from tidegate_proxy.on_ray.plan import RayPlan, plan_for_ray
from tidegate_proxy.on_ray.role_configs import SECRET_FILE, Document, RoleConfigs, files_of_shard, named_files
from tidegate_proxy.on_ray.session import serve_on_ray


def plan(folder: Path, *takes: str, of: Layout | None = None, shards: int = 2, **config: Any) -> RayPlan:
    return plan_for_ray(read_plan(write_deployment(folder, of or layout("ant", "cat"), **config)), shards, 1, takes)


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ((), [{"CPU": 1}, {"CPU": 1}]),
        (("GPU=1",), [{"GPU": 1}, {"GPU": 1}]),
        (("CPU=2", "T4,GPU=1,accelerator_type:T4=0.001"), [{"GPU": 1, "accelerator_type:T4": 0.001}, {"CPU": 2}]),
    ],
)
def test_a_device_takes_what_is_said_of_its_product(
    tmp_path: Path, takes: tuple[str, ...], expected: list[dict[str, float]]
) -> None:
    whole = layout("ant", "cat")
    ant, cat = whole.workers
    ant = ant.model_copy(update={"device": type(ant.device)("here", 0, "T4")})
    found = plan(tmp_path, *takes, of=whole.model_copy(update={"workers": (ant, cat)}))
    assert [device.takes for device in found.devices] == expected
    assert [(device.name, device.shard) for device in found.devices] == [("here/0", 0), ("here/1", 1)]


@pytest.mark.parametrize(
    ("takes", "config", "says"),
    [
        (("GPU",), {}, "--takes GPU: it names no resource"),
        (("GPU=none",), {}, "--takes GPU=none: 'GPU=none' is not RESOURCE=AMOUNT, as in GPU=1"),
        (("T4,GPU=-1",), {}, "'GPU=-1' is not RESOURCE=AMOUNT"),
        ((), {"event_log": "log.jsonl"}, "event_log: it would go with the node of its shard: leave it out"),
        (
            (),
            {"shard_links": {"secret_file": "tidegate.yaml"}},
            "shard_links.secret_file: on Ray each start makes a secret",
        ),
        ((), {"controller": {"name": "replan"}}, "controller: on Ray workers come and go as nodes do"),
    ],
)
def test_what_cannot_be_placed_is_told(
    tmp_path: Path, takes: tuple[str, ...], config: dict[str, Any], says: str
) -> None:
    with pytest.raises((DeploymentError, ConfigError), match=says.replace("(", r"\(").replace(".", r"\.")):
        plan(tmp_path, *takes, **config)


def test_a_share_of_a_gpu_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    whole = layout("ant")
    (worker,) = whole.workers
    shared = whole.model_copy(update={"workers": (worker.model_copy(update={"slice": Mps(percent=50)}),)})
    assert plan(tmp_path / "one", of=shared).devices[0].takes == {"CPU": 1}
    with pytest.raises(DeploymentError, match="worker 'on-ant' has a part of a GPU, and Ray lends whole ones alone"):
        plan(tmp_path / "two", "GPU=1", of=shared)


def test_each_shard_and_frontend_gets_a_configuration_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "tokens.json").write_text("{}")
    found = plan(
        tmp_path / "from", frontends=3, shard_links={"reconnect_timeout_s": 4}, listen="0.0.0.0:8101", drain_timeout_s=5
    )
    documents = RoleConfigs(found)
    there = tmp_path / "there"
    there.mkdir()
    (there / SECRET_FILE).write_text("0123456789abcdef")
    for name, content in files_of_shard(found.layouts[1]).items():
        (there / name).write_bytes(content)

    def read(document: Document) -> Any:
        (there / "tidegate.yaml").write_text(yaml.safe_dump(dict(document)))
        return read_config(there / "tidegate.yaml")

    cat = TritonAddress(grpc="n1:1", http="n1:2", metrics="n1:3", worker="on-cat")
    shard = of_shard(read(documents.of_shard({"on-cat": cat}, "n1:9")), 0, 1)
    assert shard.tritons == (cat,)
    assert shard.layout and Layout.model_validate_json(shard.layout.read_bytes()) == found.layouts[1]
    assert (shard.shards[0].address, shard.drain_timeout_s, shard.shard_links.reconnect_timeout_s) == ("n1:9", 5, 4)
    frontend = read(documents.of_frontend(["n0:9", "n1:9"]))
    assert [each.address for each in frontend.shards] == ["n0:9", "n1:9"]
    assert (frontend.frontends, frontend.listen.grpc, frontend.listen.reuse_port) == (3, "0.0.0.0:8101", True)


def test_the_files_that_a_configuration_names_go_along(tmp_path: Path) -> None:
    found = plan(tmp_path, tls={"cert": "layout.json", "key": "deployment.json"})
    assert {path.name for path in named_files(found.deployment.config)} == {"layout.json", "deployment.json"}


def test_ray_is_an_extra_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeploymentError, match=r'--ray auto: .*; pip install "tidegate\[ray\]"'):
        serve_on_ray(plan(tmp_path), "auto", lambda event: None)
    result = run("up", tmp_path, "--shards", 2)
    assert (result.exit_code, "give that, too" in result.stderr) == (1, True)


def test_what_a_killed_actor_has_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "tidegate-ray-left"
    left.mkdir()
    (left / "lock").touch()
    mine = own_folder()
    assert not left.exists()
    other = own_folder()
    assert mine.is_dir() and other.is_dir() and mine != other
