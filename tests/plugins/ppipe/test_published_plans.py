"""The paper's 36 problems, where their data is at hand: TIDEGATE_PPIPE_DATA names the folder."""

import os
import time
from pathlib import Path

import pytest

from tests.plugins.ppipe.test_planners import check
from tidegate.schemas import DocumentError
from tidegate_ppipe.planners import plan_dart, plan_np, plan_ppipe
from tidegate_ppipe.published_plans import PublishedProblem, read_profile, read_published

DATA = os.environ.get("TIDEGATE_PPIPE_DATA")
needs_data = pytest.mark.skipif(
    DATA is None, reason="set TIDEGATE_PPIPE_DATA to the folder with PPipe's published data"
)
PUBLISHED = list(read_published(Path(DATA))) if DATA else []


@needs_data
def test_there_are_36_of_nine_models() -> None:
    assert len(PUBLISHED) == 36
    assert len({model.name for published in PUBLISHED for model in published.problem.models}) == 9


@pytest.mark.parametrize(
    "published", PUBLISHED or [pytest.param(None, marks=needs_data)], ids=lambda it: it and it.name
)
def test_no_plan_is_below_the_published_one(published: PublishedProblem) -> None:
    """By more than rounding, and all are proven to be at most 1 % from the best possible."""
    start_s = time.monotonic()
    for name, run, least in (("np", plan_np, 0.999), ("dart-r", plan_dart, 0.999), ("ppipe", plan_ppipe, 0.9999)):
        plan = run(published.problem, time_limit_s=60, progress=lambda **_: time.monotonic() - start_s)
        check(published.problem, plan, chained=name == "dart-r")
        assert plan.objective >= published.normalized_min_rps[name] * least
        assert plan.gap is not None
        assert plan.gap <= 0.01


def test_a_folder_without_the_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"it has no plans/\*.json: give the folder with the artifact's data"):
        list(read_published(tmp_path))
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(DocumentError, match=r"m.json"):
        read_profile(tmp_path / "m.json")
