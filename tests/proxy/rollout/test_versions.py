"""A new version of a model gets copies of requests, then some of them, at a real Triton, and is promoted or undone."""

import gzip
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.here import ProxyHere
from tidegate_proxy.commands.running import tell_tally
from tidegate_proxy.configuration.config import VersionRolloutConfig
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.rollout import comparison, versions
from tidegate_proxy.rollout.versions import VersionRollout
from tidegate_proxy.service import batch_verification
from tidegate_proxy.tritons.backend import LoadedModel
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
GOOD, EQUAL, FAILING, WRONG, REFUSING, SLOW = 1, 2, 3, 4, 5, 6
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        if any(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().min() < 0 for request in requests):
            raise ValueError("no version takes this")
        if self.version == 6:
            time.sleep(0.02)
        if self.version == 3:
            raise ValueError("this version is broken")
        if self.version == 5:
            refusal = pb_utils.TritonError("this version takes nothing", pb_utils.TritonError.INVALID_ARG)
            return [pb_utils.InferenceResponse(error=refusal) for _ in requests]
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + (self.version == 4))
            ])
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 4
version_policy { all {} }
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value { string_value: "batched" } }
"""


@pytest.fixture(scope="module")
def six_versions(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with a model in six versions: two that are equal, and four that are worse."""
    repository = tmp_path_factory.mktemp("versions")
    for version in range(1, 7):
        folder = repository / "model" / str(version)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
    (repository / "model" / "config.pbtxt").write_text(CONFIG)
    triton: EmbeddedTriton = start_triton([repository])
    return triton


@pytest.fixture
def roll_out(
    serve_here: Make, six_versions: EmbeddedTriton, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ProxyHere]:
    """`roll_out(candidate, ...)`: a Tidegate with a rollout beside version 1, which compares in short blocks."""
    monkeypatch.setattr(versions, "VERDICT_INTERVAL_S", 0.02)
    monkeypatch.setattr(batch_verification, "IDLE_POLL_S", 0.001)
    monkeypatch.setattr(comparison, "BLOCK_NS", 20_000_000)
    monkeypatch.setattr(comparison, "BURN_IN_NS", 0)
    monkeypatch.setattr(comparison, "SETTLING_BLOCKS", 100)  # an answer on a busy machine takes its time,
    monkeypatch.setattr(comparison, "MAX_BLOCKS", 100_000)  # and so do all of them

    def start(
        candidate: int | None,
        tenants: Any = None,
        slo_ms: int | None = 60_000,
        verdict_file: Path | None = None,
        **settings: Any,
    ) -> ProxyHere:
        rollout = {"stable": GOOD, "candidate": candidate, **settings}
        triton = {"grpc": six_versions.grpc_address, "http": six_versions.http_address}
        proxy: ProxyHere = serve_here(
            [six_versions],
            tritons=[triton],
            listen=LISTEN,
            models={"model": {"slo_ms": slo_ms}} if slo_ms else {},
            rollouts={"versions": {"model": rollout}, "verdict_file": verdict_file},
            tenants=tenants,
        )
        return proxy

    return start


def _request(value: float = 1.0, version: str = "") -> bytes:
    message = service_pb2.ModelInferRequest(model_name="model", model_version=version)
    message.inputs.add(name="X", datatype="FP32", shape=[1, 3])
    message.raw_input_contents.append(np.full((1, 3), value, np.float32).tobytes())
    return bytes(message.SerializeToString())


def _document(proxy: ProxyHere) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/rollouts") as answer:
        (rollout,) = json.load(answer)
    return dict(rollout)


def _version(call: Make, proxy: ProxyHere, named: str = "") -> str:
    """The version that answers a request, or the status of its failure."""
    code, answer, *_ = call(proxy, "ModelInfer", _request(version=named))
    if code is not grpc.StatusCode.OK:
        return str(code.name)
    return str(service_pb2.ModelInferResponse.FromString(answer).model_version)


