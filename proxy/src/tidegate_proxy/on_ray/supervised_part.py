"""Part that Ray places, and its state: the Tritons of a device, a shard or a frontend."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from tidegate_proxy.on_ray.actors import RayPlacement, StartedProcesses
from tidegate_proxy.on_ray.plan import DevicePlan, Takes

_WAIT_S: Final = (0.5, 30.0)
"""How long one waits that was lost again and again: at first, and at last."""
_STABLE_S: Final = 30.0
"""Whatever ran so long is placed again at once."""


class PartPhase(Enum):
    """Phase in the life of a part."""

    ABSENT = auto()
    """The part does not exist."""
    PLACING = auto()
    """Ray is looking for a node."""
    FINDING = auto()
    """A shard is looking for an address on its node."""
    PLACED = auto()
    """The part is placed, and waits for its dependencies."""
    STARTING = auto()
    RUNNING = auto()


@dataclass(eq=False)
class SupervisedPart:
    """State of one part in the supervisor."""

    name: str
    takes: Takes
    shard: int = 0
    """Number of the shard, or of a device's shard."""
    device: DevicePlan | None = None
    """Device of Tritons; None: a shard or a frontend."""
    is_frontend: bool = False
    phase: PartPhase = PartPhase.ABSENT
    actor: Any = None
    place: RayPlacement | None = None
    """Current or last node."""
    started: StartedProcesses | None = None
    """Processes that run, or ran last."""
    address: str = ""
    """Address of a shard for frontends, from its start."""
    is_outdated: bool = False
    """Whether its configuration is out of date."""
    lost_at: float | None = None
    """Instant since when it is missing; None: it never ran, or it runs."""
    since: float = 0.0
    """Instant at which its phase began."""
    is_warned: bool = False
    """Whether lack of room for it was logged."""
    avoids: tuple[str, ...] = ()
    """Nodes that it is not placed on, because they may be lost."""
    retry_at: float = 0.0
    _wait_s: float = _WAIT_S[0]

    @property
    def is_shard(self) -> bool:
        """Whether the part is a shard."""
        return self.device is None and not self.is_frontend

    def enter(self, phase: PartPhase, now: float) -> None:
        """Enter another phase."""
        self.phase, self.since = phase, now

    def lost(self, now: float) -> None:
        """Handle the loss of the part, or its failure to start."""
        if self.phase is PartPhase.RUNNING:
            self.lost_at = now
        has_been_stable = self.phase is PartPhase.RUNNING and now - self.since > _STABLE_S
        startup_timeout_s = 0.0 if has_been_stable or self._wait_s == _WAIT_S[0] else self._wait_s
        self._wait_s = _WAIT_S[0] * 2 if has_been_stable else min(2 * self._wait_s, _WAIT_S[1])
        self.actor, self.is_outdated, self.is_warned = None, False, False
        self.retry_at = now + startup_timeout_s
        self.enter(PartPhase.ABSENT, now)

    def options(self, strategy: Any) -> dict[str, Any]:  # noqa: ANN401 - of Ray's
        """Return the options for Ray."""
        avoided = {"label_selector": {"ray.io/node-id": f"!in({','.join(self.avoids)})"}} if self.avoids else {}
        rest = {name: amount for name, amount in self.takes.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": self.takes.get("CPU", 0),
            "num_gpus": self.takes.get("GPU", 0),
            "resources": rest,
            "scheduling_strategy": strategy,
            "max_concurrency": 4,  # it waits for an end, and hears what else there is meanwhile
            "max_restarts": 0,
            **avoided,
        }
