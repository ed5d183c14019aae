"""Policies are judged beside the simple ones, in the same worlds, and told where they are below them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.api import Commands, PolicySpec, RequestArrived, WorkerReady, hookimpl
from tidegate.cli import build_app
from tidegate.host import PluginError, Plugins
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing.judgment import BASELINE_POLICIES, JUDGED_SCENARIOS, judge_policies
from tidegate.toolkit import FirstComeFirstServed
from tidegate.workload import PolicyChoice, Scenario

EASY = "times vary by 35 %"


@pytest.fixture(autouse=True)
def short_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter ones: every judgment takes eighteen runs and more."""
    short = {name: {**world, "warmup_s": 0.05, "duration_s": 0.3} for name, world in JUDGED_SCENARIOS.items()}
    monkeypatch.setattr("tidegate.testing.judgment.JUDGED_SCENARIOS", short)


class Idler(FirstComeFirstServed):
    """Lets everything wait in vain."""

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Do nothing."""
        return ()

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Do nothing."""
        return ()


class Offer:
    """A plugin that offers it."""

    @hookimpl
    def tidegate_policies(self) -> list[PolicySpec]:
        """Offer `idler`."""
        return [PolicySpec("idler", "It does nothing", Idler)]


def test_the_worlds_draw_what_people_send() -> None:
    worlds = " ".join(JUDGED_SCENARIOS)
    for difficulty in ("rows", "applications", "slow ones", "vary", "stalls", "fails", "lost", "bursts", "pools"):
        assert difficulty in worlds


def test_a_yardstick_is_as_good_as_what_it_is_measured_by_says() -> None:
    judging = judge_policies([PolicyChoice(name="fifs")], worlds=[EASY], seeds=(1, 2), jobs=1)
    assert len(list(judging)) == len(judging) == 2 * (len(BASELINE_POLICIES) - 1 + 16)
    (judged,) = judging.judgments("fifs")
    short = {"version": 1, "name": EASY, **JUDGED_SCENARIOS[EASY], "warmup_s": 0.05, "duration_s": 0.3}
    scenario = Scenario.model_validate(short)
    own = [simulate(RunSpec(scenario, PolicyChoice(name="fifs"), seed)).total.attainment for seed in (1, 2)]
    assert judged.attainment == pytest.approx(sum(own) / 2)
    assert judged.best != "fifs"
    assert judged.gain.low <= judged.gain.mean <= judged.gain.high


def test_what_does_worse_by_more_than_chance_is_called_below() -> None:
    judging = judge_policies(
        [PolicyChoice(name="fifs"), PolicyChoice(name="fifs", label="one by one", options={"max_rows": 1})],
        worlds=["usual"],
        seeds=(1, 2, 3),
        jobs=1,
    )
    list(judging)
    (judged,) = judging.judgments("one by one")
    assert judged.is_below
    assert judged.gain.mean < -0.5
    (plain,) = judging.judgments("fifs")
    assert "one by one" not in plain.best, "who is judged is no yardstick"


def test_who_runs_no_split_models_is_not_judged_by_them() -> None:
    judging = judge_policies([PolicyChoice(name="eager")], worlds=["three pools"], seeds=(1, 2), jobs=1)
    list(judging)
    assert judging.judgments("eager") == []
    assert judging.unfit["three pools", "eager"] == "it runs no split models"


def test_a_policy_that_is_not_installed_is_named() -> None:
    with pytest.raises(PluginError, match="idler"):
        judge_policies([PolicyChoice(name="idler")], plugins=Plugins())


@pytest.mark.slow
def test_the_command_says_what_breaks_and_what_is_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins.installed()
    plugins.register(Offer(), "idler")
    monkeypatch.setattr(Plugins, "installed", classmethod(lambda _: plugins))
    monkeypatch.setattr("tidegate.testing.judgment.JUDGED_SCENARIOS", {"usual": JUDGED_SCENARIOS["usual"]})
    results = tmp_path / "judged.json"
    command = ["check-policy", "idler", "--worlds", "2", "--seeds", "2", "--jobs", "1", "-o", str(results)]
    result = CliRunner().invoke(build_app(plugins), command)
    assert result.exit_code == 1
    assert "idler: it breaks the contract in 2 of 2 random worlds" in result.output
    assert "idler: not judged, as it breaks the contract in every world" in result.output
    assert "best simple one" not in result.output
    assert json.loads(results.read_text())["policies"]["idler"]["broken"]


def test_the_command_names_the_one_that_runs_a_broken_world_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins.installed()
    plugins.register(Offer(), "idler")
    monkeypatch.setattr(Plugins, "installed", classmethod(lambda _: plugins))
    monkeypatch.setattr("tidegate.testing.judgment.JUDGED_SCENARIOS", {})
    app = build_app(plugins)
    first = CliRunner().invoke(app, ["check-policy", "idler", "--worlds", "2", "--jobs", "1"])
    (again,) = re.findall(r"^Again: tidegate (check-policy idler --world \d+)$", first.output, re.MULTILINE)
    second = CliRunner().invoke(app, again.split())
    assert second.exit_code == 1
    assert f"it breaks the contract in 1 of world {again.split()[-1]}, first: policy 'idler' in world" in second.output
    fine = CliRunner().invoke(app, ["check-policy", "fifs", "--world", "1"])
    assert (fine.exit_code, fine.output) == (0, "fifs: every invariant holds in world 1\n")


def test_a_yardstick_that_breaks_on_a_seed_is_none_in_that_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(run: RunSpec) -> object:
        if run.policy.name == "eager" and run.seed == 2:
            raise ValueError("made to break")
        return simulate(run)

    monkeypatch.setattr("tidegate.testing.judgment.simulate", breaking)
    judging = judge_policies([PolicyChoice(name="fifs")], worlds=[EASY], seeds=(1, 2), jobs=1)
    list(judging)
    (judged,) = judging.judgments("fifs")
    assert judged.best.startswith("triton")
    assert judging.unfit[EASY, "eager"] == "ValueError: made to break"