def _send_until(call: Make, proxy: ProxyHere, state: str) -> Counter[str]:
    """Send requests until the rollout is in a state; the versions that answered."""
    answered = Counter[str]()

    def is_reached() -> bool:
        answered.update(_version(call, proxy) for _ in range(50))
        return bool(_document(proxy)["state"] == state)

    eventually(is_reached, state)
    return answered


def test_an_equal_version_is_compared_in_shadow_and_as_canary_and_promoted(
    roll_out: Callable[..., ProxyHere], call: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy = roll_out(EQUAL, shadow="100%", canary="50%", max_slowdown=1000)
    in_shadow = _send_until(call, proxy, "canary")
    as_canary = _send_until(call, proxy, "promoted")
    # The requests of the latest fifty may have come after the change of state.
    assert in_shadow["1"] >= sum(in_shadow.values()) - 50
    assert as_canary["1"] > 50
    assert as_canary["2"] > 50
    assert set(in_shadow + as_canary) == {"1", "2"}
    found = _document(proxy)
    assert found["shadow"]["copies"] == found["shadow"]["alike"] >= 200
    assert found["shadow"]["agreement"][0] >= 0.99
    assert {_version(call, proxy) for _ in range(20)} == {"2"}
    assert [_version(call, proxy, named) for named in ("1", "2", "4")] == ["1", "2", "4"]
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/metrics") as page:
        metrics = page.read().decode()
    assert 'tidegate_version_rollout_state{model="model",state="promoted",version="2"} 1.0' in metrics
    assert 'tidegate_version_rollout_copies_ratio{bound="low",comparison="agreement",model="model"} 0.99' in metrics
    tell_tally(proxy.serving)
    assert "version rollout: model: version 2 is promoted: attainment " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("candidate", "stage", "why"),
    [
        (FAILING, {"canary": "50%"}, "requests of the new version failed, and 0 of "),
        (FAILING, {"shadow": "100%"}, "this version is broken"),
        (REFUSING, {"canary": "50%"}, "requests of the new version failed, and 0 of "),
        (REFUSING, {"shadow": "100%"}, "this version takes nothing"),
        (WRONG, {"shadow": "100%"}, "output 'Y': 3 of 3 elements, by up to 0.5 of its largest magnitude"),
        (SLOW, {"shadow": "100%"}, "times that of the stable version"),
    ],
)
def test_a_version_that_fails_errs_or_is_slow_is_undone(
    candidate: int, stage: dict[str, str], why: str, roll_out: Callable[..., ProxyHere], call: Make
) -> None:
    proxy = roll_out(candidate, **stage)
    answered = _send_until(call, proxy, "undone")
    assert why in _document(proxy)["why"]
    if "shadow" in stage:  # no client sees it
        assert set(answered) == {"1"}
    assert {_version(call, proxy) for _ in range(20)} == {"1"}
    assert proxy.serving.rollout.versions.sentences()[0].startswith(
        f"model: version {candidate} is undone, version 1 serves: "
    )


def test_without_a_candidate_requests_get_the_stable_version(roll_out: Callable[..., ProxyHere], call: Make) -> None:
    proxy = roll_out(None)
    assert {_version(call, proxy) for _ in range(5)} == {"1"}
    assert _document(proxy)["state"] == "pinned"


def test_a_candidate_that_is_not_ready_gets_nothing(roll_out: Callable[..., ProxyHere], call: Make) -> None:
    proxy = roll_out(9, canary="50%")
    assert {_version(call, proxy) for _ in range(20)} == {"1"}
    assert _document(proxy)["state"] == "waiting"
    assert _document(proxy)["why"] in ("", "version 9 is not ready on every Triton that has the model")


def test_a_stable_version_that_is_gone_leaves_the_choice_to_triton(
    roll_out: Callable[..., ProxyHere], call: Make
) -> None:
    assert _version(call, roll_out(9, stable=8, canary="50%")) == str(SLOW)


