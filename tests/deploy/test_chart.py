"""The Helm chart: what it renders is Kubernetes, hangs together, and carries a configuration that Tidegate reads."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.conftest import HelmRefuses, lint, render
from tidegate_proxy.configuration.config import AGE_JITTER, ServeConfig
from tidegate_proxy.configuration.config_file import assignment_of, read_config
from tidegate_proxy.configuration.triton_sources import with_sources

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/tidegate"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/tidegate.yaml").read_text()))
Documents = list[dict[str, Any]]
EVERYTHING = {
    "fullnameOverride": "frontend",
    "imagePullSecrets": [{"name": "pull"}],
    "tidegate": {
        "config": {
            "policy": {"name": "symphony", "options": {"batch_formation": "skip_head"}},
            "models": {"resnet50": {"slo_ms": 25}},
            "drain_timeout_s": 7.5,
            "limits": {"max_connection_age_s": 3},
            "tls": {"cert": "/etc/tidegate/secrets/tls/tls.crt", "key": "/etc/tidegate/secrets/tls/tls.key"},
            "authentication": {"tokens_file": "/etc/tidegate/secrets/tokens/tokens"},
        },
        "preStopSeconds": 3,
        "profiles": {"configMap": "measured"},
        "secrets": ["tls", "tokens"],
        "env": [{"name": "TZ", "value": "UTC"}],
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "triton": {
        "replicas": 3,
        "modelRepository": {"volume": {"nfs": {"server": "files", "path": "/models", "readOnly": True}}},
        "env": [{"name": "AWS_REGION", "value": "x"}],
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
    },
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


@pytest.mark.parametrize(
    ("tag", "knows"),
    [("24.10-py3", False), ("25.12-py3", False), ("26.03-py3", False), ("26.04-py3", True), ("26.11-py3-sdk", True)],
)
def test_client_shared_memory_is_allowed_where_triton_knows_the_flag(tag: str, knows: bool) -> None:
    for wanted in (True, False):
        triton = {"image": {"tag": tag}, "allowClientSharedMemory": wanted}
        arguments = _container(_one(render({"triton": triton}), "StatefulSet", "tidegate-triton"))["args"]
        assert ("--allow-client-shm=true" in arguments) is (wanted and knows)
        assert arguments[:2] == VALUES["triton"]["serverArgs"]


def test_client_shared_memory_of_an_unknown_release_is_a_flag_of_ones_own() -> None:
    with pytest.raises(HelmRefuses, match=r"add --allow-client-shm=true to triton\.serverArgs instead"):
        render({"triton": {"image": {"tag": "mine"}, "allowClientSharedMemory": True}})


def test_discovered_tritons_need_no_list_and_the_least_of_rights() -> None:
    documents = render({"triton": {"discovery": True, "replicas": 3}})
    _hangs_together(documents)
    config = _config(documents)
    assert config.tritons == ()
    assert [source.kubernetes and source.kubernetes.service for source in config.discovery] == ["tidegate-triton"]
    (rule,) = _one(documents, "Role")["rules"]
    assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    pod = _one(documents, "Deployment")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("tidegate", True)
    assert not [each for each in render() if each["kind"] in ("ServiceAccount", "Role", "RoleBinding")]
    with pytest.raises(HelmRefuses, match=r"triton\.discovery: each shard has a list of its own Tritons"):
        render({"triton": {"discovery": True}, "shards": {"enabled": True}})


def test_scaled_tritons_are_left_to_tidegate_which_may_scale_this_stateful_set_alone() -> None:
    documents = render({"triton": {"discovery": True, "scaling": {"min_replicas": 2, "max_replicas": 8}}})
    _hangs_together(documents)
    (source,) = _config(documents).discovery
    assert source.kubernetes
    assert source.kubernetes.scaling
    assert (
        source.kubernetes.scaling.statefulset == _one(documents, "StatefulSet", "tidegate-triton")["metadata"]["name"]
    )
    assert (source.kubernetes.scaling.min_replicas, source.kubernetes.scaling.max_replicas) == (2, 8)
    assert "replicas" not in _one(documents, "StatefulSet", "tidegate-triton")["spec"]
    assert _one(documents, "Role")["rules"][1:] == [
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": ["tidegate-triton"],
            "verbs": ["get", "patch"],
        }
    ]
    with pytest.raises(HelmRefuses, match=r"triton\.scaling: Tidegate scales Tritons that it discovers"):
        render({"triton": {"scaling": {"max_replicas": 8}}})


def _one(documents: Documents, kind: str, name: str = "tidegate") -> dict[str, Any]:
    (found,) = (d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def _config(documents: Documents, name: str = "tidegate") -> ServeConfig:
    text = _one(documents, "ConfigMap", name)["data"]["tidegate.yaml"]
    return ServeConfig.model_validate_json(json.dumps(with_sources(yaml.safe_load(text))))


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _hangs_together(documents: Documents) -> None:
    """Selectors find pods, ports and volumes exist, and all of it is Kubernetes."""
    known = [d for d in documents if d["kind"] != "ServiceMonitor"]  # a custom resource
    for document in known:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    workloads = [d for d in documents if d["kind"] in {"Deployment", "StatefulSet"}]
    for workload in workloads:
        pod = workload["spec"]["template"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in _container(workload)["volumeMounts"]} == volumes
        ports = {port["name"] for port in _container(workload)["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            given = _container(workload)[probe]
            assert (given.get("httpGet") or given["tcpSocket"])["port"] in ports
    for document in documents:
        if document["kind"] in {"Service", "PodDisruptionBudget"}:
            selector = document["spec"]["selector"]
            labels = (selector.get("matchLabels") or selector).items()
            (chosen,) = (w for w in workloads if labels <= w["spec"]["template"]["metadata"]["labels"].items())
            ports = {port["name"] for port in _container(chosen)["ports"]}
            assert {port["targetPort"] for port in document["spec"].get("ports", [])} <= ports


def test_the_plain_manifests_hang_together() -> None:
    _hangs_together(MANIFESTS)
    assert _config(MANIFESTS).policy.name == "symphony"


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    def in_order(documents: Documents) -> Documents:
        return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))

    assert in_order(MANIFESTS) == in_order(render()), "helm template tidegate deploy/helm/tidegate renders them"


def test_everything_switched_on_hangs_together() -> None:
    documents = render(EVERYTHING)
    _hangs_together(documents)
    config = _config(documents, "frontend")
    assert [triton.grpc for triton in config.tritons] == [f"frontend-triton-{n}.frontend-triton:8001" for n in range(3)]
    assert str(config.profiles) == "/etc/tidegate/profiles/profiles.json"
    monitor = _one(documents, "ServiceMonitor", "frontend")
    services = [d for d in documents if d["kind"] == "Service"]
    chosen = [
        s for s in services if monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
    ]
    assert {s["metadata"]["name"] for s in chosen} == {"frontend", "frontend-triton"}
    pod = _one(documents, "Deployment", "frontend")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 3 + 8 + 10
    assert _container(_one(documents, "Deployment", "frontend"))["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_pods_listen_where_the_configuration_says() -> None:
    documents = render()
    listen = _config(documents).listen
    ports = {p["name"]: p["containerPort"] for p in _container(_one(documents, "Deployment"))["ports"]}
    for name, port in ports.items():
        assert getattr(listen, name) == f"0.0.0.0:{port}"
    (triton,) = _config(documents).tritons
    ports = {
        p["name"]: p["containerPort"] for p in _container(_one(documents, "StatefulSet", "tidegate-triton"))["ports"]
    }
    for name, port in ports.items():
        assert getattr(triton, name) == f"tidegate-triton-0.tidegate-triton:{port}"
    assert _one(documents, "Service", "tidegate-triton")["spec"]["clusterIP"] == "None"


SHARDS: dict[str, Any] = {
    "shards": {"enabled": True, "replicas": 2, "tritonsPerShard": 2, "plan": {"ant": 0, "cat": 1}},
    "tidegate": {"env": [{"name": "TZ", "value": "UTC"}]},
}


@pytest.mark.parametrize("tls", ["", "links-tls"])
def test_shards_behind_frontends_hang_together(tmp_path: Path, tls: str) -> None:
    documents = render({**SHARDS, "shards": {**SHARDS["shards"], "links": {"tlsSecret": tls}}})
    _hangs_together(documents)
    data = _one(documents, "ConfigMap")["data"]
    text = data["tidegate.yaml"].replace("/etc/tidegate", str(tmp_path))
    for name in ("config/plan.json", "links/secret", "links-tls/tls.crt", "links-tls/tls.key", "links-tls/ca.crt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(data.get(Path(name).name, ""))
    (tmp_path / "tidegate.yaml").write_text(text)
    config = read_config(tmp_path / "tidegate.yaml")
    assert assignment_of(config) == {"ant": 0, "cat": 1}
    for number, shard in enumerate(config.shards):
        assert shard.address == f"tidegate-shard-{number}.tidegate-shard:8200"
        assert [triton.grpc for triton in shard.tritons] == [
            f"tidegate-triton-{2 * number + each}.tidegate-triton:8001" for each in range(2)
        ]
    shards, frontends = _one(documents, "StatefulSet", "tidegate-shard"), _one(documents, "Deployment")
    assert shards["spec"]["serviceName"] == "tidegate-shard"
    assert _one(documents, "Service", "tidegate-shard")["spec"]["clusterIP"] == "None"
    assert _one(documents, "StatefulSet", "tidegate-triton")["spec"]["replicas"] == 4
    assert _container(frontends)["args"][-2:] == ["--role", "frontend"]
    assert _container(shards)["args"][-4:] == ["--role", "shard", "--shard", "$(SHARD_NUMBER)"]
    assert {each["name"] for each in _container(shards)["env"]} == {"SHARD_NUMBER", "TZ"}
    assert "replicas" not in frontends["spec"], "the autoscaler's"
    scaler = _one(documents, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == frontends["metadata"]["name"]
    assert "cpu" in _container(frontends)["resources"]["requests"], "what a share of it is counted by"


def test_tritons_elsewhere() -> None:
    documents = render(
        {"triton": {"enabled": False}, "tritons": ["gpu-1:8001", {"grpc": "gpu-2:9", "http": "gpu-2:8"}]}
    )
    _hangs_together(documents)
    assert not [d for d in documents if "triton" in d["metadata"]["name"]]
    assert [triton.grpc for triton in _config(documents).tritons] == ["gpu-1:8001", "gpu-2:9"]


def test_where_the_models_are() -> None:
    def volumes(values: dict[str, Any]) -> Documents:
        documents = render({"triton": {"modelRepository": values}})
        _hangs_together(documents)
        return list(_one(documents, "StatefulSet", "tidegate-triton")["spec"]["template"]["spec"]["volumes"])

    assert volumes({})[0]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert volumes({"volume": {"emptyDir": {}}})[0] == {"name": "models", "emptyDir": {}}
    assert [volume["name"] for volume in volumes({"claimName": ""})] == ["shm"]


def test_where_clients_must_show_certificates_kubelet_only_connects() -> None:
    tls = {"cert": "/c", "key": "/k", "client_ca": "/ca"}
    documents = render({"tidegate": {"config": {"tls": tls}}})
    _hangs_together(documents)
    assert _container(_one(documents, "Deployment"))["readinessProbe"]["tcpSocket"] == {"port": "http"}


@pytest.mark.parametrize(("drain_timeout_s", "pre_stop_s"), [(None, 5), (0, 0), (0.5, 60), (300, 60)])
def test_kubelet_waits_longer_than_a_drain_takes(drain_timeout_s: float | None, pre_stop_s: int) -> None:
    config = {"drain_timeout_s": drain_timeout_s}
    _waits_longer(render({"tidegate": {"config": config, "preStopSeconds": pre_stop_s}}))


def test_so_it_does_with_the_plain_manifests() -> None:
    _waits_longer(MANIFESTS)


def _waits_longer(documents: Documents) -> None:
    """Pre-stop and drain together, and what the end itself takes: last words, and the way out."""
    pod = _one(documents, "Deployment")["spec"]["template"]["spec"]
    (command, seconds) = _container(_one(documents, "Deployment"))["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    config = _config(documents)
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + config.drain_timeout_s + 5


def test_connections_of_the_default_get_old_within_half_of_a_drain() -> None:
    """Only then are all clients elsewhere before anything is refused."""
    config = _config(render())
    assert config.limits.max_connection_age_s is not None
    assert AGE_JITTER * config.limits.max_connection_age_s <= config.drain_timeout_s / 2


def test_the_documentation_says_the_same() -> None:
    text = (ROOT / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    config, values = _config(render()), VALUES["tidegate"]
    assert f"`tidegate.preStopSeconds`, {values['preStopSeconds']} s" in text
    assert f"`drain_timeout_s`, {config.drain_timeout_s:g} s" in text
    assert f"`max_connection_age_s`, {config.limits.max_connection_age_s:g} s" in text
    assert VALUES["triton"]["image"]["tag"].removesuffix("-py3") in text


def test_a_changed_configuration_restarts_the_pod() -> None:
    def stamp(documents: Documents) -> object:
        return _one(documents, "Deployment")["spec"]["template"]["metadata"]["annotations"]["tidegate/config"]

    usual = stamp(render())
    assert stamp(render({"tidegate": {"config": {"seed": 1}}})) != usual
    assert stamp(render({"service": {"type": "NodePort"}})) == usual


def test_helm_finds_nothing_wrong() -> None:
    assert lint()["errors"] == []


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["defaults", "everything"])
def test_values_fit_the_schema(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    merged = {**VALUES, **{k: {**VALUES[k], **v} if isinstance(v, dict) else v for k, v in values.items()}}
    jsonschema.Draft7Validator(SCHEMA).validate(merged)


def test_every_value_is_known_to_the_schema() -> None:
    def names(values: dict[str, Any], schema: dict[str, Any]) -> None:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        for name, value in values.items():
            assert schema["additionalProperties"] is False
            assert name in schema["properties"]
            if isinstance(value, dict) and "additionalProperties" in schema["properties"][name]:
                names(value, schema["properties"][name])

    names(VALUES, SCHEMA)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"triton": {"replicas": 0}}, "replicas"),
    ({"triton": {"replica": 2}}, "replica"),
    ({"service": {"grpc": 70000}}, "grpc"),
    ({"tidegate": {"config": {"tritons": ["a:1"]}}}, "config"),
    ({"tidegate": {"config": {"listen": "a:1"}}}, "config"),
    ({"tidegate": {"secrets": ["Not_A_Name"]}}, "secrets"),
    ({"tritons": ["no-port"]}, "tritons"),
    ({"triton": {"enabled": False}}, "tritons: name at least one"),
    ({"shards": {"enabled": True, "replicas": 3}, "tritons": ["a:1", "b:1"]}, "shards.replicas times"),
    ({"shards": {"plan": {"m": -1}}}, "plan"),
]


@pytest.mark.parametrize(("values", "said"), WRONG)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmRefuses, match=said):
        render(values)
