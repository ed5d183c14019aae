"""Hardware on which latency was measured."""

from pydantic import BaseModel, ConfigDict, Field


class Hardware(BaseModel):
    """Hardware of one machine, as far as it affects latency."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpu: str
    """Name of the processor."""
    cores: int = Field(ge=1)
    """Number of cores that a process may use."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs, in NVML's order."""
    driver: str = ""
    """Version of the GPU driver; empty without GPUs."""

    def __str__(self) -> str:
        on_cpu = f"{self.cores} cores of {self.cpu}"
        return f"{', '.join(self.gpus)} (driver {self.driver}), {on_cpu}" if self.gpus else on_cpu