def test_a_model_with_sequences_keeps_its_stable_version() -> None:
    """A sequence has its state in one version."""
    backend: Any = object()
    config = model_config_pb2.ModelConfig(name="m", sequence_batching={})
    catalog = Catalog(hosts={"m": [backend]}, loaded={backend: [LoadedModel(config, ("1", "2"))]})
    rollout = VersionRollout(
        "m", VersionRolloutConfig(stable=1, candidate=2, canary=0.5), CurrentCatalog(catalog), Random(0)
    )
    rollout.look(0)
    assert rollout.state == "waiting"
    assert rollout.verdict == "its sequence_batching needs all requests of a sequence at one version"
    chosen = rollout.choose("", is_compared=True)
    assert chosen is not None
    assert chosen.version == "1"


@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_a_model_that_is_reloaded_with_sequences_goes_back_to_its_stable_version(stage: str) -> None:
    backend: Any = object()

    def catalog(**settings: Any) -> Catalog:
        config = model_config_pb2.ModelConfig(name="m", **settings)
        return Catalog(hosts={"m": [backend]}, loaded={backend: [LoadedModel(config, ("1", "2"))]})

    directory = CurrentCatalog(catalog())
    config = VersionRolloutConfig.model_validate({"stable": 1, "candidate": 2, stage: 0.999_999})
    rollout = VersionRollout("m", config, directory, Random(0))
    rollout.look(0)
    assert rollout.state == stage
    rollout.responses.left_out += 1
    directory.catalog = catalog(sequence_batching={})
    chosen = rollout.choose("", is_compared=True)
    assert chosen is not None
    assert chosen.version == "1", "before the next look, too"
    assert not rollout.copies()
    rollout.look(1)
    assert rollout.state == "waiting"
    assert rollout.verdict == "its sequence_batching needs all requests of a sequence at one version"
    directory.catalog = catalog()
    rollout.look(2)
    assert rollout.state == stage
    assert rollout.responses.left_out == (stage == "canary"), "the model is another one, and is compared from the start"


def test_versions_are_drawn_by_client_where_that_is_wished(roll_out: Callable[..., ProxyHere], call: Make) -> None:
    proxy = roll_out(EQUAL, canary="50%", sticky=True)
    eventually(lambda: _document(proxy)["state"] == "canary", "both versions to be ready")
    assert len({_version(call, proxy) for _ in range(30)}) == 1


def test_versions_are_drawn_by_tenant_where_there_are_tenants(roll_out: Callable[..., ProxyHere], call: Make) -> None:
    names = [f"tenant-{number}" for number in range(8)]
    tenants = {"by": "metadata", "key": "x-tenant", "named": {name: {"weight": 2} for name in names}}
    proxy = roll_out(EQUAL, tenants=tenants, canary="50%", sticky=True)
    eventually(lambda: _document(proxy)["state"] == "canary", "both versions to be ready")

    def versions_of(name: str) -> set[str]:
        answers = [call(proxy, "ModelInfer", _request(), metadata=[("x-tenant", name)]) for _ in range(10)]
        return {service_pb2.ModelInferResponse.FromString(answer).model_version for _, answer, *_ in answers}

    found = [versions_of(name) for name in names]
    assert all(len(each) == 1 for each in found)
    assert set.union(*found) == {"1", "2"}


TENANTS = [f"tenant-{number}" for number in range(8)]


def _infer_as(call: Make, proxy: ProxyHere, tenant: str, message: bytes) -> str:
    """The version that answers a request of a tenant, or the status of its failure."""
    code, answer, *_ = call(proxy, "ModelInfer", message, metadata=[("x-tenant", tenant)])
    if code is not grpc.StatusCode.OK:
        return str(code.name)
    return str(service_pb2.ModelInferResponse.FromString(answer).model_version)


def _roll_out_by_tenant(roll_out: Callable[..., ProxyHere], candidate: int) -> ProxyHere:
    tenants = {"by": "metadata", "key": "x-tenant", "named": {name: {"weight": 2} for name in TENANTS}}
    proxy = roll_out(candidate, tenants=tenants, canary="50%", sticky=True)
    eventually(lambda: _document(proxy)["state"] == "canary", "both versions to be ready")
    return proxy


