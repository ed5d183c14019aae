"""Learning by torch: only where it is installed (`make test-training` does that in an environment of its own)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs torch: make test-training")
pytest.importorskip("stable_baselines3", reason="training needs stable-baselines3: make test-training")

import torch

from tidegate_inss.commands.train_inss import train_inss
from tidegate_inss.learned.catalog import FEATURE_COUNT
from tidegate_inss.learned.networks import PLACING, RECORD_FILE, SHARING, Networks
from tidegate_inss.learned.placement import CHILD_FEATURES, GROUP_SIZE, PLACING_STATE
from tidegate_inss.learned.sharing import SHARING_STATE
from tidegate_inss.training.agents import export
from tidegate_inss.training.sac_discrete import SacDiscrete
from tidegate_inss.training.trainer import Training, TrainingSettings
from tidegate_inss.training.training_record import judge
from tidegate_inss.training.workloads import Workloads

SMALL: dict[str, Any] = {"replayed": 4_000, "pool": 12, "judged_every": 20}


def run_to_the_end(training: Training) -> Training:
    for _ in training.run():
        pass
    return training


def weights(training: Training) -> list[torch.Tensor]:
    agents = training.agents
    return [*agents.sac.actor.parameters(), *agents.sac.critics.parameters(), *agents.td3.policy.parameters()]


def same(one: Training, other: Training) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(weights(one), weights(other), strict=True))


@pytest.fixture(scope="module", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where torch keeps what it compiles, though nothing here asks it to: optimizers make that folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        yield


@pytest.fixture(scope="module")
def trained() -> Training:
    return run_to_the_end(Training(TrainingSettings(seed=3, rounds=30, **SMALL)))


def test_a_seed_makes_the_same_networks_again_and_another_one_others(trained: Training) -> None:
    again, other = (run_to_the_end(Training(TrainingSettings(seed=seed, rounds=30, **SMALL))) for seed in (3, 4))
    assert same(trained, again)
    assert trained.curve == again.curve
    assert not same(trained, other)


def test_a_training_that_was_stopped_ends_as_one_that_was_not(trained: Training, tmp_path: Path) -> None:
    first = Training(TrainingSettings(seed=3, rounds=30, **SMALL))
    for _ in first.run():
        if first.round == 24:
            first.save(tmp_path / "checkpoint.pt")
            break
    torch.manual_seed(99)
    np.random.seed(99)
    second = Training(TrainingSettings(seed=3, rounds=30, **SMALL))
    second.load(tmp_path / "checkpoint.pt")
    assert second.round == 24
    assert same(trained, run_to_the_end(second))
    assert trained.curve == second.curve


def test_a_checkpoint_of_another_training_is_refused(trained: Training, tmp_path: Path) -> None:
    trained.save(tmp_path / "checkpoint.pt")
    other = Training(TrainingSettings(seed=4, rounds=30, **SMALL))
    with pytest.raises(ValueError, match=r"of another training \(seed is 3 there and 4 here\)"):
        other.load(tmp_path / "checkpoint.pt")


def test_learning_makes_better_decisions_than_chance() -> None:
    """By at least 5, in units of the reward, after 100 rounds: a twelfth of what late requests can cost."""
    training = Training(TrainingSettings(seed=1, rounds=100, **SMALL))
    apart = Workloads(77, pool=12)
    judged = [apart.draw(32, GROUP_SIZE) for _ in range(4)]
    by_chance = judge(judged, training.agents.place_anywhere, training.agents.share_anyhow)
    run_to_the_end(training)
    learned = judge(judged, training.agents.sac.best, training.agents.share_best)
    assert learned["reward"] > by_chance["reward"] + 5
    assert learned["late"] < by_chance["late"] / 2


def test_actions_that_are_masked_are_never_drawn_and_have_no_part_in_values() -> None:
    torch.manual_seed(0)
    sac = SacDiscrete(torch.Generator().manual_seed(0))
    states = np.random.default_rng(0).normal(size=(500, PLACING_STATE)).astype(np.float32)
    masks = np.zeros((500, GROUP_SIZE), np.bool_)
    masks[:, [1, 3]] = True
    states[:, FEATURE_COUNT + 3 :: CHILD_FEATURES] = masks
    for act in (sac.act, sac.best):
        assert set(act(states, masks).tolist()) == {1, 3}
    tensors = torch.from_numpy(states)
    actions = torch.from_numpy(sac.act(states, masks))[:, None]
    ended = torch.zeros(500, 1)
    for _ in range(3):
        sac.learn(tensors, actions, torch.ones(500, 1), tensors, ended)
    assert all(torch.isfinite(each).all() for each in sac.actor.parameters())
    # A state without any possible action is that after the last placement.
    states[:, FEATURE_COUNT + 3 :: CHILD_FEATURES] = 0
    sac.learn(tensors, actions, torch.ones(500, 1), torch.from_numpy(states), torch.ones(500, 1))
    assert all(torch.isfinite(each).all() for each in sac.critics.parameters())


def test_sac_learns_which_action_is_worth_most() -> None:
    """One step, and the third action is better by 1 than the others."""
    torch.manual_seed(0)
    sac = SacDiscrete(torch.Generator().manual_seed(0))
    states = torch.zeros(256, PLACING_STATE)
    states[:, FEATURE_COUNT + 3 :: CHILD_FEATURES] = 1
    masks = np.ones((256, GROUP_SIZE), np.bool_)
    for _ in range(150):
        actions = torch.from_numpy(sac.act(states.numpy(), masks))[:, None]
        sac.learn(states, actions, (actions == 2).float(), states, torch.ones(256, 1))
    assert (sac.best(states.numpy(), masks) == 2).all()
    assert (sac.act(states.numpy(), masks) == 2).mean() > 0.9


def test_what_is_exported_decides_as_what_was_trained(trained: Training, tmp_path: Path) -> None:
    export(trained.agents, tmp_path)
    networks, agents = Networks(tmp_path), trained.agents
    rng = np.random.default_rng(0)
    states = rng.normal(size=(64, PLACING_STATE)).astype(np.float32)
    with torch.no_grad():
        expected = agents.sac.served(torch.from_numpy(states)).numpy()
    assert np.allclose(networks.preferences(states), expected, atol=1e-5)
    states = rng.normal(size=(64, SHARING_STATE)).astype(np.float32)
    assert np.allclose(networks.share(states), agents.share_best(states), atol=1e-5)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(TrainingSettings.__init__, "__defaults__", (0, 2000, True, 12, 4_000, 10, 12))
    app = typer.Typer()
    app.command()(train_inss)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_writes_networks_a_record_and_a_page_and_goes_on(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "networks"
    done = command(folder, "--seed", 5, "--rounds", 8)
    assert done.exit_code == 0, done.output
    Networks(folder)
    first = json.loads((folder / RECORD_FILE).read_text())
    assert first["command"] == "tidegate train-inss FOLDER --seed 5 --rounds 8"
    assert first["curve"][-1]["round"] == 8
    assert "Do the networks decide better than rules of thumb?" in (folder / "curve.html").read_text()
    more = command(folder, "--seed", 5, "--rounds", 12, "--json")
    assert more.exit_code == 0, more.output
    assert "going on after round 8" in more.stderr
    record = json.loads(more.stdout)
    assert record["curve"][0] == first["curve"][0]
    assert record["networks_sha256"] != first["networks_sha256"]
    refused = command(folder, "--seed", 6, "--rounds", 12)
    assert refused.exit_code == 1
    assert "seed is 5 there and 6 here" in refused.stderr
    at_once = command(tmp_path / "at-once", "--seed", 5, "--rounds", 12, "--no-interference")
    assert at_once.exit_code == 0
    assert "--no-interference" in json.loads((tmp_path / "at-once" / RECORD_FILE).read_text())["command"]
    for name in (PLACING, SHARING):
        assert (tmp_path / "at-once" / name).exists()
