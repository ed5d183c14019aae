"""Shadow mode: every request passes as it is, and what would have been gained is told by a process nobody waits for."""

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import rest_of
from tests.proxy.fixtures.here import ProxyHere
from tidegate.schemas import ProfileFile
from tidegate_proxy.app.dashboard.live import section_of
from tidegate_proxy.configuration.config import PolicyChoice
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.configuration.settings import SettingsHolder, settings_of
from tidegate_proxy.rollout import shadow
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}


def _request(model: str, values: list[float], **fields: str) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="X", datatype="FP32", shape=[1, len(values)])
    message.raw_input_contents.append(np.array(values, np.float32).tobytes())
    return bytes(message.SerializeToString())


CASES = {
    "an answer": _request("echo", [1, 2, 3], id="mine"),
    "another version": _request("echo", [1], model_version="9"),
    "refused by the model": _request("picky", [-1]),
    "no such model": _request("nope", [1]),
}


@pytest.fixture
def shadowing(serve_here: Make, triton: EmbeddedTriton, monkeypatch: pytest.MonkeyPatch) -> ProxyHere:
    """A Tidegate in shadow mode whose process reports often."""
    monkeypatch.setattr(shadow, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(shadow, "REPORT_EVERY", 1)
    proxy: ProxyHere = serve_here([triton], policy="symphony", tritons=[_both(triton)], listen=LISTEN, shadow=True)
    return proxy


def _both(triton: EmbeddedTriton) -> dict[str, str]:
    return {"grpc": triton.grpc_address, "http": triton.http_address}


def _document(proxy: ProxyHere) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/shadow") as answer:
        return dict(json.load(answer))


@pytest.mark.parametrize("case", CASES)
def test_answers_and_errors_are_tritons_to_the_byte(
    case: str, triton: EmbeddedTriton, shadowing: object, call: Make
) -> None:
    assert call(shadowing, "ModelInfer", CASES[case]) == call(triton, "ModelInfer", CASES[case])


@pytest.mark.parametrize(
    "body", [b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,2]}]}', b'{"no":1}']
)
def test_http_is_tritons_to_the_byte(body: bytes, triton: EmbeddedTriton, shadowing: ProxyHere) -> None:
    def ask(address: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{address}/v2/models/echo/infer", data=body) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert ask(shadowing.serving.http_address) == ask(triton.http_address)
    assert shadowing.engine.tally.accepted == 0


def test_streams_are_tritons_in_their_order(triton: EmbeddedTriton, shadowing: object, open_stream: Make) -> None:
    sent = [_request("echo", [step], id=str(step)) for step in range(20)]
    answers, code, _ = rest_of(open_stream(shadowing, sent))
    assert code is grpc.StatusCode.OK
    assert answers == rest_of(open_stream(triton, sent))[0]
    assert [answer.infer_response.id for answer in answers] == [str(step) for step in range(20)]


def test_nothing_is_scheduled_and_all_is_counted(triton: EmbeddedTriton, shadowing: ProxyHere, call: Make) -> None:
    for _ in range(5):
        call(shadowing, "ModelInfer", CASES["an answer"])
    eventually(lambda: _document(shadowing)["seen"] == 5, "they are shown to the simulator")
    assert shadowing.engine.tally.accepted == 0
    assert _document(shadowing)["shadow"]


def test_the_live_page_shows_what_is_said(
    serve_here: Make, triton: EmbeddedTriton, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(shadow, "REPORT_EVERY", 1)
    slo = {"echo": {"slo_ms": 60_000}}
    proxy = serve_here([triton], policy="symphony", tritons=[_both(triton)], listen=LISTEN, shadow=True, models=slo)
    rollout = proxy.serving.rollout
    eventually(lambda: _document(proxy)["report"], "the simulator to answer")  # it forgets requests after a minute
    call(proxy, "ModelInfer", CASES["an answer"])
    eventually(lambda: (section := section_of(rollout)) and section.rows, "a report")
    section = section_of(rollout)
    assert section is not None
    assert section.mode == "shadow"
    assert (section.policy, section.rows[0].model, section.rows[0].gain) == ("symphony", "", None)
    assert [(side.name, side.requests) for side in section.rows[0].sides] == [
        ("as it passes", 1),
        ("Triton's batcher, simulated", None),
        ("Triton's batcher tuned, simulated", None),
        ("symphony, simulated", None),
    ]
    assert section.rows[0].why, "too few requests, or no profile yet"
    proxy.run(proxy.serving.reconfigure(proxy.serving.config.model_copy(update={"shadow": False})))
    assert section_of(rollout) is None


def test_a_killed_simulator_costs_nothing_and_is_started_again(
    shadowing: ProxyHere, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "START_AGAIN_S", 0.05)
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    first = of_proxy.process_id
    assert first
    assert os.getsid(first) != os.getsid(0), "Ctrl-C in a terminal is none of its business"
    os.kill(first, signal.SIGKILL)
    code, _ = call(shadowing, "ModelInfer", CASES["an answer"])
    assert code is grpc.StatusCode.OK
    eventually(lambda: of_proxy.process_id not in (None, first), "another is started")


def test_a_simulator_that_reads_nothing_costs_no_memory(
    shadowing: ProxyHere, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "MAX_REQUESTS", 3)
    monkeypatch.setattr(shadow, "TELL_EVERY_S", 1.0)
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    assert of_proxy.process_id
    os.kill(of_proxy.process_id, signal.SIGSTOP)
    monkeypatch.setattr(shadow, "MAX_UNREAD_BYTES", -1)
    for _ in range(10):
        code, _ = call(shadowing, "ModelInfer", CASES["an answer"])
        assert code is grpc.StatusCode.OK
    eventually(lambda: _document(shadowing)["left_out"] == 10, "what is not read is left out, and counted")


def test_it_is_switched_on_and_off_while_it_serves(triton: EmbeddedTriton, serve_here: Make, call: Make) -> None:
    proxy = serve_here([triton])
    for is_on, scheduled in ((True, 0), (False, 1), (True, 1)):
        proxy.run(proxy.serving.reconfigure(proxy.serving.config.model_copy(update={"shadow": is_on})))
        code, _ = call(proxy, "ModelInfer", CASES["an answer"])
        assert code is grpc.StatusCode.OK
        assert proxy.engine.tally.accepted == scheduled


def test_what_would_change_the_tritons_is_refused() -> None:
    tritons = {"tritons": ["localhost:8001"], "shadow": True}
    with pytest.raises(ConfigError, match="strip_queue_delay"):
        read_config(flags={**tritons, "models": {"m": {"strip_queue_delay": True}}})


def test_it_says_why_nothing_can_be_said(
    shadowing: ProxyHere, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    eventually(lambda: "no shadow estimate: nothing has come" in caplog.text, "the log says that there was no traffic")
    assert _document(shadowing)["why"].startswith("nothing has come")
    section = section_of(shadowing.serving.rollout)
    assert section is not None
    assert section.note.startswith("Nothing has come that could have been scheduled")
    without_slo: Any = SimpleNamespace(
        catalog=SimpleNamespace(models={"m": SimpleNamespace(slo_ns=None)}), unbatched={}
    )
    monkeypatch.setattr(shadow, "catalog_for_shadow", lambda current, *_: current)
    proxy = shadowing.serving
    assert "--slo MODEL=MS" in shadow.Shadow(proxy.config, proxy.in_force, without_slo, ProfileFile(profiles=[])).why


def _kill(of_proxy: shadow.Shadow) -> None:
    """End the process that was there first; the next one is the one that matters, and may be there already."""
    if first := of_proxy.process_id:
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("raise SystemExit('no such plugin today')", "ended with 1: no such plugin today"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal SIGKILL"),
        ("print('a policy says hello', flush=True); input(); input(); input()", "said what cannot be read: "),
    ],
)
def test_it_says_why_the_simulator_has_ended(
    does: str, says: str, shadowing: ProxyHere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_proxy = shadowing.serving.rollout.shadow
    monkeypatch.setattr(shadow, "START_AGAIN_S", 0.2)
    monkeypatch.setattr(shadow, "SHADOW_COMMAND", ("-c", does))
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    _kill(of_proxy)
    eventually(lambda: f"shadow simulator ended, requests are not affected: {says}" in caplog.text, "the log says so")
    eventually(lambda: _document(shadowing)["why"].startswith(f"the simulator {says}"), "and the document")


def test_a_slow_simulator_is_asked_for_one_report_at_a_time_and_told_of(
    shadowing: ProxyHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"
    monkeypatch.setattr(
        shadow,
        "SHADOW_COMMAND",
        ("-c", f"import sys\nfor line in sys.stdin: print(line, end='', file=open({str(heard)!r}, 'a'))"),
    )
    monkeypatch.setattr(shadow, "START_AGAIN_S", 0.05)
    monkeypatch.setattr(shadow, "OVERDUE_S", 0.1)
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    _kill(of_proxy)

    def told() -> str:
        """What the simulator that runs was told: a busy machine may have it started again."""
        return heard.read_text().rpartition('"type":"begin"')[2]

    eventually(lambda: heard.exists() and told().count('"passed"') > 5, "it is told of what passes")
    assert told().count('"report":true') == 1
    assert "the simulator has not answered for " in of_proxy.why


_SLOW = """
import json, os, sys, time
number = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "begin":
        policy, options = message["policy"], message["options"]
    elif message["report"]:
        number += 1
        open(f"{folder}/asked {number}", "w").close()
        while not os.path.exists(f"{folder}/answer {number}"):
            time.sleep(0.01)
        report = {"policy": policy, "options": options, "window_s": 1.0, "unsimulated": 0, "estimates": [estimate]}
        report["tuned"] = ""
        print(json.dumps(report), flush=True)
"""


@pytest.mark.parametrize("wanted", [{"name": "fifs"}, {"name": "symphony", "options": {"deadline_margin_ms": 1.0}}])
def test_a_report_of_the_policy_before_is_not_shown_as_one_of_the_present(
    wanted: dict[str, Any],
    shadowing: ProxyHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the first report it is known that it was asked for when the policy changed, of the second when it comes."""
    caplog.set_level(logging.INFO)
    estimate = {
        "model": "",
        "requests": 9,
        "measured": 0.5,
        "batcher": 0.5,
        "tuned": 0.5,
        "policy": 0.5,
        "gain": None,
        "why": "few",
    }
    monkeypatch.setattr(shadow, "SHADOW_COMMAND", ("-c", f"folder, estimate = {str(tmp_path)!r}, {estimate}{_SLOW}"))
    monkeypatch.setattr(shadow, "START_AGAIN_S", 0.05)
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    _kill(of_proxy)
    eventually((tmp_path / "asked 1").exists, "a report is asked for")
    of_proxy._report = None
    policy = PolicyChoice.model_validate(wanted)
    shadowing.run(shadowing.serving.reconfigure(shadowing.serving.config.model_copy(update={"policy": policy})))
    (tmp_path / "answer 1").touch()
    eventually((tmp_path / "asked 2").exists, "the first report has come")
    assert _document(shadowing)["report"] is None
    section = section_of(shadowing.serving.rollout)
    assert section is not None
    assert not section.rows
    assert "50.0 % on time" not in caplog.text
    (tmp_path / "answer 2").touch()
    eventually(lambda: _document(shadowing)["report"], "the second report has come")
    report = _document(shadowing)["report"]
    assert {"name": report["policy"], "options": report["options"]} == {"options": {}, **wanted}
    assert f"what {wanted['name']} would gain is not said: few" in caplog.text


def test_one_that_is_stopped_is_ended_and_another_is_started(
    shadowing: ProxyHere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shadow, "START_AGAIN_S", 0.05)
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id and _document(shadowing)["report"], "the simulator answers")
    stopped = of_proxy.process_id
    assert stopped
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(shadow, "GIVE_UP_S", 0.5)
    eventually(lambda: of_proxy.process_id not in (None, stopped), "another is started")
    monkeypatch.setattr(shadow, "GIVE_UP_S", 300.0)
    assert "requests are not affected: had not answered for 0.5 s, and was ended" in caplog.text
    assert not Path(f"/proc/{stopped}").exists()


def test_what_clients_make_up_is_not_kept(shadowing: ProxyHere, call: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    of_proxy = shadowing.serving.rollout.shadow
    eventually(lambda: of_proxy.process_id, "the simulator runs")
    monkeypatch.setattr(of_proxy, "_tell", lambda *_: None)
    for number in range(3):
        assert call(shadowing, "ModelInfer", _request(f"nobody's {number}", [1]))[0] is grpc.StatusCode.NOT_FOUND
        message = service_pb2.ModelInferRequest.FromString(CASES["an answer"])
        message.parameters["mine"].string_param = f"{number}" * 10_000
        assert call(shadowing, "ModelInfer", message.SerializeToString())[0] is grpc.StatusCode.OK
    eventually(lambda: len(of_proxy._ended) == 3, "the answers")
    assert {model for _, model, _, _ in of_proxy._ended} == {"echo"}
    merge_keys = {merge_key for _, _, _, merge_key, _ in of_proxy._seen}
    assert len(merge_keys) == 3, "they are told apart"
    assert max(map(len, merge_keys)) <= 100


def test_what_a_policy_prints_is_no_report() -> None:
    prints = "from tidegate.sim import shadow_process as p; p.Plugins.installed = lambda: print('hello'); p.main()"
    done = subprocess.run([sys.executable, "-c", prints], input=b"", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"hello\n")


@pytest.mark.parametrize("rounds", range(1, 14))
def test_a_simulator_that_is_cut_off_while_it_starts_is_ended_too(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off twice in the midst of it, asyncio alone leaves a process that nobody waits for, and its pipes open."""
    monkeypatch.setattr(shadow, "SHADOW_COMMAND", ("-c", "input()"))
    monkeypatch.setattr(shadow, "TELL_EVERY_S", 0)
    directory: Any = SimpleNamespace(catalog=SimpleNamespace(loaded=[], models={}))
    config = read_config(flags={"tritons": ["localhost:8001"], "shadow": True})

    async def run() -> None:
        of_tritons = shadow.Shadow(config, SettingsHolder(settings_of(config)), directory, ProfileFile(profiles=[]))
        running = asyncio.create_task(of_tritons.run())
        for _ in range(rounds):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await of_tritons.close()

    asyncio.run(run())
    gc.collect()


def test_what_tritons_have_executed_is_told_of_each_version_by_itself() -> None:
    """Added up, their counters would fall when one of them begins anew, is unloaded or does not answer."""
    answer = service_pb2.ModelStatisticsResponse()
    for version in "12":
        model = answer.model_stats.add(name="m", version=version)
        model.inference_stats.success.count, model.inference_stats.success.ns = 7, 700
        batch = model.batch_stats.add(batch_size=4)
        batch.compute_infer.count = 3
        batch.compute_input.ns, batch.compute_infer.ns, batch.compute_output.ns = 1, 20, 300
    answer.model_stats.add(name="other", version="1")
    assert shadow.executed("here:8001", answer, {"m"}) == [
        ("m", "here:8001 1", 7, 700, [(4, 3, 321)]),
        ("m", "here:8001 2", 7, 700, [(4, 3, 321)]),
    ]


def test_what_is_told_names_the_triton_and_one_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def statistics_of(backend: Any) -> service_pb2.ModelStatisticsResponse | None:
        answer = service_pb2.ModelStatisticsResponse()
        answer.model_stats.add(name="m", version="1")
        return None if backend.address == "b:1" else answer

    monkeypatch.setattr(shadow, "statistics_of", statistics_of)
    monkeypatch.setattr(shadow, "catalog_for_shadow", lambda current, *_: current)
    tritons = [SimpleNamespace(address=f"{name}:1", alive=True) for name in "abc"]
    directory: Any = SimpleNamespace(catalog=SimpleNamespace(loaded=tritons, models={"m"}), unbatched={})
    config = read_config(flags={"tritons": ["localhost:8001"], "shadow": True})
    of_tritons = shadow.Shadow(config, SettingsHolder(), directory, ProfileFile(profiles=[]))
    told = asyncio.run(of_tritons._executed())
    assert [counters for _, counters, *_ in told] == ["a:1 1", "c:1 1"]