def _invalid_request() -> bytes:
    message = service_pb2.ModelInferRequest.FromString(_request())
    message.inputs[0].datatype = "INT32"
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "status"),
    [(_invalid_request(), "INVALID_ARGUMENT"), (_request(-1.0), "INTERNAL")],
    ids=["invalid ones", "what no version takes"],
)
def test_tenants_whose_requests_fail_at_both_versions_undo_no_candidate(
    message: bytes, status: str, roll_out: Callable[..., ProxyHere], call: Make
) -> None:
    proxy = _roll_out_by_tenant(roll_out, EQUAL)
    failing = [name for name in TENANTS if _infer_as(call, proxy, name, _request()) == str(EQUAL)][:2]
    rollout = proxy.serving.rollout.versions.of_model["model"]
    for name in failing:
        for _ in range(60):
            assert _infer_as(call, proxy, name, message) == status
        assert proxy.in_loop(rollout.requests.why_hopeless) == ""
        assert _infer_as(call, proxy, name, _request()) == str(GOOD)
    assert proxy.in_loop(lambda: rollout.requests.clients.undecided) == 0
    assert _document(proxy)["state"] == "canary"


def test_one_tenant_whose_requests_fail_at_the_candidate_alone_undoes_it(
    roll_out: Callable[..., ProxyHere], call: Make
) -> None:
    proxy = _roll_out_by_tenant(roll_out, FAILING)
    first = next(name for name in TENANTS if _infer_as(call, proxy, name, _request()) == "INTERNAL")
    answered = Counter(_infer_as(call, proxy, first, _request()) for _ in range(60))
    assert answered["INTERNAL"] <= 20
    eventually(lambda: _document(proxy)["state"] == "undone", "the verdict")
    assert "at the stable one, which it got again" in _document(proxy)["why"]


def test_a_model_without_an_slo_is_copied_beside_no_request(roll_out: Callable[..., ProxyHere], call: Make) -> None:
    """Its requests bypass; neither they nor the copies hinder copies for good."""
    proxy = roll_out(EQUAL, slo_ms=None, shadow="100%", max_slowdown=1000)
    assert set(_send_until(call, proxy, "promoted")) <= {"1", "2"}
    assert _document(proxy)["shadow"]["copies"] >= 200


def test_requests_over_http_that_name_a_version_are_not_copied(roll_out: Callable[..., ProxyHere]) -> None:
    proxy = roll_out(EQUAL, shadow="100%")
    eventually(lambda: _document(proxy)["state"] == "shadow", "both versions to be ready")
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()

    def infer(path: str) -> None:
        url = f"http://{proxy.serving.http_address}/v2/models/model{path}/infer"
        with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
            assert answer.status == 200

    def copied() -> int:
        found = _document(proxy)["shadow"]
        return int(found["copies"] + found["left_out"])

    for _ in range(10):
        infer("/versions/1")
    infer("")
    eventually(copied, "the copy of the request that names no version")
    assert copied() == 1


@pytest.mark.parametrize("form", ["JSON", "binary", "gzip"])
def test_requests_over_http_that_bypass_are_copied(form: str, roll_out: Callable[..., ProxyHere]) -> None:
    proxy = roll_out(WRONG, slo_ms=None, shadow="100%")
    eventually(lambda: _document(proxy)["state"] == "shadow", "both versions to be ready")
    tensor: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": [1, 3]}
    headers, contents = {}, b""
    if form == "binary":
        contents = np.ones((1, 3), np.float32).tobytes()
        tensor["parameters"] = {"binary_data_size": len(contents)}
    else:
        tensor["data"] = [1, 1, 1]
    body = json.dumps({"inputs": [tensor]}).encode()
    if form == "binary":
        headers["Inference-Header-Content-Length"] = str(len(body))
    elif form == "gzip":
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    request = urllib.request.Request(
        f"http://{proxy.serving.http_address}/v2/models/model/infer", body + contents, headers
    )

    def is_undone() -> bool:
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        return bool(_document(proxy)["state"] == "undone")

    eventually(is_undone, "copies")
    assert "output 'Y': 3 of 3 elements" in _document(proxy)["why"]


