"""Tritons behind Tidegate, in the configuration."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ByteSize, Field, model_validator

from tidegate_proxy.configuration.addresses import Address, host_of, port_of, with_port
from tidegate_proxy.configuration.section import ConfigSection, HeaderName, InputFile, Name

TRITON_GRPC_PORT: Final = 8001


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, Field(max_length=1000), AfterValidator(_compiles)]


class TritonTls(ConfigSection):
    """TLS to the gRPC port of a Triton (`--grpc-use-ssl`); its other ports have none."""

    ca: InputFile | None = Field(
        default=None, description="PEM file with the CAs to trust; default: those of the system"
    )
    cert: InputFile | None = Field(
        default=None, description="PEM file with the own certificate, for a Triton that requires one"
    )
    key: InputFile | None = Field(default=None, description="PEM file with the private key of `cert`")
    server_name: Name | None = Field(
        default=None, description="Name in Triton's certificate, if it differs from the address"
    )

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together: give both or neither")
        return self


class TritonPorts(ConfigSection):
    """Addresses of the services of one Triton."""

    grpc: Address = Field(description="HOST:PORT of its gRPC service")
    http: Address | None = Field(default=None, description="HOST:PORT of its HTTP service")
    metrics: Address | None = Field(default=None, description="HOST:PORT of its metrics")


class TritonSettings(ConfigSection):
    """Settings of a Triton beside its addresses."""

    tls: TritonTls | None = Field(default=None, description="TLS of its gRPC service; default: none")
    device_class: Name | None = Field(
        default=None,
        description="Device class of its workers, for profiles. Default: from its GPU, else `default`",
    )
    serialize_models: bool | Literal["learned"] | None = Field(
        default=None,
        description="Serialize the execution of its models, one batch at a time on each of its instances, or run them "
        "concurrently, like Triton alone. `learned`: serialize while that is found to be better; only for models that "
        "do not call each other. Default: serialize those that need the same resource of its rate limiter",
    )
    model_memory: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Memory for models with `load: on-demand`, in bytes or with a unit (`20GiB`); Triton has to run "
        "with --model-control-mode=explicit. Default: it loads none of them",
    )
    share_memory: bool | None = Field(
        default=None,
        description="Pass large tensors to it in system shared memory; default: if its address is on this machine",
    )

    headers: dict[HeaderName, InputFile] = Field(
        default={},
        description="Headers that open its restricted APIs, each with the file of its value; over gRPC they are "
        "sent as `triton-grpc-protocol-NAME`",
    )

    http_header_forward_pattern: Pattern | None = Field(
        default=None,
        description='Value of its --http-header-forward-pattern; `""`: none. Default: unknown',
    )
    grpc_header_forward_pattern: Pattern | None = Field(
        default=None,
        description='Value of its --grpc-header-forward-pattern; `""`: none. Default: unknown',
    )


class TritonAddress(TritonSettings, TritonPorts):
    """Address and settings of one Triton.

    With Triton's default gRPC port, 8001, the HTTP and metrics ports default to 8000 and 8002.
    """

    worker: Name | None = Field(default=None, description="Worker of the layout that it is")

    @property
    def shares_memory(self) -> bool:
        """Whether large tensors are passed to it in shared memory."""
        return self.is_local if self.share_memory is None else self.share_memory

    @property
    def is_local(self) -> bool:
        """Whether its address is on this machine."""
        return host_of(self.grpc).strip("[]") in ("localhost", "127.0.0.1", "::1")

    @model_validator(mode="before")
    @classmethod
    def _standard_ports(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the file says
        if (
            isinstance(given, dict)
            and isinstance(given.get("grpc"), str)
            and port_of(given["grpc"]) == TRITON_GRPC_PORT
        ):
            others = {"http": TRITON_GRPC_PORT - 1, "metrics": TRITON_GRPC_PORT + 1}
            return {name: with_port(given["grpc"], port) for name, port in others.items()} | given
        return given


def check_workers(tritons: Sequence[TritonAddress], layout: Path | None, where: str) -> None:
    """Check that each Triton is a different worker of the layout. Raises ValueError. `where`: path of the field."""
    workers = Counter(triton.worker for triton in tritons)
    for index, triton in enumerate(tritons):
        if (triton.worker is None) != (layout is None):
            raise ValueError(
                f"{where}tritons.{index}.worker: with a layout every Triton is one of its workers, without one none is"
            )
        if triton.worker is not None and triton.device_class is not None:
            raise ValueError(
                f"{where}tritons.{index}.device_class: the layout says it of worker {triton.worker!r}: leave it out"
            )
        if triton.worker is not None and workers[triton.worker] > 1:
            raise ValueError(f"{where}tritons: {workers[triton.worker]} of them are worker {triton.worker!r}")
