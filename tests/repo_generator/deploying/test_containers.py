"""Slices as containers get them: Compose and Kubernetes, judged by their own schemas."""

import json
import os
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.testing import Result

from tests.repo_generator.deploying.compose_schema import COMPOSE
from tests.repo_generator.deploying.sliced_layout import LAYOUT
from tidegate.schemas import Layout, read_document
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_repo_generator.deploying.places import can_name_kubernetes_node

Run = Callable[..., Result]


def test_compose_gives_every_container_its_slice(out: Path) -> None:
    files = {path.parent.name: path for path in (out / "compose").glob("*/compose.yaml")}
    assert set(files) == {"a", "b"}
    for file in files.values():
        jsonschema.validate(yaml.safe_load(file.read_text()), COMPOSE)
    services = yaml.safe_load(files["a"].read_text())["services"]
    devices = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"][0]
        for name, service in services.items()
    }
    assert devices.pop("four") == "${TIDEGATE_FOUR:?run tidegate mig env}"
    assert devices.pop("share-0") == "${TIDEGATE_SHARE_0:?run tidegate mig env}"
    assert (devices["whole"], devices["third"], devices["rest"]) == ("1", "2", "2")
    for name, service in services.items():
        assert service["environment"]["TIDEGATE_DEVICE"] == "visible"
        (mounted,) = (volume for volume in service["volumes"] if volume.endswith(":/deployment"))
        script = service["command"][0].replace(
            "/deployment", str((files["a"].parent / mounted.split(":")[0]).resolve())
        )
        assert Path(script).is_file()
        assert name.endswith("-build") == (service.get("profiles") == ["build"]) == script.endswith(".build.sh")
    assert services["third"]["user"] == services["rest"]["user"] == "${TIDEGATE_USER:-0:0}"
    assert services["third"]["environment"]["TIDEGATE_MPS"] == services["third"]["volumes"][1].split(":")[-1]


def test_a_worker_may_be_called_like_the_building_of_another(run: Run, tmp_path: Path) -> None:
    layout = deepcopy(LAYOUT)
    layout["workers"][3]["name"] = "four-build"
    assert run(layout, "--deploy-target", "tensorrt").exit_code == 0
    services = yaml.safe_load((tmp_path / "out" / "compose" / "a" / "compose.yaml").read_text())["services"]
    commands = {name: service["command"][0].rpartition("/")[2] for name, service in services.items()}
    assert (commands["four"], commands["four-build"]) == ("four.sh", "four-build.sh")
    assert (commands["four-build-2"], commands["four-build-build"]) == ("four.build.sh", "four-build.build.sh")


def documents(out: Path, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((out / "kubernetes" / name).read_text()))


def test_kubernetes_takes_its_objects(out: Path) -> None:
    assert "&id" not in (out / "kubernetes" / "workers.yaml").read_text(), "people read it"
    for document in documents(out, "workers.yaml") + documents(out, "tidegate.yaml"):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_pod_for_each_slice_and_one_for_all_who_share(out: Path) -> None:
    objects = documents(out, "workers.yaml")
    deployments = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Deployment"}
    asked = {}
    for name, spec in deployments.items():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        (builder,) = pod["initContainers"]
        assert builder["resources"] == container["resources"]
        ((resource, count),) = container["resources"]["limits"].items()
        assert count == 1
        asked[name] = (pod["nodeSelector"]["kubernetes.io/hostname"], resource)
        for command in (container["command"][0], *re.findall(r"/deployment\S+", builder["command"][2])):
            assert os.access(str(out) + command.removeprefix("/deployment"), os.X_OK)
    ones = {f"worker-one-{n}": ("b", "nvidia.com/mig-1g.5gb") for n in range(6)}
    assert asked == ones | {
        "worker-four": ("a", "nvidia.com/mig-4g.20gb"),
        "worker-share-0": ("a", "nvidia.com/mig-3g.20gb"),
        "worker-whole": ("a", "nvidia.com/gpu"),
        "worker-third": ("a", "nvidia.com/gpu"),
        "worker-media": ("b", "nvidia.com/mig-1g.5gb.me"),
        "worker-seven": ("b", "nvidia.com/mig-7g.40gb"),
    }
    (container,) = deployments["worker-share-0"]["template"]["spec"]["containers"]
    assert container["command"] == ["/deployment/mps/gpu-0-3g.20gb-4.sh", "run"]