def test_a_verdict_survives_a_restart(roll_out: Callable[..., ProxyHere], call: Make, tmp_path: Path) -> None:
    file = tmp_path / "verdicts.json"
    proxy = roll_out(FAILING, verdict_file=file, canary="50%")
    _send_until(call, proxy, "undone")
    eventually(file.exists, "the file")
    again = roll_out(FAILING, verdict_file=file, canary="50%")
    assert _document(again)["state"] == "undone"
    assert _document(again)["why"] == _document(proxy)["why"]
    assert {_version(call, again) for _ in range(20)} == {"1"}
    other = roll_out(FAILING, verdict_file=file, canary="40%")
    assert _document(other)["state"] in ("waiting", "canary"), "it is another rollout"


def test_requests_over_http_are_given_versions_and_compared(roll_out: Callable[..., ProxyHere]) -> None:
    proxy = roll_out(FAILING, canary="50%")
    eventually(lambda: _document(proxy)["state"] == "canary", "both versions to be ready")
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()

    def infer(path: str = "") -> str:
        url = f"http://{proxy.serving.http_address}/v2/models/model{path}/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
                return str(json.load(answer)["model_version"])
        except urllib.error.HTTPError as error:
            return "failed" if b"broken" in error.read() else "other"

    found = Counter[str]()
    while _document(proxy)["state"] == "canary":
        found[infer()] += 1
    assert set(found) == {"1", "failed"}
    assert {infer() for _ in range(20)} == {"1"}
    assert infer("/versions/2") == "2"


def test_streams_get_no_version_on_trial(roll_out: Callable[..., ProxyHere], open_stream: Make) -> None:
    proxy = roll_out(FAILING, canary="99%")
    eventually(lambda: _document(proxy)["state"] == "canary", "both versions to be ready")
    asked = [service_pb2.ModelInferRequest.FromString(_request()) for _ in range(10)]
    answers = list(open_stream(proxy, asked))
    assert {answer.infer_response.model_version for answer in answers} == {"1"}


def test_another_candidate_begins_anew_and_an_unchanged_rollout_goes_on(
    roll_out: Callable[..., ProxyHere], call: Make
) -> None:
    proxy = roll_out(FAILING, canary="50%")
    _send_until(call, proxy, "undone")

    def follow(candidate: int, **others: object) -> None:
        rollout = proxy.serving.config.rollouts.versions["model"].model_copy(update={"candidate": candidate})
        rollouts = proxy.serving.config.rollouts.model_copy(update={"versions": {"model": rollout}})
        wanted = proxy.serving.config.model_copy(update={"rollouts": rollouts, **others})
        proxy.run(proxy.serving.reconfigure(wanted))

    follow(FAILING, drain_timeout_s=1.0)
    assert _document(proxy)["state"] == "undone"
    follow(EQUAL)
    assert _document(proxy)["state"] in ("waiting", "canary")
    _send_until(call, proxy, "promoted")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stable": 1, "candidate": 1, "canary": 0.1}, "candidate: version 1 is the stable one: name another version"),
        ({"stable": 1, "candidate": 2}, "candidate: nothing says how it is compared: set shadow, canary or both"),
        ({"stable": 1, "canary": "5%"}, "candidate: name the version that shadow and canary are for"),
        ({"stable": 1, "candidate": 2, "canary": "500%"}, "canary: must be a share of at most 1"),
        ({"stable": 0}, "stable: must be at least 1"),
    ],
)
def test_what_makes_no_rollout_is_refused_in_words(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(flags={"tritons": ["localhost:8001"], "rollouts": {"versions": {"m": given}}})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"canary": "5%"}, "rollouts.versions.m: with canary no version is chosen"),
        ({"shadow": True}, "rollouts.versions.m: with shadow no version is chosen"),
        ({"models": {"m": {"load": "on-demand"}}, "tritons": [{"grpc": "a:1", "model_memory": "1GB"}]}, "on demand"),
    ],
)
def test_a_rollout_beside_what_chooses_otherwise_is_refused(section: dict[str, Any], says: str) -> None:
    rollouts = {"versions": {"m": {"stable": 1}}}
    with pytest.raises(ConfigError, match=says):
        read_config(flags={"tritons": ["localhost:8001"], "rollouts": rollouts, **section})
