"""Learners of both stages with their replay buffers: SAC-Discrete places, TD3 (Stable-Baselines3) sets shares."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from stable_baselines3 import TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger
from torch import nn

from tidegate_inss.learned.networks import NETWORK_SIZES, PLACING, SHARING
from tidegate_inss.learned.placement import GROUP_SIZE, PLACING_STATE
from tidegate_inss.learned.sharing import SHARING_ACTION, SHARING_STATE
from tidegate_inss.training.sac_discrete import HIDDEN_UNITS, SacDiscrete
from tidegate_inss.training.transitions import Arrays

PLACING_BATCH, SHARING_BATCH = 64, 256
"""Number of transitions in a step of each stage.

Stage 1 learns faster on one core with more steps on fewer than InSS's.
"""
SHARING_EVERY = 3
"""Number of steps of stage 1 for each step of stage 2."""
REPLAY_BUFFER_STEPS = 100_000
EXPLORE_NOISE = 0.1
REWARD_SCALE = 0.5
"""Scale of rewards in learning: critics start with values near 0."""


class Agents:
    """Learners of both stages; their random generators are part of a checkpoint."""

    def __init__(self, seed: int, *, replayed: int = REPLAY_BUFFER_STEPS) -> None:
        torch.manual_seed(seed)
        self.rng = np.random.default_rng((seed, 2))
        self._torch_rng = torch.Generator().manual_seed(seed)
        states = Box(-np.inf, np.inf, (PLACING_STATE,), np.float32)
        self.sac = SacDiscrete(self._torch_rng)
        self.placings = ReplayBuffer(replayed, states, Discrete(GROUP_SIZE), device="cpu")
        self.td3 = _td3(seed, replayed)
        assert self.td3.replay_buffer is not None
        self.sharings: ReplayBuffer = self.td3.replay_buffer

    def place(self, states: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return actions of stage 1 with exploration: ranks by group.

        `states`: shape (groups, PLACING_STATE); `masks`: children with memory, shape (groups, GROUP_SIZE).
        """
        return self.sac.act(states, masks)

    def place_anywhere(self, states: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return random actions of stage 1: ranks of children with memory.

        `states`: not used; `masks`: shape (groups, GROUP_SIZE).
        """
        chosen: NDArray[np.int64] = np.where(masks, self.rng.random(masks.shape), -1.0).argmax(axis=1)
        return chosen

    def share(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return actions of stage 2 with noise, shape (GPUs, SHARING_ACTION); `states`: shape (GPUs, SHARING_STATE)."""
        noise = self.rng.normal(0.0, EXPLORE_NOISE, (len(states), SHARING_ACTION))
        with torch.no_grad():
            actions = self.td3.actor(torch.from_numpy(states)).numpy()
        noisy: NDArray[np.float32] = np.clip(actions + noise, -1, 1).astype(np.float32)
        return noisy

    def share_anyhow(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return random actions of stage 2, shape (GPUs, SHARING_ACTION)."""
        return self.rng.uniform(-1, 1, (len(states), SHARING_ACTION)).astype(np.float32)

    def share_best(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return actions of stage 2 as served: from the averaged actor, TD3's target."""
        with torch.no_grad():
            actions: NDArray[np.float32] = self.td3.actor_target(torch.from_numpy(states)).numpy()
        return actions

    def remember_placing(self, transitions: Arrays) -> None:
        """Store transitions of stage 1, as `placing_transitions` returns them."""
        for state, action, reward, following, ended in zip(*transitions, strict=True):
            self.placings.add(state, following, action, reward * REWARD_SCALE, ended, [{}])

    def remember_sharing(self, transitions: Arrays) -> None:
        """Store transitions of stage 2, as `sharing_transitions` returns them; each ends its episode."""
        for state, action, reward in zip(*transitions, strict=True):
            self.sharings.add(state, state, action, reward * REWARD_SCALE, np.ones(1), [{}])

    def learn(self, steps: int) -> None:
        """Run `steps` steps of stage 1 and the corresponding ones of stage 2, once there is enough data."""
        if self.placings.size() >= PLACING_BATCH:
            for _ in range(steps):
                drawn = self.placings.sample(PLACING_BATCH)
                self.sac.learn(drawn.observations, drawn.actions, drawn.rewards, drawn.next_observations, drawn.dones)
        if self.sharings.size() >= SHARING_BATCH:
            self.td3.train(max(1, steps // SHARING_EVERY), SHARING_BATCH)

    def state_dict(self) -> dict[str, Any]:
        """Return the learners' state, including replay buffers and generators."""
        td3 = self.td3
        return {
            "sac": self.sac.state_dict(),
            "td3": td3.policy.state_dict(),
            "td3_optimizers": [td3.actor.optimizer.state_dict(), td3.critic.optimizer.state_dict()],
            "td3_updates": td3._n_updates,
            "buffers": [_kept(self.placings), _kept(self.sharings)],
            "generators": [self.rng.bit_generator.state, self._torch_rng.get_state(), torch.get_rng_state()],
            "numpy": np.random.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        td3 = self.td3
        self.sac.load_state_dict(state["sac"])
        td3.policy.load_state_dict(state["td3"])
        for optimizer, kept in zip((td3.actor.optimizer, td3.critic.optimizer), state["td3_optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        td3._n_updates = state["td3_updates"]
        for buffer, kept in zip((self.placings, self.sharings), state["buffers"], strict=True):
            _restore(buffer, kept)
        self.rng.bit_generator.state, own, everybodys = state["generators"]
        self._torch_rng.set_state(own)
        torch.set_rng_state(everybodys)
        # The library draws minibatches by numpy's global generator.
        np.random.set_state(state["numpy"])


def _td3(seed: int, replayed: int) -> TD3:
    """TD3 with InSS's numbers and no environment: what to learn from is given to it."""
    td3 = TD3(
        "MlpPolicy",
        None,
        learning_rate=3e-4,
        buffer_size=replayed,
        batch_size=SHARING_BATCH,
        tau=0.005,
        gamma=0.99,
        policy_delay=2,
        target_policy_noise=0.2,
        target_noise_clip=0.5,
        policy_kwargs={"net_arch": [HIDDEN_UNITS, HIDDEN_UNITS]},
        # Following states do not count and are not kept.
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        seed=seed,
        device="cpu",
        _init_setup_model=False,
    )
    td3.observation_space = Box(-np.inf, np.inf, (SHARING_STATE,), np.float32)
    td3.action_space = Box(-1.0, 1.0, (SHARING_ACTION,), np.float32)
    td3.n_envs = 1
    td3._setup_model()
    td3.set_logger(Logger(folder=None, output_formats=[]))
    return td3


REPLAY_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones")


def _kept(buffer: ReplayBuffer) -> dict[str, Any]:
    """The part of a memory that is in use."""
    size = buffer.size()
    arrays = {name: getattr(buffer, name)[:size].copy() for name in REPLAY_ARRAYS if hasattr(buffer, name)}
    return {"pos": buffer.pos, "full": buffer.full, "arrays": arrays}


def _restore(buffer: ReplayBuffer, kept: dict[str, Any]) -> None:
    buffer.pos, buffer.full = kept["pos"], kept["full"]
    for name, array in kept["arrays"].items():
        getattr(buffer, name)[: len(array)] = array


OPSET, IR_VERSION = 17, 8
"""ONNX versions, old enough for every onnxruntime that the plugin accepts."""
ONNX_OPERATORS = {nn.ReLU: "Relu", nn.Tanh: "Tanh"}


def export(agents: Agents, folder: Path) -> None:
    """Write the networks of both stages into a folder. Raises OSError."""
    placing = network(agents.sac.served, PLACING_STATE, GROUP_SIZE)
    sharing = network(agents.td3.actor_target.mu, SHARING_STATE, SHARING_ACTION)
    for name, model in ((PLACING, placing), (SHARING, sharing)):
        onnx.checker.check_model(model, full_check=True)
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))


def network(layers: nn.Sequential, inputs: int, outputs: int) -> onnx.ModelProto:
    """Return the ONNX graph from `states` to `actions`, for any number of rows.

    `layers`: the network; `inputs`, `outputs`: numbers of features.
    """
    nodes, constants, current = [], [], "states"
    for number, layer in enumerate(layers):
        following = "actions" if number == len(layers) - 1 else f"layer_{number}"
        if isinstance(layer, nn.Linear):
            for name, value in (("weight", layer.weight), ("bias", layer.bias)):
                constants.append(numpy_helper.from_array(value.detach().numpy(), f"{name}_{number}"))
            nodes.append(
                helper.make_node("Gemm", [current, f"weight_{number}", f"bias_{number}"], [following], transB=1)
            )
        else:
            nodes.append(helper.make_node(ONNX_OPERATORS[type(layer)], [current], [following]))
        current = following
    graph = helper.make_graph(
        nodes,
        "inss",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info("actions", TensorProto.FLOAT, ["rows", outputs])],
        constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, producer_name="tidegate-inss", opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {name: str(size) for name, size in NETWORK_SIZES.items()})
    return model