def test_nodes_are_called_as_they_are(run: Run, tmp_path: Path) -> None:
    """Planners invent names. No pod is bound to one that Kubernetes cannot have: it would wait for ever."""
    layout = deepcopy(LAYOUT)
    invented = {"a": "A100-40GB-node-0", "b": "A100-40GB-node-1"}
    for each in layout["workers"]:
        each["device"]["node"] = invented[each["device"]["node"]]
    result = run(layout, "--deploy-target", "triton")
    assert result.exit_code == 0, result.stderr
    for node in invented.values():
        assert f"no node of Kubernetes can be called {node!r}" in result.stderr
        assert f"say which it is with --node {node}=NAME" in result.stderr
    out = tmp_path / "out"
    pods = [each["spec"]["template"]["spec"] for each in documents(out, "workers.yaml") if each["kind"] == "Deployment"]
    assert pods
    assert not any("nodeSelector" in pod for pod in pods)
    real = [f"--node={invented['a']}=gpu-1.example", f"--node={invented['b']}=gpu-2"]
    result = run(layout, "--deploy-target", "triton", "--force", "--host", "gpu-2=10.0.0.2", *real)
    assert (result.exit_code, result.stderr) == (0, "")
    pods = [each["spec"]["template"]["spec"] for each in documents(out, "workers.yaml") if each["kind"] == "Deployment"]
    assert {pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods} == {"gpu-1.example", "gpu-2"}
    assert {path.name for path in (out / "compose").iterdir()} == {"gpu-1.example", "gpu-2"}
    assert {path.name for path in (out / "mig").iterdir()} == {"gpu-1.example.yaml", "gpu-2.yaml"}
    nodes = {worker.device.node for worker in read_document(out / "layout.json", Layout).workers}
    assert nodes == {"gpu-1.example", "gpu-2"}


@pytest.mark.parametrize(
    ("can", "names"),
    [
        (True, ["gpu-1", "10.0.0.1", "a" * 63]),
        (False, ["a" * 64, "Gpu", "a b", "-a", "a.", "a..b", "", "a\n", "$(date)"]),
    ],
)
def test_what_kubernetes_may_call_a_node(can: bool, names: list[str]) -> None:
    assert [name for name in names if can_name_kubernetes_node(name) != can] == []


def test_the_proxy_finds_every_worker_at_its_service(out: Path) -> None:
    services = {each["metadata"]["name"]: each for each in documents(out, "workers.yaml") if each["kind"] == "Service"}
    config, deployment, service = documents(out, "tidegate.yaml")
    read = ServeConfig.model_validate_json(json.dumps(yaml.safe_load(config["data"]["tidegate.yaml"])))
    assert [triton.worker for triton in read.tritons] == [each["name"] for each in LAYOUT["workers"]]
    for triton in read.tritons:
        host, _, port = triton.grpc.partition(":")
        assert int(port) in {each["port"] for each in services[host]["spec"]["ports"]}
    (mount,) = deployment["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["args"][2].startswith(mount["mountPath"])
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    layout = Layout.model_validate_json(config["data"]["layout.json"])
    assert layout == read_document(out / "layout.json", Layout)


def test_a_layout_that_no_config_map_holds_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_repo_generator.deploying.node_files._MOST_CONFIG_BYTES", 4096)
    assert (
        "notice: kubernetes/tidegate.yaml: Kubernetes takes ConfigMaps of up to 4096 bytes, and this one has"
        in run(LAYOUT, "--deploy-target", "triton").stderr
    )
