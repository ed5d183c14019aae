"""A controller that has its workers move at set times, and the plugin that offers it to the benchmark's deployment."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tidegate.api import hookimpl
from tidegate.control import Controller, ControllerOptions, ControllerSpec, Observation
from tidegate.schemas import Layout, PathField


class MoverOptions(ControllerOptions):
    """Between which layouts."""

    layouts: tuple[Annotated[Layout, PathField()], ...] = Field(description="What it wants, one after the other")
    stay_s: float = Field(gt=0, description="How long each layout is to serve")


class Mover(Controller):
    """Wants the next layout once the present one has served for long enough; after the last one nothing more."""

    Options = MoverOptions

    def __init__(self, layout: Layout, options: MoverOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._coming = list(options.layouts)
        self._stay_ns = round(options.stay_s * 1e9)
        self._since_ns: int | None = None

    def step(self, observation: Observation) -> Layout | None:
        """The next layout, when it is time."""
        if self._since_ns is None:
            self._since_ns = observation.now_ns
        if not self._coming or observation.now_ns - self._since_ns < self._stay_ns:
            return None
        self._since_ns = None
        return self._coming.pop(0)


@hookimpl
def tidegate_controllers() -> list[ControllerSpec]:
    """Offer it."""
    return [ControllerSpec("mover", "Moves its workers from one layout to the next at set times", Mover)]


def install(folder: Path) -> None:
    """Make a distribution of this module in a folder; who has that on its path has the plugin."""
    info = folder / "tidegate_mover-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate-mover\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[tidegate]\nmover = bench.moving_worker\n", encoding="utf-8")
