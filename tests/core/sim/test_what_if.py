"""What would have been otherwise: the requests that came, once more."""

from typing import Any

import pytest
from msgspec.structs import replace

from tidegate.api import NEVER_NS, NS_PER_MS, Model, Profile, Request, Setup, Worker
from tidegate.host import Plugins
from tidegate.observation import EngineSettings
from tidegate.sim.what_if import (
    UNCHANGED_TITLE,
    WhatIfAlternative,
    WhatIfAnswer,
    WhatIfQuestion,
    answers,
    usual_alternatives,
)

PLUGINS = Plugins.installed()
MS = NS_PER_MS
SETUP = Setup(
    (Model("m", 4, slo_ns=50 * MS), Model("rare", 1)),
    (Worker(0, "w0", ("m", "rare")), Worker(1, "w1", ("m",))),
    (
        Profile.linear("m", alpha_ms=2, beta_ms=10, max_rows=4),
        Profile.linear("rare", alpha_ms=1, beta_ms=1, max_rows=1),
    ),
    first_batch_id=77,
)


def question(*, count: int = 400, policy: str = "symphony", factors: tuple[float, ...] = ()) -> WhatIfQuestion:
    """Requests of one model, as often as two workers bear."""
    first_ns = 10**15
    arrivals = [first_ns + round(number * 3.5 * MS) for number in range(count)]
    requests = [Request(5000 + 3 * n, "m", 1, at_ns, at_ns + 50 * MS) for n, at_ns in enumerate(arrivals)]
    return WhatIfQuestion(SETUP, policy, {}, EngineSettings(learn=True, max_tries=1), requests, factors)


def answer(asked: WhatIfQuestion, alternative: WhatIfAlternative, **settings: Any) -> WhatIfAnswer:
    (found,) = answers(asked, [alternative], PLUGINS, **settings)
    return found


def share(asked: WhatIfQuestion, **otherwise: Any) -> float:
    found = answer(asked, WhatIfAlternative("other", **otherwise))
    assert found.why == ""
    assert found.share is not None
    return found.share


def test_fewer_workers_serve_less_and_more_serve_more() -> None:
    asked = question()
    assert share(asked) == 1.0
    less = share(asked, without=(1,))
    assert less < 0.9
    assert share(asked, without=(1,), twice=0) == 1.0
    assert share(asked, pace=4.0) < 0.9
    assert answer(asked, WhatIfAlternative(UNCHANGED_TITLE)) == answer(asked, WhatIfAlternative(UNCHANGED_TITLE))


def test_stages_take_what_they_were_seen_to_take() -> None:
    assert share(question(factors=(1.0,))) == 1.0
    assert share(question(factors=(4.0, 6.0))) < 0.5


def test_shapes_that_are_new_and_requests_without_deadlines() -> None:
    asked = question(count=20)
    odd = [replace(request, shape="x:3", deadline_ns=NEVER_NS) for request in asked.requests]
    assert share(replace(asked, requests=odd)) == 1.0


def test_what_cannot_be_said_has_a_reason() -> None:
    asked = question(count=20)
    assert "no policy" in answer(asked, WhatIfAlternative("x", policy="nosuch")).why
    assert "took too long" in answer(asked, WhatIfAlternative("x"), enough=lambda: True).why
    assert answer(replace(asked, requests=[]), WhatIfAlternative("x")).why == "nothing came"


@pytest.mark.parametrize("policy", ["symphony", "eager"])
def test_the_usual_ones(policy: str) -> None:
    names = [each.name for each in usual_alternatives(question(policy=policy), PLUGINS)]
    assert names[:5] == [
        "unchanged",
        "with Triton's own batcher",
        "without worker w1",  # all that it hosts is on the other, too
        "with another worker like w1",
        "with a tenth more requests",
    ]
    assert f"with policy {policy}" not in names
    assert "with policy fifs" in names


def test_tritons_own_batcher_has_the_settings_of_the_tritons() -> None:
    refusing = {"models": {"m": {"max_queue_size": 1}}}
    crowd = question()
    crowd = replace(crowd, requests=[replace(each, arrival_ns=crowd.requests[0].arrival_ns) for each in crowd.requests])
    own, refused = (usual_alternatives(replace(crowd, batcher=batcher), PLUGINS)[1] for batcher in ({}, refusing))
    assert own.policy == refused.policy == "triton"
    assert share(crowd, policy=refused.policy, options=refused.options) < share(crowd, policy=own.policy)
    already = usual_alternatives(question(policy="triton"), PLUGINS)
    assert "with Triton's own batcher" not in [each.name for each in already]


def test_each_change_is_compared_with_none_over_the_same_requests() -> None:
    changes = [WhatIfAlternative(UNCHANGED_TITLE), WhatIfAlternative("less", without=(1,)), WhatIfAlternative("same")]
    none, less, same = answers(question(), changes, PLUGINS)
    assert none.gain is None
    assert none.share is not None
    assert less.share is not None
    assert less.gain is not None
    assert less.gain[0] <= less.share - none.share <= less.gain[1] < 0
    assert same.gain == (0.0, 0.0)
    assert [each.gain for each in answers(question(count=50), changes, PLUGINS)] == [None, None, None]
