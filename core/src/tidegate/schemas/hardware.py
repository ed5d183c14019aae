"""The hardware that something was measured on."""

from pydantic import BaseModel, ConfigDict, Field


class Hardware(BaseModel):
    """Hardware of one machine, as far as it affects latency."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpu: str
    """The name of its processor."""
    cores: int = Field(ge=1)
    """The cores that a process may use."""
    gpus: tuple[str, ...] = ()
    """The names of its GPUs, in NVML's order."""
    driver: str = ""
    """The version of the GPUs' driver; empty without GPUs."""

    def __str__(self) -> str:
        on_cpu = f"{self.cores} cores of {self.cpu}"
        return f"{', '.join(self.gpus)} (driver {self.driver}), {on_cpu}" if self.gpus else on_cpu
