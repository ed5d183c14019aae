"""SAC for discrete actions (Christodoulou, 2019) with masks: masked actions have probability 0.

Two critics, of which the lower value counts, return the value of every action, so expectations over the policy are
sums. Hyperparameters are those of InSS's table 2, except a learning rate three times as high, and the temperature.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tidegate_inss.learned.catalog import FEATURE_COUNT
from tidegate_inss.learned.placement import CHILD_FEATURES, GROUP_SIZE, PLACING_STATE

HIDDEN_UNITS = 256
LEARNING_RATE = 3e-4
DISCOUNT_FACTOR = 0.99
SOFT_FACTOR = 0.01
SERVED_FACTOR = 0.002
FIRST_TEMPERATURE, TEMPERATURE_RATE = 0.03, 1e-3
MAX_ENTROPY = 0.15
"""Target entropy as a fraction of the largest that the mask allows. (InSS does not give its iota.)"""
MASKED_LOGIT = -1e8


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers of 256 units, as in InSS."""
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, outputs),
    )


class SacDiscrete:
    """Networks of stage 1, and their learning rule (discrete SAC)."""

    def __init__(self, generator: torch.Generator) -> None:
        """Create the networks with random weights. `generator`: draws actions."""
        self._generator = generator
        self.actor = mlp(PLACING_STATE, GROUP_SIZE)
        self.served = mlp(PLACING_STATE, GROUP_SIZE)
        """The actor averaged over the last steps, which swings less: what is judged and exported."""
        self.served.load_state_dict(self.actor.state_dict())
        self.critics = nn.ModuleList([mlp(PLACING_STATE, GROUP_SIZE) for _ in range(2)])
        self.targets = nn.ModuleList([mlp(PLACING_STATE, GROUP_SIZE) for _ in range(2)])
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_temperature = nn.Parameter(torch.tensor(FIRST_TEMPERATURE).log())
        self._optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), LEARNING_RATE),
            "critics": torch.optim.Adam(self.critics.parameters(), LEARNING_RATE),
            "temperature": torch.optim.Adam([self.log_temperature], TEMPERATURE_RATE),
        }

    def act(self, states: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return a random action for each state by the policy's probabilities.

        `states`: shape (n, PLACING_STATE); `masks`: shape (n, GROUP_SIZE), not used because states contain them.
        """
        with torch.no_grad():
            chances, _ = self._policy(torch.from_numpy(states))
            drawn = torch.multinomial(chances, 1, generator=self._generator)
        actions: NDArray[np.int64] = drawn.squeeze(1).numpy()
        return actions

    def best(self, states: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the most likely action for each state.

        `states`: shape (n, PLACING_STATE); `masks`: shape (n, GROUP_SIZE).
        """
        with torch.no_grad():
            logits = torch.where(torch.from_numpy(masks), self.served(torch.from_numpy(states)), MASKED_LOGIT)
        actions: NDArray[np.int64] = logits.argmax(dim=1).numpy()
        return actions

    def learn(
        self,
        states: torch.Tensor,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        following: torch.Tensor,
        ended: torch.Tensor,
    ) -> None:
        """Run one step of each optimizer on n transitions.

        `states`, `following`: shape (n, PLACING_STATE); `actions`, `rewards`, `ended`: shape (n, 1).
        """
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            chances, logs = self._policy(following)
            values = torch.minimum(self.targets[0](following), self.targets[1](following))
            value = (chances * (values - temperature * logs)).sum(dim=1, keepdim=True)
            wanted = rewards + DISCOUNT_FACTOR * (1 - ended) * value
        loss = torch.zeros(())
        for critic in self.critics:
            loss = loss + nn.functional.mse_loss(critic(states).gather(1, actions.long()), wanted)
        self._step("critics", loss)
        chances, logs = self._policy(states)
        with torch.no_grad():
            values = torch.minimum(self.critics[0](states), self.critics[1](states))
        self._step("actor", (chances * (temperature * logs - values)).sum(dim=1).mean())
        entropy = -(chances * logs).sum(dim=1).detach()
        target = MAX_ENTROPY * self._possible(states).sum(dim=1).clamp(min=1).float().log()
        self._step("temperature", self.log_temperature.exp() * (entropy - target).mean())
        with torch.no_grad():
            for mine, theirs in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                mine.lerp_(theirs, SOFT_FACTOR)
            for mine, theirs in zip(self.served.parameters(), self.actor.parameters(), strict=True):
                mine.lerp_(theirs, SERVED_FACTOR)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of networks and optimizers, to resume from."""
        return {
            "actor": self.actor.state_dict(),
            "served": self.served.state_dict(),
            "critics": self.critics.state_dict(),
            "targets": self.targets.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            **{f"optimizer_{name}": optimizer.state_dict() for name, optimizer in self._optimizers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.actor.load_state_dict(state["actor"])
        self.served.load_state_dict(state["served"])
        self.critics.load_state_dict(state["critics"])
        self.targets.load_state_dict(state["targets"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state[f"optimizer_{name}"])

    @staticmethod
    def _possible(states: torch.Tensor) -> torch.Tensor:
        """Return which children have memory for the model, from states, as tensors."""
        return states[:, FEATURE_COUNT + 3 :: CHILD_FEATURES] > 0.5

    def _policy(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities of all actions, and their logarithms, which are 0 where the probability is."""
        possible = self._possible(states)
        # A state with no possible action follows the last placement of a group; its value is not used.
        logits = torch.where(possible, self.actor(states), torch.full((), MASKED_LOGIT))
        logs = torch.log_softmax(logits, dim=1)
        return logs.exp(), torch.where(possible, logs, torch.zeros(()))

    def _step(self, name: str, loss: torch.Tensor) -> None:
        optimizer = self._optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
