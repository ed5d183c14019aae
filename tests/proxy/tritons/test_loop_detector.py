"""The tokens of probes: own ones that come back, and others', of which the last few are passed on."""

import time

import pytest

from tidegate_proxy.tritons import loop_detector
from tidegate_proxy.tritons.loop_detector import MAX_PASSED_ON, PROBE_HEADER, LoopDetector


def test_a_token_that_comes_back_through_others_shows_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    here, there, beyond = LoopDetector(), LoopDetector(), LoopDetector()
    token, harmless, next_one = here.new_token(), here.new_token(), there.new_token()
    there.receive(here.metadata(token, takes_part=True))
    assert not here.leads_back(token)
    beyond.receive(there.metadata(next_one, takes_part=True))
    here.receive(beyond.metadata(beyond.new_token(), takes_part=True))
    assert here.leads_back(token)
    assert not here.leads_back(harmless)
    assert not there.leads_back(next_one)
    now_s[0] += loop_detector.MEMORY_S + 1
    assert not here.leads_back(token)
    assert there.metadata(next_one, takes_part=True) == ((PROBE_HEADER, next_one),)


def test_clients_cannot_make_probes_long() -> None:
    detector = LoopDetector()
    token = detector.new_token()
    tokens = [LoopDetector().new_token() for _ in range(3 * MAX_PASSED_ON)]
    detector.receive([(PROBE_HEADER, ",".join(tokens)), (PROBE_HEADER, "x" * 5000), ("other", tokens[-1])])
    assert detector.metadata(token, takes_part=True) == ((PROBE_HEADER, ",".join([token, *tokens[:MAX_PASSED_ON]])),)


def test_clients_cannot_hide_a_loop_behind_tokens_that_they_made_up() -> None:
    """They send as many as are kept, to both, and the probes that follow still lead back."""
    here, there = LoopDetector(), LoopDetector()
    token, next_one = here.new_token(), there.new_token()
    for detector in (here, there):
        made_up = [LoopDetector().new_token() for _ in range(MAX_PASSED_ON)]
        detector.receive([(PROBE_HEADER, ",".join(made_up))])
    there.receive(here.metadata(token, takes_part=True))
    here.receive(there.metadata(next_one, takes_part=True))
    assert here.leads_back(token)
