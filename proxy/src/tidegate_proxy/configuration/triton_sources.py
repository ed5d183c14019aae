"""Sources of Tritons that come and go, in the configuration: a DNS name, a file, a service of Kubernetes."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tidegate_proxy.configuration.section import ConfigSection, InputFile, Name, Seconds
from tidegate_proxy.configuration.tritons import TRITON_GRPC_PORT, TritonAddress, TritonSettings

Port = Annotated[int, Field(ge=1, le=65535)]
SOURCE_TYPES = ("dns", "file", "kubernetes")


class SourceError(Exception):
    """Error: a source of Tritons cannot be read; the message names it, the cause and the remedy."""


class ScalingConfig(ConfigSection):
    """StatefulSet whose number of replicas Tidegate changes: its pods are the Tritons of the service."""

    statefulset: Name = Field(description="Name of the StatefulSet, in the namespace of the service")
    min_replicas: int = Field(default=1, ge=1, description="Least number of replicas")
    max_replicas: int = Field(ge=1, description="Largest number of replicas")
    target_utilization: float = Field(
        default=0.75, gt=0, le=1, description="Busy fraction of the Tritons that the number of replicas is chosen for"
    )
    interval_s: Seconds = Field(default=15.0, description="Interval at which the load is looked at")
    stabilization_window_s: Seconds = Field(
        default=600.0, description="Time of which the largest number counts before replicas are removed"
    )
    dry_run: bool = Field(
        default=False, description="Log what would be done; the API server checks it, and changes nothing"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas: {self.max_replicas} is less than min_replicas, {self.min_replicas}")
        return self


class KubernetesService(ConfigSection):
    """Service of Kubernetes whose ready pods are Tritons."""

    service: Name = Field(description="Name of the service")
    namespace: Name | None = Field(default=None, description="Its namespace; default: that of Tidegate's pod")
    device_class_label: Name | None = Field(
        default=None,
        description="Label of a pod whose value is the device class of its Triton; `topology.kubernetes.io/zone` and "
        "`kubernetes.io/hostname` are those of its node. Default: none",
    )
    scaling: ScalingConfig | None = Field(
        default=None, description="Scaling of the Tritons by their load; default: none"
    )
    api: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s]+$",
        description="URL of the API server without credentials, such as that of `kubectl proxy`. Default: as a pod "
        "reaches it, with the token of its service account",
    )


class SourceOrigin(ConfigSection):
    """Origin of a list of Tritons, and their ports."""

    dns: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=253)] | None = Field(
        default=None, description="DNS name whose A or AAAA records are the Tritons"
    )
    file: InputFile | None = Field(
        default=None, description="YAML or JSON file with a list of Tritons, in the form of `tritons`"
    )
    kubernetes: Annotated[
        KubernetesService | None,
        BeforeValidator(
            lambda given: {"service": given} if isinstance(given, str) else given,
            json_schema_input_type=KubernetesService | str | None,
        ),
    ] = Field(default=None, description="Service of Kubernetes whose ready pods are the Tritons; a string is its name")
    port: Port = Field(default=TRITON_GRPC_PORT, description="Port of the gRPC service of each")
    http_port: Port | None = Field(
        default=None, description="Port of the HTTP service of each; default: 8000 beside gRPC port 8001, else none"
    )
    metrics_port: Port | None = Field(
        default=None, description="Port of the metrics of each; default: 8002 beside gRPC port 8001, else none"
    )
    interval_s: Seconds = Field(default=5.0, description="Interval at which the DNS name is resolved again")


class TritonSource(TritonSettings, SourceOrigin):
    """Source of Tritons that come and go while Tidegate serves."""

    @property
    def label(self) -> str:
        """Name of the source in messages: where the Tritons are listed."""
        if self.kubernetes:
            return f"kubernetes service {self.kubernetes.service}"
        return f"dns name {self.dns}" if self.dns else f"file {self.file}"

    def address(self, host: str, device_class: str | None = None) -> TritonAddress:
        """Return the Triton at a host (an IPv6 one in brackets), with the settings of this source.

        Without a `device_class` it is that of the settings.
        """
        ports = {"grpc": self.port, "http": self.http_port, "metrics": self.metrics_port}
        fields: dict[str, Any] = {name: getattr(self, name) for name in TritonSettings.model_fields}
        fields |= {name: f"{host}:{port}" for name, port in ports.items() if port is not None}
        if device_class:
            fields["device_class"] = device_class
        return TritonAddress(**fields)

    @model_validator(mode="before")
    @classmethod
    def _one_origin(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the file says
        if (
            isinstance(given, dict)
            and len(named := [each for each in SOURCE_TYPES if given.get(each) is not None]) != 1
        ):
            raise ValueError(f"give one of {', '.join(SOURCE_TYPES)} (not {' and '.join(named) or 'none'})")
        return given

    @model_validator(mode="after")
    def _fits_origin(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name in sorted(fields) if getattr(self, name) != fields[name].default]
        if self.file and (idle := [name for name in changed if name != "file"]):
            raise ValueError(f"{idle[0]}: an entry of the file has it: leave it out here")
        if "interval_s" in changed and not self.dns:
            raise ValueError("interval_s: only a DNS name is asked again; changes of others are noticed: leave it out")
        return self


def with_sources(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a configuration with a source in `tritons` moved to `discovery`, and that as a list."""
    others = document.get("discovery", [])
    if isinstance(others, dict):
        others = [others]
    if not isinstance(others, list):
        return document
    if isinstance(source := document.get("tritons"), dict):
        return {**document, "tritons": [], "discovery": [source, *others]}
    return {"tritons": [], **document, "discovery": others} if others else document
